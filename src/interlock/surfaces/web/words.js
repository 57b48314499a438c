// Words for people: endings by the server's table (core/projection), receipts in a line, durations.

import { el } from "./dom.js";
import { ENDINGS, WHOSE } from "./endings.js";

const WHY = 200; // characters of an error, as on every surface

export function time(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "";
  const ms = seconds * 1000;
  if (ms < 9.95) return `${Math.max(0, ms).toFixed(1).replace(".0", "")} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1).replace(".0", "") : Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export function clock(at) {
  const then = new Date(at * 1000);
  const day = then.toDateString() === new Date().toDateString() ? "" : `${then.toLocaleDateString()} `;
  return day + then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function many(count, one, more = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : more}`;
}

function limit(ms) {
  for (const [unit, word] of [
    [3_600_000, "h"],
    [60_000, "min"],
    [1_000, "s"],
  ]) {
    if (ms && ms % unit === 0) return `${ms / unit} ${word}`;
  }
  return ms > 1_000 ? `${ms / 1000} s` : `${ms} ms`;
}

function firstLine(words) {
  const letters = [...words.trimStart().slice(0, 2 * WHY + 2)].slice(0, WHY + 1).join("");
  const line = [...(letters.split(/[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/)[0] ?? "").trimEnd()];
  return line.length <= WHY ? line.join("") : `${line.slice(0, WHY - 1).join("")}…`;
}

// Return how a run ended, in the words that every surface uses.
export function ending(outcome) {
  const why = firstLine(outcome.error ?? "");
  const fill = {
    by: outcome.by ? ` by ${outcome.by}` : "",
    unseen: outcome.born_stopped ? " before it came" : "",
    successor: outcome.superseded_by
      ? ` by ${outcome.superseded_by}`
      : outcome.unkept
        ? " by a message that was not kept"
        : "",
    after: outcome.limit_ms != null ? ` after ${limit(outcome.limit_ms)}` : "",
    phase: outcome.phase ? ` in phase ${outcome.phase}` : "",
    whose: WHOSE[outcome.limit_of] ?? "",
    why: why ? `: ${why}` : "",
    text: "",
    receipt: "",
  };
  return (ENDINGS[outcome.ending] ?? outcome.ending).replace(/\{(\w+)\}/g, (_, name) => fill[name] ?? "");
}

const bare = (outcome) => (ENDINGS[outcome] ?? outcome).replace(/\{\w+\}/g, "");
const sum = (counts) => Object.values(counts ?? {}).reduce((all, count) => all + count, 0);

// Return a receipt as parts of a line, each with whether it is a warning.
export function receipt(proof) {
  const { processes = {}, tools = [], unconfirmed = [] } = proof;
  const states = (state) => tools.filter((tool) => tool.state === state).length;
  const took = proof.drained_at == null ? null : proof.drained_at - proof.fenced_at;
  const line = [];
  const put = (words, warning = false) => line.push({ words, warning });
  const quick = proof.ended_at == null ? null : time(proof.ended_at - proof.fenced_at);
  const within = proof.cause === "stopped" || proof.cause === "superseded"; // "timed out in 5 ms" would name a limit
  put(quick && within ? `${bare(proof.cause)} in ${quick}` : bare(proof.cause));
  if (quick && !within && proof.cause !== "lost") put(`ended in ${quick}`);
  if (states("skipped")) put(`${many(states("skipped"), "tool")} skipped`);
  if (states("interrupted")) put(`${many(states("interrupted"), "tool")} interrupted, effect unknown`, true);
  if (states("abandoned")) put(`${many(states("abandoned"), "tool")} abandoned, still running but fenced off`, true);
  if (processes.ended)
    put(`${many(processes.ended, "process", "processes")} ended${took == null ? "" : ` in ${time(took)}`}`);
  if (processes.stuck) put(`${many(processes.stuck, "process", "processes")} stuck`, true);
  if (processes.detached) put(`${many(processes.detached, "detached process", "detached processes")} left running`);
  if (proof.host === "killed") put("the agent's process ended");
  if (proof.kept?.length) put(`${many(proof.kept.length, "idle process", "idle processes")} kept with the agent's`);
  if (proof.runs.length > 1 + (proof.queued ?? 0))
    put(`${many(proof.runs.length - 1 - (proof.queued ?? 0), "child run")} ended`);
  if (proof.questions) put(`${many(proof.questions, "question")} withdrawn`);
  if (proof.queued) put(`${many(proof.queued, "waiting message")} ended`);
  if (proof.holds) put(`${many(proof.holds, "hold")} freed`);
  if (sum(proof.refused)) put(`${many(sum(proof.refused), "later effect")} refused`);
  if (proof.in_flight) put(`${many(proof.in_flight, "send")} already on the way`, true);
  if (proof.drain === "pending") put("draining…");
  else if (proof.drain === "unconfirmed") put(`not confirmed: ${unconfirmed.join(", ") || "a bound ran out"}`, true);
  else if (states("interrupted") || states("abandoned")) put("nothing else left");
  else if (!proof.in_flight && proof.cause !== "lost") put("0 effects after"); // after a crash there is no count
  if (!proof.durable) put("not yet on disk", true);
  return line;
}

// Draw that line, with everything the receipt says to be unfolded.
export function drawReceipt(node, proof, ...head) {
  const parts = receipt(proof).map(({ words, warning }) => el(warning ? "span.warning" : "span", {}, words));
  const line = [...head, ...parts].flatMap((part, index) => (index ? [" · ", part] : [part]));
  node.dataset.drain = proof.drain;
  const [summary, list] = node.children.length ? node.children : [el("summary"), el("dl")];
  summary.replaceChildren(...line);
  list.replaceChildren(...listed(facts(proof)));
  if (!node.children.length) node.append(summary, list);
  return node;
}

export const listed = (rows) => rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]);

