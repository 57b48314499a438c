// The details of one run, with a link to its timeline.

import { $, el } from "./dom.js";
import { save } from "./timeline.js";
import * as words from "./words.js";

let drawn = null;

export function drawDetails(page) {
  const panel = $("details");
  const model = page.chat?.model;
  const run = page.shown ?? model?.running ?? model?.runs.get(model.order.at(-1)) ?? null;
  const mark = run ? `${run.id} ${run.version}` : "";
  if (panel.hidden || mark === drawn) return;
  drawn = mark;
  panel.replaceChildren(el("h2", {}, "Details"), ...(run ? of(run, page) : [el("p.note", {}, "No run yet.")]));
}

function of(run, page) {
  const { outcome } = run;
  const tools = run.parts.filter((part) => part.kind === "tool");
  const rows = [
    ["run", run.id],
    ["by", run.said[0]?.child ? null : run.said[0]?.by],
    ["announces", run.said[0]?.child && `child ${run.said[0].child}`],
    ["state", outcome ? words.ending(outcome) : run.state],
    ["generation", run.generation],
    ["phase", run.phase],
    ["began", run.startedAt && words.clock(run.startedAt)],
    ["took", outcome?.ended_at && run.startedAt && words.time(outcome.ended_at - run.startedAt)],
    ["tools", tools.length && tools.map((tool) => `${tool.name}: ${tool.state}`).join(", ")],
  ].filter(([, value]) => value);
  const nodes = [
    list(rows),
    el(
      "p.links",
      {},
      el("a", { href: `#/run/${run.id}` }, "Timeline"),
      " ",
      el(
        "a",
        {
          href: `#/run/${run.id}`,
          onclick: (event) => {
            event.preventDefault();
            save(page, run.id);
          },
        },
        "Save as SVG",
      ),
    ),
  ];
  if (run.receipt) nodes.push(el("h3", {}, "Receipt"), list(words.facts(run.receipt)));
  return nodes;
}

const list = (rows) => el("dl", {}, ...words.listed(rows));
