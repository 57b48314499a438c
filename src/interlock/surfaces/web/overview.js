// The overview for operators: live runs, how fast stops were, how runs ended; buttons stop a run, a session, everything.

import { $, el, svg } from "./dom.js";
import { ask } from "./dialog.js";
import { ENDINGS } from "./endings.js";
import * as words from "./words.js";

const EVERY_MS = 2_000;
const SOON_MS = 150;
const COLOURS = Object.keys(ENDINGS); // each ending has a colour in style.css

export class Overview {
  #visible = false;
  #timer = 0;
  #due = Infinity; // when the figures are loaded again
  #receipts = [];

  constructor(link, page) {
    this.link = link;
    this.page = page;
    this.figures = el("dl.figures");
    this.charts = el("div.charts");
    this.body = el("tbody");
    this.none = el("p.note", {}, "Nothing runs.");
    this.everything = el(
      "button.danger",
      { type: "button", disabled: true, onclick: () => this.#stopEverything() },
      "Stop everything",
    );
    this.proofs = el("div.proofs", { "aria-label": "Receipts", role: "region" });
    this.problem = el("p.note", { role: "status" });
    const head = ["Session", "Run", "By", "State", "For", "Message", "Stop"].map((name) =>
      el("th", { scope: "col" }, name),
    );
    this.table = el("table", {}, el("caption", {}, "Live runs"), el("thead", {}, el("tr", {}, ...head)), this.body);
    const scroll = el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Live runs" }, this.table);
    $("overview").replaceChildren(
      $("overview-title"),
      this.problem,
      el("p.actions", {}, this.everything),
      scroll,
      this.none,
      this.proofs,
      this.figures,
      this.charts,
    );
    link.addEventListener("outline", ({ detail }) => this.#hear(detail));
    link.addEventListener("state", ({ detail }) => detail === "connected" && this.#soon());
  }

  set visible(visible) {
    this.#visible = visible;
    if (visible) this.#load();
  }

  // Redraw a receipt that a stop here returned, until it is drained.
  #hear({ data: { receipt } }) {
    const shown = receipt && this.#receipts.find((node) => node.dataset?.receipt === receipt.id);
    if (shown) words.drawReceipt(shown, receipt, this.#session(receipt));
    this.#soon();
  }

  #soon(ms = SOON_MS) {
    if (!this.#visible || this.#due <= performance.now() + ms) return; // a sooner load is due
    clearTimeout(this.#timer);
    this.#due = performance.now() + ms;
    this.#timer = setTimeout(() => this.#load(), ms);
  }

  async #load() {
    clearTimeout(this.#timer);
    this.#due = Infinity;
    if (!this.#visible) return;
    try {
      const [told, runs] = await Promise.all([
        this.link.request("interlock.overview"),
        this.link.request("interlock.runs"),
      ]);
      this.problem.textContent = "";
      for (const run of runs) run.session = this.link.name(run.session);
      this.#draw(told, runs.filter((run) => run.outcome == null));
    } catch (error) {
      this.problem.textContent = error.message;
      this.everything.disabled = true;
    }
    this.#soon(EVERY_MS);
  }

  #session({ session }) {
    return el("strong", {}, this.link.name(session) ?? "");
  }

  #draw(told, runs) {
    const waiting = {};
    for (const run of runs) if (run.state === "queued") waiting[run.session] = (waiting[run.session] ?? 0) + 1;
    const deep = Object.entries(waiting)
      .map(([session, count]) => `${session}: ${count}`)
      .join(", ");
    const figures = [
      ["live runs", runs.length],
      ["waiting messages", deep ? `${told.queued} (${deep})` : told.queued],
      ["containment grade", told.grade],
      ["connections", told.connections],
      ["up for", words.time(told.uptime_seconds)],
      [
        "agent processes",
        told.hosts
          ? `${told.hosts.started} started, ${told.hosts.reused} used again, ${told.hosts.killed} ended`
          : "inline",
      ],
      ["processes ended", sum(told.processes)],
      ["effects refused", sum(told.refused)],
      ["corrections", told.corrections],
    ];
    this.figures.replaceChildren(...words.listed(figures));
    this.everything.disabled = false; // detached parts are in no row and may need a stop
    this.none.hidden = runs.length > 0;
    this.#rows(runs);
    this.charts.replaceChildren(latency(told.stops), endings(told.minutes), ...legend(told.endings));
  }

  // Keep a run's row while the run lives, so that a button does not vanish under a finger.
  #rows(runs) {
    const old = new Map([...this.body.children].map((row) => [row.dataset.run, row]));
    for (const run of runs) {
      const row = old.get(run.id) ?? this.#row(run);
      old.delete(run.id);
      row.children[3].textContent = run.phase ? `${run.state}, ${run.phase}` : run.state;
      row.children[4].textContent = words.time(Date.now() / 1000 - run.admitted_at);
      this.body.append(row);
    }
    for (const row of old.values()) row.remove();
  }

  #row(run) {
    const stop =
      (params) =>
      async ({ target }) => {
        target.disabled = true;
        try {
          this.#proved([await this.link.request("interlock.stop", params)]);
        } catch (error) {
          this.problem.textContent = error.message;
          target.disabled = false;
        }
      };
    const buttons = [
      el("button", { type: "button", "aria-label": `Stop run ${run.id}`, onclick: stop({ run: run.id }) }, "Stop"),
      el(
        "button",
        { type: "button", "aria-label": `Stop session ${run.session}`, onclick: stop({ session: run.session }) },
        "Stop session",
      ),
    ];
    const link = (href, name) => el("a", { href }, name);
    const cells = [
      link(`#/s/${encodeURIComponent(run.session)}`, run.session),
      link(`#/run/${run.id}`, run.id),
      run.principal,
      "",
      "",
      run.text.slice(0, 80),
      buttons,
    ];
    return el("tr", { "data-run": run.id }, ...cells.map((cell) => el("td", {}, cell)));
  }

  async #stopEverything() {
    const body = [
      el(
        "p",
        {},
        "Every run of every session is stopped, and every waiting message with it. New messages are taken as before.",
      ),
    ];
    if (!(await ask({ title: "Stop everything?", body, action: "Stop everything now", danger: true }))) return;
    try {
      this.#proved(await this.link.request("interlock.stopall"));
    } catch (error) {
      this.problem.textContent = error.message;
    }
  }

