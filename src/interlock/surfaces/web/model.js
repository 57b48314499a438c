// The model of a session, made of its events, as core/story.py makes it. No DOM, no clock, no network.
//
// 1. A run that has ended is sealed: a later event of it changes nothing. Only its receipt and a correction may follow.
// 2. Blocks and the terminal event hold the lasting text; deltas, typing and progress count only while the run lives.
// 3. An end is told as all that it closes (calls, questions, children, typing), and then itself.
// 4. A run is known from its message or its start on; events of an unknown run change nothing.
// 5. A message stands where its turn began, not where it waited. A steered or collected one stands in the turn that
//    absorbed it.

const PASSING = ["delta", "typing", "progress"];

// Change a part and raise its version, without which it would not be drawn again.
export function touch(part, change) {
  return Object.assign(part, change, { version: (part.version ?? 0) + 1 });
}

// One run, as its events tell it.
export class Story {
  constructor(id) {
    this.id = id;
    this.state = "queued"; // then running, ended or joined
    this.said = []; // its messages
    this.parts = []; // texts, tools, processes, questions and children, in order
    this.generation = null;
    this.outcome = null;
    this.receipt = null;
    this.typing = false;
    this.awaited = false; // typing is on, and no text has come since
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

  // Take an event of the run; return what it changed: what it closes, and then itself.
  take(event) {
    const { data } = event;
    if (this.state === "ended") return [];
    this.version += 1;
    this.generation = event.generation ?? this.generation;
    const changes = data.type === "ended" ? [...this.#closed(data), data] : [data];
    for (const change of changes) HEARD[change.type]?.(this, change, event);
    return changes;
  }

  #closed({ tools = [], void: voided = [], children = [] }) {
    const open = this.parts.filter(
      ({ kind, id, state }) => kind === "question" && (state === "open" || voided.includes(id)),
    );
    const ends = children.map(({ child, agent, ending }) => {
      const begun = this.find("child", ({ id }) => id === child) ?? { agent };
      return { ...begun, type: "child", child, outcome: begun.outcome ?? { run_id: child, ending } };
    });
    const questions = open.map((part) => ({ ...part, type: "question", question_id: part.id, state: "void" }));
    return [...tools, ...questions, ...ends, ...(this.typing ? [{ type: "typing", on: false }] : [])];
  }
}

export class Conversation {
  constructor(session) {
    this.session = session;
    this.runs = new Map();
    this.order = []; // ids of runs that have begun
    this.generation = 0; // the lowest whose passing events still count
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

  // Take an event; return what it changed, each with its run.
  take(event) {
    const { data, run_id: id, generation } = event;
    if (data.type === "receipt") return this.#proved(data);
    if (data.type === "correction") return this.#corrected(data);
    let run = this.runs.get(id);
    if (!run && (data.type === "message" || data.type === "started")) this.runs.set(id, (run = new Story(id)));
    const late = generation < this.generation && PASSING.includes(data.type);
    const changed = run && !late ? run.take(event).map((change) => ({ run, data: change })) : [];
    if (!changed.length) return changed;
    if (data.type === "started" || data.type === "ended") {
      this.generation = Math.max(this.generation, (generation ?? 0) + (data.type === "ended"));
      this.began(run);
    }
    if (data.type === "message" && data.of !== id && this.shows(data.of))
      changed.push({ run: touch(this.runs.get(data.of), { state: "joined" }), data });
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

  #proved(data) {
    const { receipt } = data;
    const runs = receipt.runs.filter(({ id }) => this.shows(id)).map(({ id }) => this.runs.get(id));
    return runs.map((run) => {
      if (run.outcome) run.outcome = { ...run.outcome, durable: receipt.durable };
      return { run: touch(run, { receipt }), data };
    });
  }

  #corrected(data) {
    const { outcome } = data;
    const run = this.runs.get(outcome.run_id);
    return run?.outcome ? [{ run: touch(run, { outcome, corrected: true }), data }] : [];
  }
}

const SEALED = Object.freeze(Object.assign(new Story(""), { state: "ended" }));

const HEARD = {
  message(run, { text, by, child }, { at }) {
    if (run.state === "running") run.add({ kind: "said", text, by, at, child });
    else run.said.push({ text, by, at, child });
  },

  started(run, _, { at }) {
    run.state = "running";
    run.startedAt = at;
  },

  delta(run, { text }) {
    const open = run.find("text", (part) => part.open);
    if (open) touch(open, { text: open.text + text });
    else run.add({ kind: "text", text, open: true });
    run.awaited = false;
  },

  block(run, { text }) {
    const open = run.find("text", (part) => part.open);
    if (open) touch(open, { text, open: false });
    else run.add({ kind: "text", text, open: false });
    run.awaited = false;
  },

  typing(run, { on }) {
    run.typing = run.awaited = on;
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

  process(run, { command, state, name, pid, status, background, detached, tail }, { at }) {
    const going = run.parts.filter(
      (part) => part.kind === "process" && part.state === "running" && part.command === command,
    );
    const alike = going.filter((part) => part.name === name && part.background === background);
    const begun = state === "running" ? null : (alike.find((part) => part.pid === pid) ?? alike[0]);
    const part = begun ?? run.add({ kind: "process", command, since: at, tail: "" });
    const until = state === "running" ? null : at;
    touch(part, { name, state, pid, status, background, detached, tail: tail || part.tail, until });
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

  ended(run, { outcome, cut }, { at }) {
    Object.assign(run, { state: "ended", outcome, progress: null });
    const open = run.find("text", (part) => part.open);
    if (open && cut) touch(open, { text: cut, open: false, cut: true });
    else if (cut) run.add({ kind: "text", text: cut, open: false, cut: true });
    else if (open) run.parts.splice(run.parts.indexOf(open), 1); // the end has no such text
    for (const part of run.parts)
      if (part.kind === "process" && part.state === "running" && !part.detached)
        touch(part, { state: "ended", until: at });
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

// Return the run that came first: ids hold the boot and a counter, which only rise.
export function earliest(runs) {
  const order = (run) => run.split("-").slice(1).map((part) => parseInt(part, 16));
  const before = ([boot, number], [other, last]) => boot - other || number - last;
  return runs.toSorted((one, other) => before(order(one), order(other)))[0] ?? null;
}
