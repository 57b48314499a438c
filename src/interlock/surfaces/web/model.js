// The model of a session, made of its events. No DOM, no clock, no network.
//
// 1. A run that has ended is sealed: a later event of it changes nothing. Only its receipt and a correction may follow.
// 2. Blocks and the terminal event hold the lasting text; deltas, typing and progress count only while the run lives.
// 3. A run is known from its message or its start on; events of an unknown run change nothing.
// 4. A message stands where its turn began, not where it waited. A steered or collected one stands in the turn that
//    absorbed it.

import { EARLY } from "./endings.js";

// Change a part and raise its version, without which it would not be drawn again.
export function touch(part, change) {
  return Object.assign(part, change, { version: (part.version ?? 0) + 1 });
}

export class Run {
  constructor(id) {
    this.id = id;
    this.state = "queued"; // then running, ended or joined
    this.said = []; // its messages
    this.parts = []; // texts, tools, processes, questions and children, in order
    this.generation = null;
    this.outcome = null;
    this.receipt = null;
    this.typing = false;
    this.progress = null;
    this.phase = null;
    this.startedAt = null;
    this.corrected = false;
    this.version = 0; // rises with every change
  }

  get live() {
    return this.state === "queued" || this.state === "running";
  }

  // True if detached parts of the run are alive: a stop of the session still ends them.
  get leaves() {
    return this.parts.some(
      (part) =>
        part.detached &&
        ((part.kind === "process" && part.state === "running") || (part.kind === "child" && !part.outcome)),
    );
  }

  find(kind, test) {
    return this.parts.findLast((part) => part.kind === kind && test(part));
  }

  add(part) {
    this.parts.push(touch(part));
    return part;
  }
}

export class Conversation {
  constructor(session) {
    this.session = session;
    this.runs = new Map();
    this.order = []; // ids of runs that have begun
  }

  get live() {
    return [...this.runs.values()].filter((run) => run.live);
  }

  get busy() {
    return [...this.runs.values()].some((run) => run.live || run.leaves);
  }

  get running() {
    return this.live.find((run) => run.state === "running") ?? null;
  }

  // Take an event; return the runs that changed.
  take(event) {
    const { data, run_id: id } = event;
    if (data.type === "receipt") return this.#proved(data.receipt);
    if (data.type === "correction") return this.#corrected(data.outcome);
    let run = this.runs.get(id);
    if (!run && (data.type === "message" || data.type === "started")) this.runs.set(id, (run = new Run(id)));
    if (!run || run.state === "ended") return []; // unknown, or sealed
    run.version += 1;
    run.generation = event.generation ?? run.generation;
    const changed = [run];
    const known = HEARD[data.type];
    if (known) known(run, data, event, this, changed);
    return changed;
  }

  shows(id) {
    return (this.runs.get(id) ?? SEALED) !== SEALED;
  }

  // Return whether all of these are children of runs shown here.
  left(fallen) {
    const began = (run, id) => run.parts.some((part) => part.kind === "child" && part.id === id);
    return fallen.every(({ id }) => [...this.runs.values()].some((run) => began(run, id)));
  }

  // Add earlier runs before those that are known here.
  precede(older) {
    const before = older.order.filter((id) => !this.shows(id) && older.runs.get(id).state !== "joined");
    for (const id of before) this.runs.set(id, older.runs.get(id));
    this.order.unshift(...before);
    return before.map((id) => this.runs.get(id));
  }

  // Forget the oldest turns; their ids stay as SEALED, so that a late event of one draws nothing.
  forget(count) {
    const gone = this.order.splice(0, count).map((id) => this.runs.get(id));
    for (const run of gone) this.runs.set(run.id, SEALED);
    return gone;
  }

  began(run) {
    if (!this.order.includes(run.id)) this.order.push(run.id);
  }

  #proved(receipt) {
    const changed = [];
    for (const { id } of receipt.runs) {
      const run = this.runs.get(id);
      if (this.shows(id)) {
        run.receipt = receipt;
        if (run.outcome) run.outcome = { ...run.outcome, durable: receipt.durable };
        run.version += 1;
        changed.push(run);
      }
    }
    return changed;
  }

  #corrected(outcome) {
    const run = this.runs.get(outcome.run_id);
    if (!this.shows(outcome.run_id)) return [];
    Object.assign(run, { outcome, corrected: true, version: run.version + 1 });
    return [run];
  }
}

const SEALED = Object.freeze(Object.assign(new Run(""), { state: "ended" }));

