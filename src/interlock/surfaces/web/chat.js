// One session, open: what was said before, what is said now, and the words that go out.
//
// 1. It is watched from where it was read. A session that does not exist yet, or is somebody else's, is followed as far
//    as one may: by the runs that were begun here.
// 2. Looking back reads whole turns: those the list names and that are not shown, up to their ends.
// 3. What was left by another chat's late answer changes nothing here: a closed chat is silent.

import { ConversationView } from "./conversation.js";
import { $, el, plain, show, text } from "./dom.js";
import { Failed } from "./link.js";
import { Conversation, placeOf } from "./model.js";

const LATEST = 40; // turns shown at first, and added by each look back
const MOST = 400; // turns kept; of more, half are let go and can be looked back at
const SLOW_MS = 200; // an answer later than this is told as waiting
const TAIL_MS = 700; // how often a running process is asked what it wrote
const PATIENCE_MS = 10_000; // for what a look back waits for

const newKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");

export class Chat {
  #watch = null;
  #watches = new Set();
  #cursor = null; // of the list of turns, from the newest
  #first = 0; // the position that what is shown begins behind
  #children = []; // views
  #unanswered = new Set(); // keys of messages on their way
  #stopped = new Set(); // those of them that a stop meant: they are not sent again
  #mine = []; // runs we began in a session that did not exist, or is somebody else's
  #seen = false; // something of it was told, so it is there for us
  #closed = false;
  #opening = true;
  #asking = false;
  why = "";
  lost = false; // it was shared, and is not any more
  stopping = -Infinity; // when a stop was pressed that is not answered yet

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
    if (this.lost) return false; // nobody here can stop what runs there
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
      this.#cursor = String(MOST / 2); // what is shown of that page is left out
      this.#first = placeOf(this.model.order[0]);
      this.#children = this.#children.filter((view) => view.turns.isConnected);
      show($("earlier"), true);
    }
    this.page.refresh();
  }

  // What was said before

  async #load() {
    const { link } = this.page;
    try {
      const [told, live] = await Promise.all([
        link.request("tasks.list", { sessionKey: this.session, limit: LATEST }, { again: true }),
        link.request("interlock.runs", {}, { again: true }), // one that runs is shown, however old it is
      ]);
      if (this.#closed) return;
      const shown = [...told.tasks.slice(-1), ...live.filter((run) => link.name(run.session) === this.session)];
      this.#cursor = told.nextCursor ?? null;
      this.#first = shown.length ? Math.min(...shown.map((run) => placeOf(run.id))) : 0;
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
    this.#watch = this.page.link.watch({ session: this.session }, this.#first, { event, over });
  }

  // It was shared and is not any more: what was said is left as it is, and nothing is asked for again.
  #lose() {
    this.#seen = false;
    this.lost = true;
    this.page.notice("You no longer have access to this session.");
    this.page.sessions.forget(this.session);
  }

  // Somebody else has begun this session; or a detached child has ended, behind its parent.
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
        if (!older) continue; // all of this page is shown: others came since it was counted
        this.view.prepend(older);
        this.#first = Math.min(this.#first, ...missing.map(placeOf));
        break;
      }
    } catch (error) {
      this.page.notice(error.message);
    }
    if (this.#closed) return;
    $("earlier").disabled = false;
    show($("earlier"), this.#cursor !== null);
  }

  // These runs, up to their ends, as a conversation of their own. What is no longer kept of them is not waited for.
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
      const watch = this.page.link.watch({ session: this.session }, Math.min(...ids.map(placeOf)), { event, over });
      this.#watches.add(watch);
    });
  }

  // Saying, stopping, answering

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
      const method = way === "rollback" ? "interlock.chat" : "chat.send"; // the published protocol has no word for it
      const told = await this.page.link.request(method, params, { again: true, still });
      if (told.runId) this.#mine.push(told.runId); // until the session's own watch has told something
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

  // Why a stop ended nothing: whoever wrote here what still runs may stop it, and this person may not.
  unstopped() {
    const others = new Set(this.model.live.flatMap((run) => run.said.map((message) => plain(message.by))));
    if (!others.size) return "There was nothing to stop any more.";
    return `Not stopped: nothing of yours runs here. What runs is of ${[...others].join(", ")}; its sender or the session’s owner can stop it.`;
  }

  async stop(runs) {
    const { link } = this.page;
    const keys = [...this.#unanswered]; // what is sent after this moment is not meant
    for (const key of keys) this.#stopped.add(key);
    try {
      return await link.request("interlock.stop", { session: this.session });
    } catch (error) {
      if (error.code !== "LOST") throw error;
      // There was no connection, or the answer was lost with it. What ran then, and what was on its way, is stopped by
      // name: never what came after it.
      // What waits goes first: it must not begin when what ran before it has ended.
      const named = [...keys.map((key) => ({ message: key })), ...runs.map((run) => ({ run })).reverse()];
      if (!named.length) throw error;
      const receipts = await Promise.all(named.map((name) => link.request("interlock.stop", name, { again: true })));
      return receipts.find((receipt) => receipt.aborted) ?? receipts[0] ?? { aborted: false };
    }
  }

  async #answer(question, answer) {
    $("message").focus(); // its button is about to be disabled
    try {
      await this.page.link.request("interlock.answer", { question: question.id, answer });
    } catch (error) {
      this.page.notice(`Not answered: ${error.message}`);
    }
  }

  // Children, what processes write, and what an ended run left to the session

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

  // Told by no event of its own: it is asked for while it lasts.
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
