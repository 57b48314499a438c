// A run's timeline: the server's picture, which `interlock timeline` draws too, and a list of its moments.

import { $, el, show, text } from "./dom.js";
import { place } from "./link.js";
import * as words from "./words.js";

const AGAIN_MS = 250;

async function picture(page, run) {
  const answer = await fetch(place(`timeline/${encodeURIComponent(run)}.svg`), { headers: page.authority });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `there is no timeline of ${run}`);
  return answer.blob();
}

export async function save(page, run) {
  try {
    const link = el("a", { href: URL.createObjectURL(await picture(page, run)), download: `${run}.svg` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch (error) {
    page.notice(error.message);
  }
}

export class Timeline {
  #run = null;
  #timer = 0;
  #url = null;
  #turn = 0;

  constructor(page) {
    this.page = page;
    page.link.addEventListener("outline", ({ detail }) => this.#hear(detail));
    page.link.addEventListener("state", ({ detail }) => detail === "connected" && this.#soon());
    $("timeline-save").onclick = (event) => {
      event.preventDefault();
      if (this.#run) save(page, this.#run);
    };
    $("timeline-stop").onclick = () => this.stop();
  }

  show(run) {
    if (run === this.#run) return;
    this.#run = run;
    $("timeline-picture").replaceChildren();
    $("timeline-moments").replaceChildren();
    show($("timeline-stop"), false);
    if (run) this.#draw();
  }

  // Stop the shown run by its id, never a newer one of its session.
  async stop() {
    const button = $("timeline-stop");
    if (button.hidden || button.disabled) return;
    button.disabled = true; // shown in this frame
    text($("spoken"), "Stopping");
    const params = { run: this.#run };
    const told = await this.page.link.request("interlock.stop", params, { again: true }).catch((error) => error);
    text($("spoken"), told.aborted ? "Stopped" : (told.message ?? "There was nothing to stop any more"));
    button.disabled = false;
    this.#soon();
  }

  #hear({ run_id: run, data }) {
    const about = run === this.#run || data.receipt?.runs.some(({ id }) => id === this.#run);
    if (this.#run && about) this.#soon();
  }

  #soon() {
    if (this.#run) this.#timer ||= setTimeout(() => this.#draw(), AGAIN_MS);
  }

  async #draw() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const run = this.#run;
    const turn = ++this.#turn;
    if (!run) return;
    text($("timeline-title"), `Timeline of ${run}`);
    try {
      const [blob, told, info] = await Promise.all([
        picture(this.page, run),
        this.page.link.request("runs.timeline", { runId: run }, { again: true }),
        this.page.link.request("interlock.find", { name: run }, { again: true }),
      ]);
      if (turn !== this.#turn) return; // another run is shown meanwhile
      const last = this.#url;
      this.#url = URL.createObjectURL(blob);
      const how = info?.outcome ? words.ending(info.outcome) : "still running";
      const image = el("img", { src: this.#url, alt: `Timeline of ${run}: ${how}. The list below says the same.` });
      await image.decode().catch(() => {});
      $("timeline-picture").replaceChildren(image);
      if (last) URL.revokeObjectURL(last);
      show($("timeline-stop"), Boolean(info) && !info.outcome && this.page.link.may("write"));
      if (info) $("timeline-back").href = `#/s/${encodeURIComponent(this.page.link.name(info.session))}`;
      this.#list(told.moments);
    } catch (error) {
      if (turn === this.#turn) $("timeline-picture").replaceChildren(el("p.note", {}, error.message));
    }
  }

  #list(moments) {
    const zero = moments[0]?.at ?? 0;
    const line = ({ at, what, name, state, detail, count }) =>
      [`+${words.time(at - zero)}`, what, name, state, detail, count > 1 ? `× ${count}` : ""]
        .filter(Boolean)
        .join(" · ");
    $("timeline-moments").replaceChildren(...moments.map((moment) => el("li", {}, line(moment))));
  }
}
