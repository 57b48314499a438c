// The page: pairs, connects, and shows what its address names. Stop is one key away.
//
// 1. The token is stored for this origin alone. A code comes in the fragment, works once, and leaves the address bar.
// 2. Stop is shown in the frame in which it was pressed; the receipt, not this page, says what it did.
// 3. A typed message is never lost: it is sent under its own key, sent again after a reconnect, or put back.

import { Chat } from "./chat.js";
import { $, data, el, show, text } from "./dom.js";
import { Link, place } from "./link.js";
import { Sessions } from "./sessions.js";
import { Timeline } from "./timeline.js";
import { ask } from "./dialog.js";
import { drawDetails } from "./details.js";
import * as words from "./words.js";

const TOKEN = "interlock.token";
const NAME = "interlock.name";
const LAST = "interlock.session"; // the session that was open last
const AGAIN_MS = 1_000;
const WAYS = [
  ["interrupt", "Take over", "end what runs; this is what counts now"],
  ["steer", "Steer", "tell it to what runs, without ending it"],
  ["followup", "Queue", "after what runs"],
  ["rollback", "Roll back", "take over, and forget the turn that ran"],
];
const DRAWERS = [["sessions-toggle", "sessions"], ["details-toggle", "details"]];
const STATES = {
  connecting: "connecting…",
  connected: "connected",
  lost: "connection lost, trying again…",
  denied: "not paired",
};

// Remove only our own keys: the page may be mounted in an application that has others.
function forget() {
  for (const key of [TOKEN, NAME, LAST]) localStorage.removeItem(key);
}

function decoded(name) {
  try {
    return name ? decodeURIComponent(name) : null;
  } catch {
    return null; // a malformed address
  }
}

class Page {
  link = null;
  chat = null; // the open session
  way = WAYS[0];
  shown = null; // the run in the details
  drafts = new Map(); // by session: text typed and not sent

  start() {
    $("composer").addEventListener("submit", (event) => this.#submit(event));
    $("message").addEventListener("keydown", (event) => this.#typed(event));
    $("message").addEventListener("input", () => this.#fit());
    $("stop").addEventListener("click", () => this.stop());
    $("newest").addEventListener("click", () => this.chat?.view.toEnd());
    $("earlier").addEventListener("click", () => this.chat?.earlier());
    $("new-session").addEventListener("click", () => this.#newSession());
    $("share").addEventListener("click", () => this.#others("share", this.chat.session));
    $("unpair").addEventListener("click", () => this.#unpair());
    $("pair-another").addEventListener("click", () => this.#others("pair"));
    $("pairing-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#pair($("code").value.trim().replace(/^.*#pair=/, ""));
    });
    document.addEventListener("keydown", (event) => this.#key(event));
    for (const [button, panel] of DRAWERS) this.#toggle(button, panel);
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // the link's fragment is no route
      $("message").focus();
    });
    this.#menu();
    addEventListener("hashchange", () => this.#route());
    addEventListener("storage", ({ key }) => key === TOKEN && location.reload());
    this.#come();
  }

  // Pairing

  async #come() {
    const code = /^#pair=(.*)$/.exec(location.hash)?.[1];
    if (code !== undefined) {
      history.replaceState(null, "", location.pathname);
      await this.#pairAnew(code);
    } else this.#connect(localStorage.getItem(TOKEN), "");
  }

  // Ask first: a pairing link of somebody else would make this browser write as that person.
  async #pairAnew(code) {
    const had = localStorage.getItem(TOKEN);
    if (!had) {
      await this.#pair(code);
      return;
    }
    this.#connect(had, "");
    const who = localStorage.getItem(NAME) ?? "somebody";
    const body = [
      el(
        "p",
        {},
        `It is paired as ${who} already. With this code it speaks as whoever made the code: go on only if that was you.`,
      ),
    ];
    if (!(await ask({ title: "Pair this browser anew?", body, action: "Pair anew", danger: true }))) return;
    const old = this.authority;
    if (!(await this.#pair(code))) return;
    await fetch(place("pair"), { method: "DELETE", headers: old }).catch(() => {});
    location.reload(); // drops everything that the page holds of the principal before
  }

  async #pair(code) {
    try {
      const answer = await fetch(place("pair"), {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ code }),
      });
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
    this.chat?.close();
    this.link?.close();
    this.chat = this.link = this.shown = this.overview = null;
    $("log").replaceChildren($("earlier"), $("empty"));
    $("details").replaceChildren();
    show($("pairing"), !token);
    show($("chat"), Boolean(token));
    show($("timeline"), false);
    show($("overview"), false);
    text($("pairing-why"), why);
    if (!token) {
      $("connection").dataset.state = "denied";
      text($("connection"), STATES.denied);
      return;
    }
    const me = localStorage.getItem(NAME) ?? "";
    this.link = new Link(token, me);
    this.token = token;
    text($("person-name"), me);
    this.link.addEventListener("state", ({ detail }) => this.#state(detail));
    this.link.addEventListener("outline", ({ detail }) => this.chat?.heard(detail));
    this.sessions = new Sessions(
      this.link,
      (session) => this.go(`#/s/${encodeURIComponent(session)}`),
      () => this.refresh(),
    );
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
      if (localStorage.getItem(TOKEN) === this.token) forget(); // another tab may have a newer token
      this.#connect(null, "This browser's token was revoked.");
    }
    this.refresh();
  }

  async #unpair() {
    const sure = await ask({
      title: "Unpair this browser?",
      body: [el("p", {}, "Its token is forgotten here and on the server.")],
      action: "Unpair",
      danger: true,
    });
    if (!sure) return;
    const answer = await fetch(place("pair"), { method: "DELETE", headers: this.authority }).catch(() => null);
    if (!answer || ![204, 401, 403].includes(answer.status)) {
      this.notice(
        "The server did not take it: this browser is still paired. Try again, or `interlock token rotate` there.",
      );
      return;
    }
    forget();
    location.assign(location.pathname);
  }

  get authority() {
    return { authorization: `Bearer ${this.token}` };
  }

  // Routes

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
      history.replaceState(null, "", `#/s/${name}`); // so that Back returns here
    }
    const [what, id] = [kind, decoded(name)];
    show($("chat"), what === "s");
    show($("timeline"), what === "run");
    show($("overview"), what === "overview");
    this.#overview(what === "overview");
    this.timeline.show(what === "run" ? id : null);
    if (what === "s") this.#open(id.includes("/") ? this.link.name(id) : id);
    this.#drawers();
    const title = { s: this.chat?.session, run: `Timeline of ${id}`, overview: "Overview" }[what];
    document.title = `${title} · Interlock`;
    text($("where"), title ?? "");
    this.refresh();
  }

  // Only admins see the overview, so its module is fetched on first use.
  async #overview(visible) {
    const { link } = this;
    const { Overview } = visible && !this.overview ? await import("./overview.js") : {};
    if (link !== this.link) return;
    if (Overview) this.overview ??= new Overview(link, this);
    if (this.overview) this.overview.visible = !$("overview").hidden;
  }

