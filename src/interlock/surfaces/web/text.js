// An agent's text as markdown: parsed by marked in a worker, cleaned by DOMPurify, put into the page as nodes.
//
// 1. Markup in a text is shown as text. Nothing is fetched: pictures become links.
// 2. The page never waits for a text: until it is parsed, or if that takes too long, it is shown as it is.
// 3. A parse of a growing text that returns after its run has ended is dropped: the end may have taken text back.
// 4. While a text grows only its last part is parsed again, and only once the parse before is drawn.

import { el } from "./dom.js";
import { place } from "./link.js";

const MOST = 100_000; // characters drawn as markdown
const TAGS_MOST = 5_000; // tags drawn of one text
const GROWING = 20_000; // characters shown, from the end, of a longer text that grows
const PATIENCE_MS = 1_000; // for one parse
const SHORT = 1_000; // characters: a parse of fewer is slow because of the machine, not of the text
const BUSY_MS = 10_000; // for one parse of a short text
const TAGS = [
  "a",
  "blockquote",
  "br",
  "code",
  "del",
  "em",
  "h3",
  "h4",
  "h5",
  "h6",
  "hr",
  "li",
  "ol",
  "p",
  "pre",
  "strong",
  "table",
  "tbody",
  "td",
  "th",
  "thead",
  "tr",
  "ul",
];
const CLEAN = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["align", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

const policy = globalThis.trustedTypes?.createPolicy("interlock", {
  createScriptURL: () => place("web/markdown.js").href,
});

class Parser {
  #worker = null;
  #jobs = []; // the worker has the first
  #timer = 0;

  // Return the HTML of a text, or null if it is to be shown as it is. Whole texts go before those that still grow.
  parse(words, whole) {
    if (words.length > MOST) return Promise.resolve(null);
    return new Promise((resolve) => {
      const at = whole ? this.#jobs.findIndex((job, index) => index > 0 && !job.whole) : -1;
      this.#jobs.splice(at < 0 ? this.#jobs.length : at, 0, { words, whole, resolve });
      if (this.#jobs.length === 1) this.#next();
    });
  }

  #next() {
    if (!this.#jobs.length) return;
    if (this.#worker) this.#hand();
    else this.#begin();
  }

  // The start of a worker does not count for a text: on a busy machine it alone may take a second.
  #begin() {
    const worker = (this.#worker = new Worker(policy?.createScriptURL("") ?? place("web/markdown.js"), {
      type: "module",
    }));
    worker.onmessage = () => {
      worker.onmessage = ({ data: html }) => this.#done(html);
      this.#hand();
    };
    worker.onerror = () => this.#giveUp();
    this.#timer = setTimeout(() => this.#giveUp(), BUSY_MS);
  }

  #hand() {
    clearTimeout(this.#timer);
    const { words } = this.#jobs[0];
    this.#timer = setTimeout(() => this.#giveUp(), words.length > SHORT ? PATIENCE_MS : BUSY_MS);
    this.#worker.postMessage(words);
  }

  #giveUp() {
    this.#worker.terminate();
    this.#worker = null;
    this.#done(null);
  }

  #done(html) {
    clearTimeout(this.#timer);
    this.#jobs.shift()?.resolve(html !== null && html.split("<").length <= TAGS_MOST ? html : null);
    this.#next();
  }
}

const parser = new Parser();

// Return a text as it is, in pieces that are laid out when they are seen; of a long one that still grows only the end.
function bare(words, whole) {
  const shown = whole ? words : words.slice(-GROWING);
  const pieces = (shown.match(/[^]{1,10000}/g) ?? []).map((piece) => el("pre.plain", {}, piece));
  return shown.length < words.length
    ? [el("p.note", {}, `… ${(words.length - shown.length).toLocaleString("en")} characters before`), ...pieces]
    : pieces;
}

async function nodes(words, whole) {
  const html = await parser.parse(words, whole);
  if (html === null) return el("div", {}, ...bare(words, whole));
  const clean = globalThis.DOMPurify.sanitize(html, CLEAN);
  for (const link of clean.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const box of clean.querySelectorAll("pre, table")) box.tabIndex = 0; // to be scrolled sideways by keys
  return clean;
}

// Return the end of the part that later words cannot change: the last blank line outside a fence and a list.
function settled(words, from) {
  let end = from;
  let at = from;
  let fence = null;
  while (true) {
    const next = words.indexOf("\n", at);
    if (next < 0) return end;
    const line = words.slice(at, next);
    const mark = /^ {0,3}(```+|~~~+)/.exec(line)?.[1];
    if (mark && (fence === null || (mark[0] === fence[0] && mark.length >= fence.length)))
      fence = fence === null ? mark : null;
    at = next + 1;
    const after = words.slice(at, at + 4);
    if (fence === null && line.trim() === "" && after.trim() !== "" && !/^( {1,3}\S|    |\t|[-*+>|]|\d)/.test(after))
      end = at;
  }
}

// Draws a text that may still grow.
export class Growing {
  node = el("div.text");
  #tail = el("div.tail-end");
  #wanted = { words: "", open: true };
  #drawn = null; // the words in the page
  #settled = 0; // characters that are not parsed again
  #busy = false;

  draw(words, open) {
    if (words === this.#wanted.words && open === this.#wanted.open) return;
    this.#wanted = { words, open };
    if (!open && this.#busy) this.node.replaceChildren(...bare(words, true)); // show the whole before its parse
    if (!this.#busy) this.#catchUp();
  }

  async #catchUp() {
    this.#busy = true;
    while (this.#drawn !== this.#wanted) {
      const wanted = this.#wanted;
      if (!this.node.childNodes.length) this.node.append(...bare(wanted.words, !wanted.open)); // until it is parsed
      this.node.setAttribute("aria-busy", String(wanted.open)); // read out once, when it is whole
      if (wanted.open) await this.#grow(wanted.words);
      else {
        const made = await nodes(wanted.words, true);
        if (wanted === this.#wanted) this.node.replaceChildren(made);
      }
      this.#drawn = wanted;
    }
    this.#busy = false;
  }

  get #marked() {
    const marked = getSelection();
    return !marked.isCollapsed && this.#tail.contains(marked.anchorNode);
  }

  async #grow(words) {
    const end = settled(words, this.#settled);
    const [done, rest] = [
      end > this.#settled ? await nodes(words.slice(this.#settled, end)) : null,
      await nodes(words.slice(end)),
    ];
    while (this.#wanted.open && this.#marked) await new Promise(requestAnimationFrame); // keep a selection
    if (!this.#wanted.open) return; // the text has ended meanwhile
    this.#tail.replaceChildren(rest);
    if (this.#tail.parentNode !== this.node) this.node.replaceChildren(this.#tail);
    if (done) this.#tail.before(done);
    this.#settled = end;
  }
}
