// The page: pairs, connects, and shows what its address names. Stop is one key away.
//
// 1. The token is kept by this origin alone. A code comes in the fragment, is used once and taken out of the address.
// 2. Stop answers in the frame it was pressed in; what it did is told by the receipt, not by this page.
// 3. What was typed is never lost: it goes out under its own key, is asked again after a reconnect, or comes back.

import { Conversation, placeOf, touch } from "./model.js";
import { ConversationView } from "./conversation.js";
import { $, data, el, show, text } from "./dom.js";
import { Failed, Link, place } from "./link.js";
import { Overview } from "./overview.js";
import { Sessions } from "./sessions.js";
import { Timeline } from "./timeline.js";
import { ask, tell } from "./dialog.js";
import { drawDetails } from "./details.js";
import * as words from "./words.js";

const TOKEN = "interlock.token";
const NAME = "interlock.name";
const LAST = "interlock.session"; // the one that was open last
const LATEST = 40; // turns shown at first, and added by each look back
const MOST = 400; // turns kept; of more, half are let go and can be looked back at
const SLOW_MS = 200; // an answer later than this is told as waiting
const AGAIN_MS = 1_000;
const TAIL_MS = 700; // how often a running process is asked what it wrote
const WAYS = [
  ["interrupt", "Take over", "end what runs; this is what counts now"],
  ["steer", "Steer", "tell it to what runs, without ending it"],
  ["followup", "Queue", "after what runs"],
  ["rollback", "Roll back", "take over, and forget the turn that ran"],
];
const STATES = { connecting: "connecting…", connected: "connected", lost: "connection lost, trying again…", denied: "not paired" };

function decoded(name) {
  try {
    return name ? decodeURIComponent(name) : null;
  } catch {
    return null; // an address that somebody broke
  }
}

class Page {
  link = null;
  chat = null; // the open session
  way = WAYS[0];
  shown = null; // the run in the details

  start() {
    $("composer").addEventListener("submit", (event) => this.#submit(event));
    $("message").addEventListener("keydown", (event) => this.#typed(event));
    $("message").addEventListener("input", () => this.#fit());
    $("stop").addEventListener("click", () => this.stop());
    $("newest").addEventListener("click", () => this.chat?.view.toEnd());
    $("earlier").addEventListener("click", () => this.chat?.earlier());
    $("new-session").addEventListener("click", () => this.#newSession());
    $("unpair").addEventListener("click", () => this.#unpair());
    $("pair-another").addEventListener("click", () => this.#pairAnother());
    $("pairing-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#pair($("code").value.trim().replace(/^.*#pair=/, ""));
    });
    document.addEventListener("keydown", (event) => this.#key(event));
    this.#toggle("sessions-toggle", "sessions");
    this.#toggle("details-toggle", "details");
    this.#menu();
    addEventListener("hashchange", () => this.#route());
    addEventListener("storage", ({ key }) => key === TOKEN && location.reload());
    this.#come();
  }

  // Coming in

  async #come() {
    const code = /^#pair=(.*)$/.exec(location.hash)?.[1];
    if (code !== undefined) {
      history.replaceState(null, "", location.pathname);
      await this.#pairAnew(code);
    } else this.#connect(localStorage.getItem(TOKEN), "");
  }

  // A link that somebody else sent would make whoever follows it speak as them.
  async #pairAnew(code) {
    const had = localStorage.getItem(TOKEN);
    if (!had) {
      await this.#pair(code);
      return;
    }
    this.#connect(had, "");
    const who = localStorage.getItem(NAME) ?? "somebody";
    const body = [el("p", {}, `It is paired as ${who} already. With this code it speaks as whoever made the code: go on only if that was you.`)];
    if (await ask({ title: "Pair this browser anew?", body, action: "Pair anew", danger: true })) {
      const old = this.authority;
      if (await this.#pair(code)) fetch(place("pair"), { method: "DELETE", headers: old }).catch(() => {});
    }
  }

  async #pair(code) {
    try {
      const answer = await fetch(place("pair"), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ code }) });
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error);
      localStorage.setItem(NAME, told.name);
      localStorage.setItem(TOKEN, told.token);
      this.#connect(told.token, "");
      return true;
    } catch (error) {
      if (this.link) this.notice(`Not paired: ${error.message}`);
      else this.#connect(null, error.message);
      return false;
    }
  }

  #connect(token, why) {
    this.link?.close();
    show($("pairing"), !token);
    show($("chat"), Boolean(token));
    text($("pairing-why"), why);
    if (!token) {
      $("connection").dataset.state = "denied";
      text($("connection"), STATES.denied);
      return;
    }
    this.link = new Link(token);
    this.token = token;
    text($("person-name"), localStorage.getItem(NAME) ?? "");
    this.link.addEventListener("state", ({ detail }) => this.#state(detail));
    this.link.addEventListener("outline", ({ detail }) => this.chat?.heard(detail));
    this.sessions = new Sessions(this.link, (session) => this.go(`#/s/${encodeURIComponent(session)}`), () => this.refresh());
    this.overview = new Overview(this.link, this);
    this.timeline = new Timeline(this);
    this.#route();
  }

  #state(state) {
    const sign = $("connection");
    data(sign, "state", state);
    text(sign, STATES[state]);
    if (state === "connected") {
      show($("to-overview"), this.link.may("admin"));
      const write = this.link.may("write");
      $("message").disabled = $("send").disabled = $("how").disabled = !write;
      if (!write) $("message").placeholder = "This browser may read, not write.";
    }
    if (state === "denied") {
      localStorage.removeItem(TOKEN);
      this.#connect(null, "This browser's token is no longer one.");
    }
    this.refresh();
  }