  #open(session) {
    if (this.chat?.session === session) return;
    if (this.chat) this.drafts.set(this.chat.session, $("message").value);
    this.chat?.close();
    $("message").value = this.drafts.get(session) ?? "";
    this.#fit();
    localStorage.setItem(LAST, session);
    this.chat = new Chat(this, session);
    this.sessions.open(session);
    this.details(null);
    if (matchMedia("(min-width: 60rem)").matches) $("message").focus();
  }

  async #newSession() {
    const now = new Date();
    const value = `chat-${now.toLocaleDateString("sv")}-${String(now.getHours()).padStart(2, "0")}${String(now.getMinutes()).padStart(2, "0")}${String(now.getSeconds()).padStart(2, "0")}`;
    const name = await ask({ title: "New session", field: { label: "Name", value }, action: "Open" });
    if (name) this.go(`#/s/${encodeURIComponent(name)}`);
  }

  async #others(what, session) {
    const others = await import("./others.js"); // fetched on first use
    await others[what](this.link, session).catch((error) => this.notice(error.message));
  }

  // Sending

  #submit(event) {
    event.preventDefault();
    const message = $("message").value;
    if (!message.trim() || !this.chat) return;
    $("message").value = "";
    this.#fit();
    this.notice("");
    this.chat.send(message, this.way[0]);
    this.way = WAYS[0]; // the choice counts for one message
    this.refresh();
  }

  #typed(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  }

  #fit() {
    const box = $("message");
    for (box.rows = 1; box.rows < 10 && box.scrollHeight > box.clientHeight; ) box.rows += 1;
  }

  giveBack(message, session) {
    const here = session === this.chat?.session;
    const box = $("message");
    const typed = here ? box.value : (this.drafts.get(session) ?? "");
    const both = typed ? `${message}\n${typed}` : message;
    if (!here) {
      this.drafts.set(session, both);
      return;
    }
    box.value = both;
    this.#fit();
    box.focus();
  }

  // Stopping

  async stop() {
    const { chat } = this;
    const began = performance.now();
    // A second press within AGAIN_MS is ignored; after that a stop without an answer may be repeated.
    if (!chat?.busy || !this.link.may("write") || began - chat.stopping < AGAIN_MS) return;
    const runs = chat.model.live.map((run) => run.id);
    chat.stopping = began;
    const answer = chat.stop(runs); // sends the frame before anything is drawn
    try {
      if (document.activeElement === $("stop")) $("message").focus(); // a disabled button loses the focus
      this.refresh(); // shows the stop in this frame
      text($("spoken"), "Stopping");
      const receipt = await answer;
      chat.view.loose(receipt);
      if (!receipt.aborted) this.notice(chat.unstopped());
      performance.measure("interlock.stop", { start: began, end: performance.now() });
      text(
        $("spoken"),
        receipt.aborted
          ? words
              .receipt(receipt)
              .map((part) => part.words)
              .join(", ")
          : chat.unstopped(),
      );
    } catch (error) {
      this.notice(
        error.retryable
          ? `The stop was not answered: ${error.message}. Press it again.`
          : `Not stopped: ${error.message}`,
      );
    } finally {
      if (chat.stopping === began) chat.stopping = -Infinity;
      this.refresh();
    }
  }

  #key(event) {
    if (event.key !== "Escape" || event.isComposing || $("dialog").open) return;
    const drawer = $("how-menu").hidden && this.#drawers();
    if (drawer) drawer.focus();
    else if (!$("how-menu").hidden) {
      this.#showMenu(false);
      $("how").focus();
    } else if (!$("timeline").hidden) this.timeline.stop();
    else if (this.chat?.busy && !$("chat").hidden) {
      event.preventDefault();
      this.stop();
    }
  }

  // Drawing

  refresh() {
    const { chat } = this;
    const busy = Boolean(chat?.busy);
    const stop = $("stop");
    show($("share"), Boolean(chat) && !$("chat").hidden && (this.link?.may("write") ?? false));
    stop.disabled = !busy || !(this.link?.may("write") ?? false);
    text(stop, chat && chat.stopping > 0 ? "Stopping…" : "Stop");
    data(stop, "busy", busy);
    const running = Boolean(chat?.model.running) && !chat.lost;
    text($("send"), running || this.way !== WAYS[0] ? this.way[1] : "Send");
    data($("composer"), "way", this.way[0]);
    if (chat) {
      show($("empty"), chat.empty);
      if (chat.empty) text($("empty"), chat.why || "Nothing has been said here yet.");
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

  // Close the drawers that lie over the page; return the button of the first.
  #drawers() {
    const open = (button) => $(button).getAttribute("aria-expanded") === "true";
    const over = DRAWERS.filter(([button, panel]) => open(button) && getComputedStyle($(panel)).position === "fixed");
    for (const [button, panel] of over) this.#fold(button, panel, false);
    return over.length ? $(over[0][0]) : null;
  }

  #toggle(button, panel) {
    $(button).addEventListener("click", () =>
      this.#fold(button, panel, $(button).getAttribute("aria-expanded") !== "true"),
    );
  }

  #fold(button, panel, open) {
    $(button).setAttribute("aria-expanded", String(open));
    $(panel).classList.toggle("open", open);
    if (panel !== "details") return;
    show($(panel), open);
    if (open) drawDetails(this);
  }

  // The menu of strategies

  #menu() {
    const menu = $("how-menu");
    for (const way of WAYS) {
      const choose = () => {
        this.way = way;
        this.#showMenu(false);
        this.refresh();
        $("message").focus();
      };
      menu.append(
        el(
          "button",
          {
            type: "button",
            role: "menuitemradio",
            tabindex: -1,
            "aria-label": way[1],
            "aria-checked": "false",
            onclick: choose,
          },
          el("strong", {}, way[1]),
          el("small", {}, way[2]),
        ),
      );
    }
    $("how").addEventListener("click", () => this.#showMenu(menu.hidden));
    menu.addEventListener("keydown", (event) => {
      const items = [...menu.children];
      const at = items.indexOf(document.activeElement);
      const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      items[(next + items.length) % items.length].focus();
    });
    menu.addEventListener(
      "focusout",
      ({ relatedTarget }) => menu.contains(relatedTarget) || relatedTarget === $("how") || this.#showMenu(false),
    );
  }

  #showMenu(open) {
    const menu = $("how-menu");
    show(menu, open);
    $("how").setAttribute("aria-expanded", String(open));
    [...menu.children].forEach((item, index) => item.setAttribute("aria-checked", String(WAYS[index] === this.way)));
    if (open) menu.children[WAYS.indexOf(this.way)].focus();
  }
}

new Page().start();
