// Draws a conversation: messages, and runs with their parts. Nodes are made once and changed in place.
//
// 1. Only what the model holds is drawn, once a frame.
// 2. A part's node is made by its kind, and redrawn when the part's version changed.
// 3. A reader at the end stays at the end; a reader who scrolled up stays there.

import { data, el, plain, show, text } from "./dom.js";
import { EARLY } from "./endings.js";
import { touch } from "./model.js";
import { Growing } from "./text.js";
import * as words from "./words.js";

const NEAR = 120; // pixels from the end that count as the end
const TEXT = 4_000; // characters shown of an argument or a result

const clip = (value) =>
  value.length > TEXT ? `${value.slice(0, TEXT)}… (${words.many(value.length - TEXT, "more character")})` : value;

function pretty(json, cut = clip) {
  try {
    const value = JSON.parse(json);
    return plain(cut(typeof value === "string" ? value : JSON.stringify(value, null, 2)));
  } catch {
    return plain(cut(json));
  }
}

const PARTS = {
  said: () => {
    const node = el("article.said.taken");
    return { node, draw: (part) => node.childNodes.length || node.append(...said(part, "steered in")) };
  },

  text: () => {
    const growing = new Growing();
    return {
      node: growing.node,
      draw: (part) => {
        growing.draw(part.text, part.open);
        growing.node.classList.toggle("cut", Boolean(part.cut));
      },
    };
  },

  tool: () => {
    const name = el("strong");
    const state = el("span.state");
    const brief = el("code.brief");
    const given = el("pre", { tabindex: 0 });
    const result = el("pre.result", { tabindex: 0 });
    const node = el(
      "details.card.tool",
      {},
      el("summary", {}, el("span.icon", { "aria-hidden": "true" }, "⚙"), name, brief, state),
      given,
      result,
    );
    return {
      node,
      draw: (part) => {
        data(node, "state", part.state);
        text(name, plain(part.name));
        text(brief, plain((part.arguments ?? "").slice(0, 80)));
        text(given, part.arguments ? pretty(part.arguments) : "no arguments");
        const told = part.error ?? (part.result == null ? null : pretty(part.result));
        show(result, told != null);
        if (told != null) text(result, told);
        text(state, `${TOOL[part.state] ?? part.state}${took(part)}`);
      },
    };
  },

  process: () => {
    const command = el("code.brief");
    const state = el("span.state");
    const tail = el("pre.tail", { tabindex: 0, "aria-label": "what it wrote last" });
    const node = el(
      "details.card.process",
      { open: true },
      el("summary", {}, el("span.icon", { "aria-hidden": "true" }, "▸_"), command, state),
      tail,
    );
    return {
      node,
      draw: (part) => {
        data(node, "state", part.state);
        text(command, plain(part.command));
        show(tail, Boolean(part.tail));
        if (part.tail && tail.textContent !== part.tail) {
          tail.textContent = part.tail;
          tail.scrollTop = tail.scrollHeight;
        }
        const ended = part.state === "exited" ? `exit ${part.status}` : (PROCESS[part.state] ?? part.state);
        text(state, `${part.detached ? "detached, " : ""}${ended}${took(part)}`);
        if (part.state === "exited") data(node, "status", part.status === 0 ? "good" : "bad");
      },
    };
  },

  question: () => {
    const asked = el("p.asked");
    const about = el("pre", { tabindex: 0 });
    const buttons = el("div.answers");
    const state = el("p.state", { role: "status" });
    const node = el("section.card.question", { "aria-label": "Question" }, asked, about, buttons, state);
    return {
      node,
      draw: (part, on) => {
        data(node, "state", part.state);
        text(asked, plain(part.text));
        show(about, Boolean(part.tool));
        if (part.tool) text(about, `${plain(part.tool)} ${part.arguments ? pretty(part.arguments, (all) => all) : ""}`);
        if (!buttons.childNodes.length) {
          const answers = part.choices?.map((choice) => [choice, choice]) ?? [["Yes", true], ["No", false]];
          for (const [label, answer] of answers)
            buttons.append(el("button", { type: "button", onclick: () => on.answer(part, answer) }, plain(label)));
        }
        for (const button of buttons.children) button.disabled = part.state !== "open";
        text(state, answered(part));
      },
    };
  },

  child: () => {
    const name = el("strong");
    const state = el("span.state");
    const inside = el("div.inside");
    const node = el(
      "details.card.child",
      {},
      el("summary", {}, el("span.icon", { "aria-hidden": "true" }, "↳"), name, state),
      inside,
    );
    let view = null;
    return {
      node,
      draw: (part, on) => {
        const running = !part.outcome;
        data(node, "state", running ? "running" : "ended");
        text(name, part.agent ?? "child run");
        text(state, running ? (part.detached ? "runs on, detached" : "running") : words.ending(part.outcome));
        if (running && !node.dataset.seen) node.open = true;
        node.dataset.seen = "1";
        const unfold = () => {
          if (node.open) view ??= on.child(part.id, inside);
        };
        node.ontoggle = unfold;
        unfold();
      },
    };
  },
};