  #proved(receipts) {
    const lines = receipts
      .filter((receipt) => receipt.aborted)
      .map((receipt) =>
        words.drawReceipt(el("details.receipt", { "data-receipt": receipt.id }), receipt, this.#session(receipt)),
      );
    this.#receipts = [
      ...(lines.length ? lines : [el("p.note", {}, "There was nothing to stop any more.")]),
      ...this.#receipts,
    ].slice(0, 20);
    this.proofs.replaceChildren(el("h3", {}, "Stopped from here"), ...this.#receipts);
    this.#soon();
  }
}

const sum = (counts) => Object.values(counts ?? {}).reduce((all, count) => all + count, 0);

// The label names the tallest bar's count, since the chart has no other scale.
const top = (most) => svg("text", { x: 410, y: 12, class: "tick last" }, `${most.toLocaleString("en")} at most`);

function chart(title, label, ...drawn) {
  return el(
    "figure",
    {},
    el("figcaption", {}, title),
    svg("svg", { viewBox: "0 0 420 160", role: "img", "aria-label": label }, ...drawn),
  );
}

function latency(stops) {
  const names = Object.keys(stops);
  const most = Math.max(1, ...names.flatMap((name) => stops[name].counts));
  const limits = stops[names[0]]?.limits ?? [];
  const wide = 400 / (limits.length + 1);
  const bars = names.flatMap((name, row) =>
    stops[name].counts.map((count, at) => {
      const tall = (count / most) * 110;
      const place = {
        x: 10 + at * wide + (row * wide) / (names.length + 0.5),
        y: 130 - tall,
        width: wide / (names.length + 0.5),
        height: tall,
        class: `series-${row}`,
      };
      return svg(
        "rect",
        place,
        svg("title", {}, `${name}: ${count} up to ${at < limits.length ? words.time(limits[at]) : "more"}`),
      );
    }),
  );
  const ticks = limits
    .map(
      (limit, at) => at % 2 === 0 && svg("text", { x: 10 + (at + 1) * wide, y: 145, class: "tick" }, words.time(limit)),
    )
    .filter(Boolean);
  const key = names.map((name, row) => svg("text", { x: 10 + row * 90, y: 12, class: `key-${row}` }, `■ ${name}`));
  const told = names.map(
    (name) =>
      `${name} ${stops[name].count} times, on average ${words.time(stops[name].total_seconds / Math.max(1, stops[name].count))}`,
  );
  return chart(
    "How fast stops were",
    `Stop latency: ${told.join("; ")}`,
    ...bars,
    svg("path", { d: "M10 130H410", class: "axis" }),
    top(most),
    ...ticks,
    ...key,
  );
}

function endings(minutes) {
  const most = Math.max(1, ...minutes.map((minute) => sum(minute.endings)));
  const last = minutes.at(-1)?.at ?? 0;
  const bars = minutes.flatMap((minute) => {
    let below = 130;
    const x = 404 - ((last - minute.at) / 60) * 6.6;
    return COLOURS.filter((name) => minute.endings[name]).map((name) => {
      const tall = (minute.endings[name] / most) * 110;
      below -= tall;
      return svg(
        "rect",
        { x, y: below, width: 5.6, height: tall, class: `ending-${name}` },
        svg("title", {}, `${words.clock(minute.at)}: ${minute.endings[name]} ${name}`),
      );
    });
  });
  const all = {};
  for (const minute of minutes)
    for (const [name, count] of Object.entries(minute.endings)) all[name] = (all[name] ?? 0) + count;
  const told =
    Object.entries(all)
      .map(([name, count]) => `${count} ${name}`)
      .join(", ") || "none";
  return chart(
    "Endings, by the minute",
    `Endings in the last hour: ${told}`,
    ...bars,
    svg("path", { d: "M10 130H410", class: "axis" }),
    top(most),
    svg("text", { x: 410, y: 145, class: "tick last" }, last ? words.clock(last) : ""),
  );
}

function legend(counts) {
  const items = COLOURS.filter((name) => counts[name]).map((name) =>
    el(
      "li",
      {},
      el(`span.swatch.ending-${name}`, { "aria-hidden": "true" }),
      `${counts[name].toLocaleString("en")} ${name.replace("_", " ")}`,
    ),
  );
  return items.length ? [el("ul.legend", { "aria-label": "Endings since the start" }, ...items)] : [];
}