  async #unpair() {
    const sure = await ask({ title: "Unpair this browser?", body: [el("p", {}, "Its token is forgotten here and on the server.")], action: "Unpair", danger: true });
    if (!sure) return;
    const answer = await fetch(place("pair"), { method: "DELETE", headers: this.authority }).catch(() => null);
    if (!answer || ![204, 401, 403].includes(answer.status)) {
      this.notice("The server did not take it: this browser is still paired. Try again, or `interlock token rotate` there.");
      return;
    }
    localStorage.removeItem(TOKEN);
    location.assign(location.pathname);
  }

  async #pairAnother() {
    try {
      const { code, seconds } = await this.link.request("interlock.pair");
      const address = `${place("")}#pair=${code}`;
      await tell("Pair another device", el("p", {}, `Open this address there. It works once, within ${words.time(seconds)}.`), el("p", {}, el("code.address", { tabindex: 0 }, address)));
    } catch (error) {
      this.notice(error.message);
    }
  }

  get authority() {
    return { authorization: `Bearer ${this.token}` };
  }

  // Where the page is

  go(hash) {
    if (location.hash === hash) this.#route();
    else location.hash = hash;
  }

  #route() {
    if (!this.link) return;
    if (location.hash.startsWith("#pair=")) {
      this.#come();
      return;
    }
    let [, kind, name] = /^#\/(s|run|overview)(?:\/(.+))?$/.exec(location.hash) ?? [];
    if (!kind || (kind === "s" && !decoded(name))) {
      [kind, name] = ["s", encodeURIComponent(localStorage.getItem(LAST) ?? "main")];
      history.replaceState(null, "", `#/s/${name}`); // so that Back comes back here
    }
    const [what, id] = [kind, decoded(name)];
    show($("chat"), what === "s");
    show($("timeline"), what === "run");
    show($("overview"), what === "overview");
    this.overview.visible = what === "overview";
    this.timeline.show(what === "run" ? id : null);
    if (what === "s") this.#open(id);
    this.#fold("sessions-toggle", "sessions", false);
    const title = { s: this.chat?.session, run: `Timeline of ${id}`, overview: "Overview" }[what];
    document.title = `${title} · Interlock`;
    text($("where"), title ?? "");
    this.refresh();
  }

  #open(session) {
    if (this.chat?.session === session) return;
    this.chat?.close();
    localStorage.setItem(LAST, session);
    this.chat = new Chat(this, session);
    this.sessions.open(session);
    this.details(null);
    if (matchMedia("(min-width: 60rem)").matches) $("message").focus();
  }

  async #newSession() {
    const now = new Date();
    const value = `chat-${now.toISOString().slice(0, 10)}-${String(now.getHours()).padStart(2, "0")}${String(now.getMinutes()).padStart(2, "0")}${String(now.getSeconds()).padStart(2, "0")}`;
    const name = await ask({ title: "New session", field: { label: "Name", value }, action: "Open" });
    if (name) this.go(`#/s/${encodeURIComponent(name)}`);
  }

  // Saying

  #submit(event) {
    event.preventDefault();
    const message = $("message").value;
    if (!message.trim() || !this.chat) return;
    $("message").value = "";
    this.#fit();
    this.notice("");
    this.chat.send(message, this.way[0]);
    this.way = WAYS[0]; // the choice was for this message
    this.refresh();
  }

  #typed(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  }

  #fit() {
    $("message").rows = Math.min(10, $("message").value.split("\n").length);
  }

  giveBack(message) {
    const box = $("message");
    box.value = box.value ? `${message}\n${box.value}` : message;
    this.#fit();
    box.focus();
  }

  // Stopping

  async stop() {
    const { chat } = this;
    const began = performance.now();
    if (!chat?.busy || began - chat.stopping < AGAIN_MS) return; // pressed twice; a stop that is not answered may be repeated
    const runs = chat.model.live.map((run) => run.id);
    chat.stopping = began;
    this.refresh(); // in this frame
    text($("spoken"), "Stopping");
    try {
      const receipt = await chat.stop(runs);
      chat.view.loose(receipt);
      performance.measure("interlock.stop", { start: began, end: performance.now() });
      text($("spoken"), receipt.aborted ? words.receipt(receipt).map((part) => part.words).join(", ") : "There was nothing to stop any more");
    } catch (error) {
      this.notice(`The stop was not answered: ${error.message}. Press it again.`);
    } finally {
      if (chat.stopping === began) chat.stopping = -Infinity;
      this.refresh();
    }
  }

  #key(event) {
    if (event.key !== "Escape" || event.isComposing || $("dialog").open) return;
    if (!$("how-menu").hidden) {
      this.#showMenu(false);
      $("how").focus();
    } else if (this.chat?.busy && !$("chat").hidden) {
      event.preventDefault();
      this.stop();
    }
  }

  // Showing

  refresh() {
    const { chat } = this;
    const busy = Boolean(chat?.busy);
    const stop = $("stop");
    stop.disabled = !busy || !(this.link?.may("write") ?? false);
    text(stop, chat && chat.stopping > 0 ? "Stopping…" : "Stop");
    data(stop, "busy", busy);
    const running = Boolean(chat?.model.running);
    text($("send"), running || this.way !== WAYS[0] ? this.way[1] : "Send");
    data($("composer"), "way", this.way[0]);
    if (chat) {
      show($("empty"), chat.empty);
      if (chat.empty) text($("empty"), chat.why || "Nothing has been said here yet. `help` asks the demo agent what it knows.");
    }
    drawDetails(this);
  }

  notice(message) {
    text($("notice"), message);
    show($("notice"), Boolean(message));
  }

  details(run) {
    this.shown = run;
    if (run) this.#fold("details-toggle", "details", true);
    drawDetails(this);
  }

  #toggle(button, panel) {
    $(button).addEventListener("click", () => this.#fold(button, panel, $(button).getAttribute("aria-expanded") !== "true"));
  }

  #fold(button, panel, open) {
    $(button).setAttribute("aria-expanded", String(open));
    $(panel).classList.toggle("open", open);
    if (panel === "details") show($(panel), open);
  }

  // How to send

  #menu() {
    const menu = $("how-menu");
    for (const way of WAYS) {
      const choose = () => {
        this.way = way;
        this.#showMenu(false);
        this.refresh();
        $("message").focus();
      };
      menu.append(el("button", { type: "button", role: "menuitemradio", tabindex: -1, "aria-label": way[1], "aria-checked": "false", onclick: choose }, el("strong", {}, way[1]), el("small", {}, way[2])));
    }
    $("how").addEventListener("click", () => this.#showMenu(menu.hidden));
    menu.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const items = [...menu.children];
      items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
    });
    menu.addEventListener("focusout", ({ relatedTarget }) => menu.contains(relatedTarget) || relatedTarget === $("how") || this.#showMenu(false));
  }

  #showMenu(open) {
    const menu = $("how-menu");
    show(menu, open);
    $("how").setAttribute("aria-expanded", String(open));
    [...menu.children].forEach((item, index) => item.setAttribute("aria-checked", String(WAYS[index] === this.way)));
    if (open) menu.children[WAYS.indexOf(this.way)].focus();
  }
}