const TOOL = {
  pending: "waiting",
  running: "running",
  finished: "done",
  failed: "failed",
  skipped: "skipped, never ran",
  interrupted: "interrupted, effect unknown",
  abandoned: "abandoned, fenced off",
};
const PROCESS = { gone: "ended", running: "running", failed: "could not be started", ended: "ended with the run" };

const took = (part) =>
  part.until == null || part.state === "skipped" ? "" : ` · ${words.time(part.until - part.since)}`;

function answered(part) {
  if (part.state === "open") return "waits for your answer";
  if (part.state === "void") return "withdrawn: nobody wants the answer any more";
  if (part.state === "expired") return "expired; that counts as no";
  const answer = typeof part.answer === "string" ? part.answer : part.answer ? "yes" : "no";
  return `answered ${answer}${part.by ? ` by ${part.by}` : ""}`;
}

// Draw a message. An announcement has no author, so it stands under its child's id.
function said({ text: message, by, at, child }, note = "") {
  const from = child ? `child ${child}` : (by ?? "");
  const who = [from, note, at ? words.clock(at) : ""].filter(Boolean).join(" · ");
  return [el("p.who", {}, who), el("div.words", {}, message)];
}

// One run.
class RunView {
  #drawn = -1;
  #parts = new Map();
  #receipt = null;

  constructor(run, on, nested) {
    this.run = run;
    this.nested = nested;
    this.on = on;
    this.messages = el("div.messages");
    this.body = el("div.body");
    this.typing = el("p.typing", { role: "status" }, "typing", el("span", { "aria-hidden": "true" }, "…"));
    this.bar = el("progress", { "aria-label": "progress" });
    this.done = el("span.done");
    this.progress = el("p.progress", {}, this.bar, this.done);
    this.phase = el("span.phase");
    this.ending = el("span.ending");
    this.details = el(
      "button.more",
      { type: "button", "aria-label": `Details of run ${run.id}`, onclick: () => on.details(run) },
      "details",
    );
    this.retry = el("button.more", { type: "button", onclick: () => on.retry(run) }, "send again");
    this.foot = el("footer", {}, this.phase, this.ending, this.retry, this.details);
    this.article = el(
      "article.run",
      { "aria-label": `Run ${run.id}`, "data-run": run.id },
      this.body,
      this.typing,
      this.progress,
      this.foot,
    );
    this.node = el("div.turn", {}, this.messages, this.article);
  }

  draw() {
    const { run } = this;
    if (run.version === this.#drawn) return;
    this.#drawn = run.version;
    data(this.article, "state", run.state);
    if (run.outcome) data(this.article, "ending", run.outcome.ending);
    this.node.classList.toggle("hidden-turn", Boolean(run.outcome?.hidden));
    for (const message of run.said.slice(this.messages.childNodes.length)) {
      const from = this.nested ? { ...message, by: "its parent" } : message;
      this.messages.append(el("article.said", {}, ...said(from)));
    }
    const { children } = this.body;
    run.parts.forEach((part, index) => {
      let view = this.#parts.get(part);
      if (!view) this.#parts.set(part, (view = PARTS[part.kind]()));
      if (children[index] !== view.node) this.body.insertBefore(view.node, children[index] ?? null);
      if (view.version !== part.version) view.draw(part, this.on);
      view.version = part.version;
    });
    while (children.length > run.parts.length) children[run.parts.length].remove();
    show(this.typing, run.awaited);
    this.#drawProgress();
    this.#drawFoot();
    this.#drawReceipt();
  }

  #drawProgress() {
    const { progress } = this.run;
    show(this.progress, progress !== null);
    if (!progress) return;
    if (progress.total) Object.assign(this.bar, { max: progress.total, value: progress.done ?? 0 });
    else this.bar.removeAttribute("value");
    const part = progress.total ? `${progress.done ?? 0} of ${progress.total}` : "";
    text(this.done, [progress.text, part].filter(Boolean).join(" · "));
    this.bar.setAttribute("aria-label", progress.text || "progress");
  }

  #drawFoot() {
    const { run } = this;
    text(
      this.phase,
      run.state === "running" && run.phase ? `in phase ${run.phase}` : run.state === "queued" ? "waiting" : "",
    );
    const { outcome } = run;
    const told = outcome && (outcome.ending !== "completed" || run.corrected);
    const notes = [
      run.corrected ? "corrected" : "",
      outcome?.hidden ? "rolled back: the agent does not see this turn" : "",
      outcome?.durable === false ? "not yet on disk" : "",
    ];
    const silent = outcome?.ending === "completed" && !run.parts.length && run.startedAt; // a note never starts
    if (silent) text(this.ending, "completed, and said nothing");
    else
      text(this.ending, told || outcome?.hidden ? [words.ending(outcome), ...notes].filter(Boolean).join(" · ") : "");
    show(this.retry, outcome?.ending === "lost" && run.said.length > 0);
  }

  #drawReceipt() {
    const { receipt, id } = this.run;
    // A receipt of several runs is drawn with the first of them.
    if (!receipt || !EARLY.includes(receipt.cause) || receipt.runs[0].id !== id) return;
    if (!this.#receipt) this.article.after((this.#receipt = el("details.receipt")));
    words.drawReceipt(this.#receipt, receipt);
  }
}