// A server that goes down right after a stop leaves no time at which the end was published.
const untold = (proof) => (proof.drain === "pending" ? "not yet told" : "not known when: the server went down");

// Return everything a receipt says, as names and values.
export function facts(proof) {
  const rows = [
    ["receipt", proof.id ?? "none"],
    ["cause", proof.by ? `${bare(proof.cause)} by ${proof.by}` : bare(proof.cause)],
    ["fenced at", clock(proof.fenced_at)],
    ["ended", proof.ended_at == null ? untold(proof) : `${time(proof.ended_at - proof.fenced_at)} later`],
    [
      "drained",
      proof.drain === "pending"
        ? "not yet"
        : proof.drained_at == null
          ? proof.drain
          : `${time(proof.drained_at - proof.fenced_at)} later (${proof.drain})`,
    ],
    ["on disk", proof.durable ? "yes" : "not yet"],
    ["grade", proof.grade],
    ["runs", proof.runs.map((run) => `${run.id} (${run.body})`).join(", ")],
  ];
  const counts = Object.entries(proof.refused ?? {}).map(([kind, count]) => `${count} × ${kind}`);
  if (counts.length) rows.push(["refused afterwards", counts.join(", ")]);
  if (proof.tools.length) rows.push(["tools", proof.tools.map((tool) => `${tool.name}: ${tool.state}`).join(", ")]);
  const { ended = 0, stuck = 0, detached = 0 } = proof.processes ?? {};
  if (ended || stuck || detached) rows.push(["processes", `${ended} ended, ${stuck} stuck, ${detached} detached`]);
  if (proof.host !== "none") rows.push(["agent's process", proof.host === "killed" ? "ended" : proof.host]);
  if (proof.kept?.length) rows.push(["kept with it", proof.kept.join(", ")]);
  for (const name of ["questions", "queued", "holds", "in_flight"]) {
    if (proof[name]) rows.push([name.replace("_", " "), String(proof[name])]);
  }
  if (proof.unconfirmed?.length) rows.push(["not confirmed", proof.unconfirmed.join(", ")]);
  if (proof.unseen?.length) rows.push(["not seen at this grade", proof.unseen.join("; ")]);
  return rows;
}
