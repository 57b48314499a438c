// The live list of sessions, newest first, with marks for what runs, what asks and what is new.

import { $, data, el, plain, text } from "./dom.js";

const MOST = 200;
const SEALED = 50; // ended runs remembered per session

export class Sessions {
  #rows = new Map(); // by key
  #current = null;
  #open;

  constructor(link, open, changed) {
    this.link = link;
    this.changed = changed;
    this.#open = open;
    $("session-list").replaceChildren();
    link.addEventListener("outline", ({ detail }) => this.#hear(detail));
    link.addEventListener("state", ({ detail }) => detail === "connected" && this.#load());
  }

  async #load() {
    try {
      const { sessions } = await this.link.request("sessions.list", { limit: MOST });
      const runs = await this.link.request("interlock.runs");
      const questions = await this.link.request("interlock.questions").catch(() => []); // a reader may not list them
      for (const row of this.#rows.values()) {
        row.live.clear();
        row.asks.clear();
      }
      for (const each of sessions) {
        this.link.names.set(each.id, each.key);
        this.#row(each.key, (each.updatedAt ?? 0) / 1000);
      }
      for (const run of runs.filter((each) => each.parent == null && each.outcome == null)) {
        const row = this.#row(this.link.name(run.session), run.admitted_at);
        if (!row.ended.includes(run.id)) row.live.add(run.id); // its end may have come meanwhile
      }
      for (const question of questions) this.#rows.get(this.link.name(question.session))?.asks.add(question.id);
    } catch {
      return; // the next connection loads again
    }
    this.#draw();
  }

  // Return whether a run of a session is live, as far as the outline tells.
  busy(session) {
    return (this.#rows.get(session)?.live.size ?? 0) > 0;
  }

  forget(session) {
    this.#rows.delete(session);
    this.#draw();
  }

  open(session) {
    this.#current = session;
    this.#row(session, this.#rows.has(session) ? 0 : Date.now() / 1000).news = false; // opening does not move a row
    this.#draw();
  }

  #row(key, at) {
    let row = this.#rows.get(key);
    if (!row) {
      const mark = el("span.mark", { "aria-hidden": "true" });
      const name = el("span.name", {}, plain(key));
      const state = el("span.what");
      const button = el("button", { type: "button", onclick: () => this.#open(key) }, mark, name, state);
      this.#rows.set(
        key,
        (row = {
          key,
          at,
          live: new Set(),
          ended: [],
          asks: new Set(),
          news: false,
          button,
          state,
          item: el("li", {}, button),
        }),
      );
    }
    row.at = Math.max(row.at, at);
    return row;
  }

  #hear({ session: id, run_id: run, at, data: told }) {
    const session = this.link.name(id);
    if (/^run:/.test(session) || told.type === "child" || told.type === "receipt") return;
    const known = this.#rows.get(session);
    if (!known && told.type !== "message") return; // a child's session, which its parent shows
    const row = known ?? this.#row(session, at);
    if (row.ended.includes(run)) return; // sealed
    if (told.type === "message") {
      row.at = Math.max(row.at, at);
      if (told.of) row.live.delete(told.of);
      else row.live.add(run);
    } else if (told.type === "started") row.live.add(run);
    else if (told.type === "question") {
      if (told.state === "open") row.asks.add(told.question_id);
      else row.asks.delete(told.question_id);
    } else if (told.type === "ended") {
      row.live.delete(run);
      row.ended = [...row.ended.slice(1 - SEALED), run];
      for (const id of told.void ?? []) row.asks.delete(id);
    }
    row.news ||= session !== this.#current && told.type === "ended";
    this.#draw();
  }

  #draw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      const sorted = [...this.#rows.values()].sort((one, other) => other.at - one.at);
      for (const row of sorted.slice(2 * MOST)) this.#rows.delete(row.key);
      const rows = sorted.slice(0, MOST);
      const list = $("session-list");
      rows.forEach((row, index) => {
        const status = row.asks.size ? "asks" : row.live.size ? "running" : row.news ? "new" : "";
        data(row.item, "state", status || "quiet");
        text(row.state, status);
        if (row.key === this.#current) row.button.setAttribute("aria-current", "true");
        else row.button.removeAttribute("aria-current");
        if (list.children[index] !== row.item) list.insertBefore(row.item, list.children[index] ?? null);
      });
      while (list.children.length > rows.length) list.lastChild.remove();
      this.changed();
    });
  }
}