// A list of runs: a session's conversation, or a child's.
export class ConversationView {
  #views = new Map();
  #frame = 0;
  #dirty = new Set();
  #stay = true; // at the end, until the reader scrolls up
  #top = 0;
  #grown = null;
  #loose = new Map(); // by receipt

  constructor(model, on, { scroller = null } = {}) {
    this.model = model;
    this.on = on;
    this.scroller = scroller;
    this.turns = el("div.turns");
    this.waiting = el("div.waiting");
    this.nodes = [this.turns, this.waiting];
    if (!scroller) return;
    scroller.onscroll = () => this.#scrolled();
    this.#grown = new ResizeObserver(() => this.#stay && this.toEnd());
    for (const node of [scroller, ...this.nodes]) this.#grown.observe(node);
  }

  take(event) {
    if (event.data.type === "gap")
      this.turns.append(el("p.note", {}, "The server was started again here; what was only shown live is gone."));
    if (event.data.type === "receipt") this.loose(event.data.receipt, true);
    for (const { run } of this.model.take(event)) this.#dirty.add(run);
    this.#soon();
  }

  // Draw the receipt of a stop that ended only detached parts, so that no run shown here has it. It stands where it
  // came first, in the stop's answer or in the log, and is redrawn as it grows.
  loose(receipt, told = false) {
    const known = this.#loose.get(receipt.id);
    if (receipt.runs?.some(({ id }) => this.model.runs.has(id))) return;
    if (!known && !(told ? receipt.cause === "stopped" && this.model.left(receipt.runs) : receipt.aborted)) return;
    const drawn = known ?? { node: el("details.receipt"), told };
    if (told || !drawn.told) words.drawReceipt(drawn.node, receipt);
    drawn.told ||= told;
    if (!known) this.turns.append(drawn.node);
    this.#loose.set(receipt.id, drawn);
  }

  // Change a part of a run by an answer instead of an event.
  amend(run, part, change) {
    touch(part, change);
    run.version += 1;
    this.#dirty.add(run);
    this.#soon();
  }

  close() {
    this.#grown?.disconnect();
    cancelAnimationFrame(this.#frame);
    this.#frame = -1; // keeps #soon from drawing
  }

  #soon() {
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = 0;
    const runs = [...this.#dirty];
    this.#dirty.clear();
    for (const run of runs) {
      try {
        this.#drawRun(run);
      } catch (error) {
        reportError(error); // go on: the other runs and the stop button must be drawn
      }
    }
    if (this.#stay) this.toEnd();
    this.on.drawn?.();
  }

  #drawRun(run) {
    let view = this.#views.get(run);
    if (run.state === "joined") {
      view?.node.remove();
      return;
    }
    if (!view) this.#views.set(run, (view = new RunView(run, this.on, this.scroller === null)));
    const home = run.state === "queued" ? this.waiting : this.turns;
    if (view.node.parentNode !== home) this.#put(home, view.node, run);
    view.draw();
  }

  // Insert a turn in the order in which turns began.
  #put(home, node, run) {
    const { order, runs } = this.model;
    const later =
      home === this.turns &&
      order
        .slice(order.indexOf(run.id) + 1)
        .map((id) => this.#views.get(runs.get(id))?.node)
        .find((each) => each?.parentNode === home);
    home.insertBefore(node, later || null);
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const left = scrollHeight - scrollTop - clientHeight;
    // Only scrolling up leaves the end; a text that grows below does not.
    if (left < 2 || (left < NEAR && scrollTop > this.#top)) this.#stay = true;
    else if (scrollTop < this.#top) this.#stay = false;
    this.#top = scrollTop;
    this.on.scrolled?.(this.#stay);
  }

  toEnd() {
    this.#stay = true;
    if (this.scroller) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  // Add earlier runs, oldest first, and keep what the reader sees in its place.
  prepend(older) {
    const box = this.scroller;
    const height = box.scrollHeight;
    const nodes = [];
    for (const run of this.model.precede(older)) {
      const view = new RunView(run, this.on);
      this.#views.set(run, view);
      view.draw();
      nodes.push(view.node);
    }
    this.turns.prepend(...nodes);
    box.scrollTop += box.scrollHeight - height;
  }

  // Drop the oldest turns of a very long conversation while the reader is at its end.
  shorten(most, kept) {
    if (!this.#stay || this.model.order.length <= most) return false;
    for (const run of this.model.forget(this.model.order.length - kept)) {
      this.#views.get(run)?.node.remove();
      this.#views.delete(run);
    }
    return true;
  }
}
