// One open session: its earlier turns, its live events, and the messages that are sent to it.
//
// 1. The session is watched from the position up to which it was read. If it does not exist yet, or belongs to somebody
//    else, the chat watches the runs that were begun here.
// 2. Looking back reads whole turns: those that the list names and the page does not show, up to their ends.
// 3. A closed chat draws nothing: an answer that comes late for it changes nothing in the page.

import { ConversationView } from "./conversation.js";
import { $, el, plain, show, text } from "./dom.js";
import { Failed } from "./link.js";
import { Conversation, earliest } from "./model.js";

const LATEST = 40; // turns shown at first, and added by each look back
const MOST = 400; // turns kept; beyond it the older half is dropped, and can be looked back at
const SLOW_MS = 200; // an answer later than this shows the message as being sent
const TAIL_MS = 700; // between two reads of a running process's output
const PATIENCE_MS = 10_000; // for a look back

const newKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");

export class Chat {
  #watch = null;
  #watches = new Set();
  #cursor = null; // into the list of turns, from the newest
  #first = null; // the run with which the shown turns begin
  #children = []; // views
  #unanswered = new Set(); // keys of messages without an answer
  #stopped = new Set(); // keys of those that a stop meant, which are not sent again
  #mine = []; // runs begun here in a session that is not watched yet
  #seen = false; // an event of the session came, so this person may see it
  #closed = false;
  #opening = true;
  #asking = false;
  why = "";
  lost = false; // the session was shared, and is not any more
  stopping = -Infinity; // when a stop was pressed that has no answer yet