const HEARD = {
  message(run, { text, by, of, child }, { at }, conversation, changed) {
    if (of && of !== run.id) {
      const taken = conversation.runs.get(of);
      if (taken) {
        Object.assign(taken, { state: "joined", version: taken.version + 1 });
        changed.push(taken);
      }
    }
    if (run.state === "running") run.add({ kind: "said", text, by, at, child });
    else run.said.push({ text, by, at, child });
  },

  started(run, _, { at }, conversation) {
    run.state = "running";
    run.startedAt = at;
    conversation.began(run);
  },

  delta(run, { text }) {
    const last = run.parts.at(-1);
    if (last?.kind === "text" && last.open) touch(last, { text: last.text + text });
    else run.add({ kind: "text", text, open: true });
    run.typing = false;
  },

  block(run, { text }) {
    const open = run.find("text", (part) => part.open);
    if (open) touch(open, { text, open: false });
    else run.add({ kind: "text", text, open: false });
    run.typing = false;
  },

  typing(run, { on }) {
    run.typing = on;
  },

  progress(run, { text, done, total }) {
    run.progress = { text, done: done ?? null, total: total ?? null };
  },

  phase(run, { name }) {
    run.phase = name;
  },

  tool(run, data, { at }) {
    const part =
      run.find("tool", (each) => each.call === data.call_id) ??
      run.add({ kind: "tool", call: data.call_id, since: at });
    if (data.state === "running") part.since = at;
    tool(part, data, at);
  },

  process(run, { command, state, name, pid, status, detached, tail }, { at }) {
    let part = null;
    if (state !== "running") {
      const going = (each) => each.state === "running" && each.command === command;
      part =
        run.parts.find((each) => each.kind === "process" && going(each) && each.pid === pid) ??
        run.parts.find((each) => each.kind === "process" && going(each));
    }
    part ??= run.add({ kind: "process", command, since: at, tail: "" });
    touch(part, {
      name,
      state,
      pid,
      status,
      detached,
      tail: tail || part.tail,
      until: state === "running" ? null : at,
    });
  },

  question(run, data, { at }) {
    const part =
      run.find("question", (each) => each.id === data.question_id) ??
      run.add({ kind: "question", id: data.question_id, since: at });
    const { text, state, choices, tool: wants, arguments: given, answer, by } = data;
    touch(part, { text, state, choices, tool: wants, arguments: given, answer, by });
  },

  child(run, { child, session, agent, detached, outcome }) {
    const part = run.find("child", (each) => each.id === child) ?? run.add({ kind: "child", id: child });
    touch(part, { session, agent, detached, outcome: outcome ?? null });
  },

  ended(run, { outcome, cut, tools = [], void: voided = [], children = [] }, { at }, conversation) {
    Object.assign(run, { state: "ended", outcome, typing: false, progress: null });
    const open = run.find("text", (part) => part.open);
    if (open) touch(open, { text: cut || open.text, open: false, cut: Boolean(cut) });
    else if (cut) run.add({ kind: "text", text: cut, open: false, cut: true });
    // An early end without `cut` has no such text: the fall dropped its deltas.
    if (open && !cut && EARLY.includes(outcome.ending)) run.parts.splice(run.parts.indexOf(open), 1);
    for (const data of tools) {
      const part =
        run.find("tool", (each) => each.call === data.call_id) ??
        run.add({ kind: "tool", call: data.call_id, since: at });
      tool(part, data, at);
    }
    for (const part of run.parts) {
      if (part.kind === "question" && (voided.includes(part.id) || part.state === "open"))
        touch(part, { state: "void" });
      if (part.kind === "process" && part.state === "running" && !part.detached)
        touch(part, { state: "ended", until: at });
    }
    for (const { child, agent, ending } of children) {
      const part = run.find("child", (each) => each.id === child) ?? run.add({ kind: "child", id: child, agent });
      if (!part.outcome) touch(part, { outcome: { run_id: child, ending } });
    }
    conversation.began(run);
  },
};

function tool(part, { name, state, arguments: given, result, error }, at) {
  const over = state !== "pending" && state !== "running";
  touch(part, {
    name,
    state,
    error: error ?? null,
    arguments: given ?? part.arguments ?? null,
    result: result ?? null,
    until: over ? at : null,
  });
}

// Return the position behind which a run's events come: ids and positions share boot and counter.
export function placeOf(run) {
  const found = /^r-([0-9a-f]+)-([0-9a-f]+)$/.exec(run);
  return found ? parseInt(found[1], 16) * 2 ** 32 + parseInt(found[2], 16) - 1 : 0;
}