// One session, open.
class Chat {
  #watch = null;
  #watches = new Set();
  #cursor = null;
  #first = 0; // the position that what is shown begins behind
  #children = [];
  #unanswered = new Set(); // keys of messages on their way
  #mine = []; // runs we began in a session that did not exist, or is somebody else's
  #closed = false;
  #opening = false;
  why = "";
  loading = true;
  stopping = -Infinity; // when a stop was pressed that is not answered yet

  constructor(page, session) {
    this.page = page;
    this.session = session;
    this.model = new Conversation(session);
    const on = {
      answer: (question, answer) => this.#answer(question, answer),
      child: (id, home) => this.#child(id, home),
      details: (run) => page.details(run),
      retry: (run) => page.giveBack(run.said.map((message) => message.text).join("\n")),
      drawn: () => this.#drawn(),
      scrolled: (atEnd) => show($("newest"), !atEnd),
    };
    this.on = on;
    this.view = new ConversationView(this.model, on, { scroller: $("log") });
    this.pending = el("div.pending");
    $("log").replaceChildren($("earlier"), $("empty"), ...this.view.nodes, this.pending);
    show($("earlier"), false);
    show($("newest"), false);
    this.#load();
    this.ticking = setInterval(() => this.#tails(), TAIL_MS);
  }

  #drawn() {
    if (this.view.shorten(MOST, MOST / 2)) {
      this.#cursor = String(MOST / 2); // a page further back may hold turns that are known; those are left out
      this.#first = placeOf(this.model.order[0]);
      show($("earlier"), true);
    }
    this.page.refresh();
  }