  constructor(page, session) {
    this.page = page;
    this.session = session;
    this.model = new Conversation(session);
    this.on = {
      answer: (question, answer) => this.#answer(question, answer),
      child: (id, home) => this.#child(id, home),
      details: (run) => page.details(run),
      retry: (run) => page.giveBack(run.said.map((message) => message.text).join("\n"), session),
      drawn: () => this.#drawn(),
      scrolled: (atEnd) => show($("newest"), !atEnd),
    };
    this.view = new ConversationView(this.model, this.on, { scroller: $("log") });
    this.pending = el("div.pending");
    $("log").replaceChildren($("earlier"), $("empty"), ...this.view.nodes, this.pending);
    $("earlier").disabled = false;
    show($("earlier"), false);
    show($("newest"), false);
    this.ticking = setInterval(() => this.#look(), TAIL_MS);
    this.#load();
  }

  get busy() {
    if (this.lost) return false; // this person can stop nothing there
    const own = this.#unanswered.size > 0 || this.model.busy || this.#children.some((view) => view.model.busy);
    return own || this.page.sessions.busy(this.session);
  }

  get empty() {
    return !this.#opening && this.model.runs.size === 0 && !this.pending.childNodes.length;
  }

  close() {
    this.#closed = true;
    clearInterval(this.ticking);
    this.#watch?.stop();
    for (const watch of this.#watches) watch.stop();
    this.view.close();
  }

  #drawn() {
    if (this.view.shorten(MOST, MOST / 2)) {
      this.#cursor = String(MOST / 2); // `earlier` leaves out the turns that are shown
      this.#first = this.model.order[0];
      this.#children = this.#children.filter((view) => view.turns.isConnected);
      show($("earlier"), true);
    }
    this.page.refresh();
  }

  // Earlier turns

  async #load() {
    const { link } = this.page;
    try {
      const [told, live] = await Promise.all([
        link.request("tasks.list", { sessionKey: this.session, limit: LATEST }, { again: true }),
        link.request("interlock.runs", {}, { again: true }), // live runs are shown however old they are
      ]);
      if (this.#closed) return;
      const shown = [...told.tasks.slice(-1), ...live.filter((run) => link.name(run.session) === this.session)];
      this.#cursor = told.nextCursor ?? null;
      this.#first = earliest(shown.map((run) => run.id));
      this.#follow();
    } catch (error) {
      this.why = error.message;
    }
    if (this.#closed) return;
    this.#opening = false;
    show($("earlier"), this.#cursor !== null);
    this.page.refresh();
  }

  #follow() {
    if (this.#watch || this.#closed) return;
    const event = (each) => {
      this.#seen = true;
      this.lost = false;
      this.#mine.length = 0;
      this.view.take(each);
    };
    const over = (error) => {
      this.#watch = null;
      if (error?.code === "NOT_FOUND" && this.#seen) return this.#lose();
      for (const run of this.#mine.splice(0)) this.#watches.add(this.page.link.watch({ run }, 0, { event }));
      if (error && error.code !== "NOT_FOUND") this.page.notice(`This session is no longer followed: ${error.message}`);
    };
    this.#watch = this.page.link.watch({ session: this.session, begin: this.#first }, 0, { event, over });
  }

  // The share was taken back: the turns stay in the page, and nothing more is requested.
  #lose() {
    this.#seen = false;
    this.lost = true;
    this.page.notice("You no longer have access to this session.");
    this.page.sessions.forget(this.session);
  }

  // Take an outline event: the session's first message from another device, or the end of a detached child.
  heard({ session, run_id: id, data: told }) {
    if (told.type === "ended") this.#childEnded(id, told.outcome);
    if (this.page.link.name(session) === this.session && told.type === "message" && !this.#opening) this.#follow();
  }

  async earlier() {
    if (this.#cursor === null || $("earlier").disabled) return;
    $("earlier").disabled = true;
    try {
      while (this.#cursor !== null && !this.#closed) {
        const told = await this.page.link.request("tasks.list", {
          sessionKey: this.session,
          limit: LATEST,
          cursor: this.#cursor,
        });
        const missing = told.tasks.map((task) => task.id).filter((id) => !this.model.shows(id));
        const older = missing.length ? await this.#read(missing) : null;
        if (this.#closed) return;
        this.#cursor = told.nextCursor ?? null;
        if (!older) continue; // every turn of this page is shown: newer turns have shifted the list
        this.view.prepend(older);
        this.#first = earliest([...missing, ...(this.#first ? [this.#first] : [])]);
        break;
      }
    } catch (error) {
      this.page.notice(error.message);
    }
    if (this.#closed) return;
    $("earlier").disabled = false;
    show($("earlier"), this.#cursor !== null);
  }

  // Return these runs, up to their ends, as a conversation. Events that are no longer kept are not waited for.
  #read(ids) {
    const older = new Conversation(this.session);
    const wanted = new Set(ids);
    return new Promise((resolve, reject) => {
      const done = () => {
        clearTimeout(timer);
        watch.stop();
        this.#watches.delete(watch);
        resolve(older);
      };
      const event = (each) => {
        if (wanted.has(each.run_id) || each.data.type === "receipt") older.take(each);
        if (each.data.type === "ended") wanted.delete(each.run_id);
        if (!wanted.size) done();
      };
      const timer = setTimeout(
        () => (older.order.length ? done() : reject(new Failed({ message: "earlier messages did not come in time" }))),
        PATIENCE_MS,
      );
      const over = (error) => reject(error ?? new Failed());
      const watch = this.page.link.watch({ session: this.session, begin: earliest(ids) }, 0, { event, over });
      this.#watches.add(watch);
    });
  }

  // Sending, stopping, answering

  async send(message, way) {
    const key = newKey();
    const note = el(
      "article.said",
      { "data-state": "sending" },
      el("p.who", {}, "sending…"),
      el("div.words", {}, message),
    );
    const slow = setTimeout(() => {
      this.pending.append(note);
      this.view.toEnd();
    }, SLOW_MS);
    this.view.toEnd();
    this.#unanswered.add(key);
    const still = () => !this.#stopped.has(key);
    this.page.refresh();
    try {
      const params = { sessionKey: this.session, message, idempotencyKey: key, queueMode: way };
      const method = way === "rollback" ? "interlock.chat" : "chat.send"; // chat.send has no word for rollback
      const told = await this.page.link.request(method, params, { again: true, still });
      if (told.runId) this.#mine.push(told.runId); // until the session's own watch has an event
      if (told.runId && !this.#opening) this.#follow();
      if (told.aborted) text($("spoken"), "Stopped");
      else if ("aborted" in told) this.page.notice(this.unstopped());
    } catch (error) {
      this.page.notice(`Not sent: ${error.message}`);
      this.page.giveBack(message, this.session);
    } finally {
      this.#unanswered.delete(key);
      this.#stopped.delete(key);
      clearTimeout(slow);
      note.remove();
      this.page.refresh();
    }
  }

  // Return why a stop ended nothing: nothing runs, or only runs of others, which this person may not stop.
  unstopped() {
    const others = new Set(this.model.live.flatMap((run) => run.said.map((message) => plain(message.by))));
    if (!others.size) return "There was nothing to stop any more.";
    return `Not stopped: nothing of yours runs here. What runs is of ${[...others].join(", ")}; its sender or the session’s owner can stop it.`;
  }

  async stop(runs) {
    const { link } = this.page;
    const keys = [...this.#unanswered]; // the stop means no message that is sent later
    for (const key of keys) this.#stopped.add(key);
    try {
      return await link.request("interlock.stop", { session: this.session });
    } catch (error) {
      if (error.code !== "LOST") throw error;
      // There was no connection, or it was lost before the answer. Stop by name the runs and the messages of the moment
      // of the press: a stop of the session would end newer ones too. Messages that wait are stopped first, since one
      // of them would begin when the run before it has ended.
      const named = [...keys.map((key) => ({ message: key })), ...runs.map((run) => ({ run })).reverse()];
      if (!named.length) throw error;
      const receipts = await Promise.all(named.map((name) => link.request("interlock.stop", name, { again: true })));
      return receipts.find((receipt) => receipt.aborted) ?? receipts[0] ?? { aborted: false };
    }
  }

  async #answer(question, answer) {
    $("message").focus(); // the pressed button will be disabled
    try {
      await this.page.link.request("interlock.answer", { question: question.id, answer });
    } catch (error) {
      this.page.notice(`Not answered: ${error.message}`);
    }
  }

  // Children, output of processes, and what an ended run left detached

  #child(id, home) {
    const view = new ConversationView(new Conversation(id), this.on);
    this.#children.push(view);
    home.append(...view.nodes);
    const over = (error) => error && home.append(el("p.note", {}, error.message));
    this.#watches.add(this.page.link.watch({ run: id }, 0, { event: (event) => view.take(event), over }));
    return view;
  }

  #childEnded(id, outcome) {
    for (const view of [this.view, ...this.#children]) {
      for (const run of view.model.runs.values()) {
        const part = run.parts.find((each) => each.kind === "child" && each.id === id && !each.outcome);
        if (part) view.amend(run, part, { outcome });
      }
    }
  }

  async #look() {
    const views = [this.view, ...this.#children];
    const going = (run) => run.leaves || run.parts.some((part) => part.kind === "process" && part.state === "running");
    const wanted = views.some((view) => [...view.model.runs.values()].some(going));
    if (!wanted || this.#asking || document.hidden || this.page.link.state !== "connected") return;
    this.#asking = true;
    const rows = await this.page.link.request("interlock.processes", { session: this.session }).catch(() => null);
    if (rows && !this.#closed) {
      for (const view of views) this.#tails(view, rows);
      await this.#leftovers(rows);
    }
    this.#asking = false;
  }

  #tails(view, rows) {
    for (const row of rows) {
      const run = view.model.runs.get(row.run_id);
      const running =
        run?.parts.filter(
          (part) => part.kind === "process" && part.state === "running" && part.command === row.command,
        ) ?? [];
      const part = running.find((each) => each.pid === row.pid) ?? running.find((each) => each.pid == null);
      if (!part || (run.state === "ended" && !part.detached)) continue;
      part.pid ??= row.pid;
      if (row.tail && row.tail !== part.tail) view.amend(run, part, { tail: row.tail });
    }
  }

  // A detached part has no event when it ends after its run, so it is asked for while it lasts.
  async #leftovers(rows) {
    for (const run of [...this.model.runs.values()].filter((each) => each.state === "ended" && each.leaves)) {
      for (const part of run.parts.filter((each) => each.detached)) {
        const there = rows.some((row) => row.run_id === run.id && row.command === part.command);
        if (part.kind === "process" && part.state === "running" && !there)
          this.view.amend(run, part, { state: "gone" });
        if (part.kind !== "child" || part.outcome) continue;
        const info = await this.page.link.request("interlock.find", { name: part.id }).catch(() => null);
        if (info?.outcome) this.#childEnded(part.id, info.outcome);
      }
    }
  }
}