  get busy() {
    return this.#unanswered.size > 0 || this.model.busy || this.#children.some((view) => view.model.busy) || this.page.sessions.busy(this.session);
  }

  get empty() {
    return !this.loading && this.model.runs.size === 0 && !this.pending.childNodes.length;
  }

  close() {
    this.#closed = true;
    clearInterval(this.ticking);
    this.#watch?.stop();
    for (const watch of this.#watches) watch.stop();
  }

  // What was said before

  async #load() {
    if (this.#opening) return;
    this.#opening = true;
    try {
      const [told, live] = await Promise.all([
        this.page.link.request("tasks.list", { sessionKey: this.session, limit: LATEST }, { again: true }),
        this.page.link.request("interlock.runs", {}, { again: true }), // one that runs is shown, however old it is
      ]);
      if (this.#closed) return;
      const shown = [...told.tasks.slice(-1), ...live.filter((run) => run.session === this.session)];
      this.#cursor = told.nextCursor ?? null;
      this.#first = shown.length ? Math.min(...shown.map((run) => placeOf(run.id))) : 0;
      this.#follow();
    } catch (error) {
      this.why = error.message;
    } finally {
      this.#opening = false;
      this.loading = false;
      show($("earlier"), this.#cursor !== null);
      this.page.refresh();
    }
  }

  #follow() {
    const over = (error) => {
      this.#watch = null; // it does not exist yet, or is somebody else's: what we say in it can be seen all the same
      for (const run of this.#mine.splice(0)) this.#watches.add(this.page.link.watch({ run }, 0, { event: (event) => this.view.take(event) }));
      if (error && error.code !== "NOT_FOUND") this.page.notice(`This session is no longer followed: ${error.message}`);
    };
    this.#watch = this.page.link.watch({ session: this.session }, this.#first, { event: (event) => this.view.take(event), over });
  }

  // Somebody else has begun this session; or a detached child has ended, behind its parent.
  heard({ session, run_id: id, data: told }) {
    if (told.type === "ended") this.#childEnded(id, told.outcome);
    if (session === this.session && told.type === "message" && this.#watch === null && !this.#opening) this.#follow();
  }

  async earlier() {
    if (this.#cursor === null || this.#opening) return;
    this.#opening = true;
    $("earlier").disabled = true;
    try {
      const told = await this.page.link.request("tasks.list", { sessionKey: this.session, limit: LATEST, cursor: this.#cursor });
      const oldest = told.tasks.at(-1);
      const [from, to] = [oldest ? placeOf(oldest.id) : 0, this.#first];
      const older = await this.#between(from, to);
      if (this.#closed) return;
      this.view.prepend(older);
      this.#first = from;
      this.#cursor = told.nextCursor ?? null;
    } catch (error) {
      this.page.notice(error.message);
    } finally {
      this.#opening = false;
      $("earlier").disabled = false;
      show($("earlier"), this.#cursor !== null);
    }
  }

  // The runs that came between two positions, up to their ends, as a conversation of their own.
  #between(from, to) {
    const older = new Conversation(this.session);
    return new Promise((resolve, reject) => {
      const event = (each) => {
        const after = each.position > to;
        if (after && !older.live.length) {
          watch.stop();
          this.#watches.delete(watch);
          resolve(older);
        } else if (!after || older.runs.has(each.run_id) || each.data.type === "receipt") older.take(each);
      };
      const watch = this.page.link.watch({ session: this.session }, from, { event, over: (error) => reject(error ?? new Failed()) });
      this.#watches.add(watch);
    });
  }

  // Saying, stopping, answering

  async send(message, way) {
    const key = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
    const note = el("article.said", { "data-state": "sending" }, el("p.who", {}, "sending…"), el("div.words", {}, message));
    const slow = setTimeout(() => {
      this.pending.append(note);
      this.view.toEnd();
    }, SLOW_MS);
    this.view.toEnd();
    this.#unanswered.add(key);
    this.page.refresh();
    try {
      const params = { sessionKey: this.session, message, idempotencyKey: key, queueMode: way };
      const told = await this.page.link.request("chat.send", params, { again: true });
      if (!this.#watch && told.runId) {
        this.#mine.push(told.runId);
        this.#follow();
      }
      if ("aborted" in told) text($("spoken"), told.aborted ? "Stopped" : "There was nothing to stop");
    } catch (error) {
      this.page.notice(`Not sent: ${error.message}`);
      this.page.giveBack(message);
    } finally {
      this.#unanswered.delete(key);
      clearTimeout(slow);
      note.remove();
      this.page.refresh();
    }
  }

  async stop(runs) {
    const { link } = this.page;
    try {
      return await link.request("interlock.stop", { session: this.session });
    } catch (error) {
      if (error.code !== "LOST") throw error;
      // There was no connection, or the answer was lost with it. What ran then, and what was on its way, is stopped by
      // name: never what came after it.
      const named = [...runs.map((run) => ({ run })), ...[...this.#unanswered].map((key) => ({ key }))];
      const receipts = await Promise.all(named.map((name) => link.request("interlock.stop", name, { again: true })));
      return receipts.find((receipt) => receipt.aborted) ?? receipts[0] ?? { aborted: false };
    }
  }

  async #answer(question, answer) {
    try {
      await this.page.link.request("interlock.answer", { question: question.id, answer });
    } catch (error) {
      this.page.notice(`Not answered: ${error.message}`);
    }
  }

  // Children, and what processes write

  #child(id, home) {
    const view = new ConversationView(new Conversation(id), this.on);
    this.#children.push(view);
    home.append(...view.nodes);
    this.#watches.add(this.page.link.watch({ run: id }, 0, { event: (event) => view.take(event), over: (error) => error && home.append(el("p.note", {}, error.message)) }));
    return view;
  }

  #childEnded(id, outcome) {
    for (const view of [this.view, ...this.#children]) {
      for (const run of view.model.runs.values()) {
        const part = run.parts.find((each) => each.kind === "child" && each.id === id && !each.outcome);
        if (!part) continue;
        touch(part, { outcome });
        run.version += 1;
        view.changed(run);
      }
    }
  }

  // What an ended run left to the session is told by no event of its own: it is asked for while it lasts.
  async #leftovers(rows) {
    for (const run of [...this.model.runs.values()].filter((each) => each.state === "ended" && each.leaves)) {
      for (const part of run.parts.filter((each) => each.detached)) {
        if (part.kind === "process" && part.state === "running" && !rows.some((row) => row.run_id === run.id && row.command === part.command)) {
          touch(part, { state: "gone" });
          run.version += 1;
          this.view.changed(run);
        } else if (part.kind === "child" && !part.outcome) {
          const info = await this.page.link.request("interlock.find", { name: part.id }).catch(() => null);
          if (info?.outcome) this.#childEnded(part.id, info.outcome);
        }
      }
    }
  }

  async #tails() {
    const views = [this.view, ...this.#children];
    const going = (run) => run.leaves || run.parts.some((part) => part.kind === "process" && part.state === "running");
    if (document.hidden || this.page.link.state !== "connected" || !views.some((view) => [...view.model.runs.values()].some(going))) return;
    const rows = await this.page.link.request("interlock.processes", { session: this.session }).catch(() => null);
    if (!rows || this.#closed) return;
    await this.#leftovers(rows);
    for (const view of views) {
      for (const row of rows) {
        const run = view.model.runs.get(row.run_id);
        const running = run?.parts.filter((part) => part.kind === "process" && part.state === "running" && part.command === row.command) ?? [];
        const part = running.find((each) => each.pid === row.pid) ?? running.find((each) => each.pid == null);
        if (!part || (run.state === "ended" && !part.detached)) continue;
        part.pid ??= row.pid;
        if (row.tail && row.tail !== part.tail) {
          touch(part, { tail: row.tail });
          run.version += 1;
          view.changed(run);
        }
      }
    }
  }
}

new Page().start();
