// An agent's text as markdown: parsed by marked, cleaned by DOMPurify, put into the page as nodes.
//
// 1. Markup in a text is shown as text. Nothing is fetched: pictures become links.
// 2. While a text grows only its last part is drawn again, at most once a frame, and less often if that takes long.

import { Marked } from "./marked.js";
import { el } from "./dom.js";

const MOST = 100_000; // characters drawn as markdown; what is longer is shown as it is
const TAGS = ["a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"];
const CLEAN = { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["href", "start", "title"], ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i, RETURN_DOM_FRAGMENT: true };
const SHARE = 8; // a drawing that took t is not repeated for this many t

const escape = (words) => words.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escape(text),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const level = Math.min(6, depth + 2);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

export function markdown(words) {
  if (words.length > MOST) return el("pre.plain", { tabindex: 0 }, words);
  const nodes = globalThis.DOMPurify.sanitize(marked.parse(words), CLEAN);
  for (const link of nodes.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const box of nodes.querySelectorAll("pre, table")) box.tabIndex = 0; // it may scroll sideways
  return nodes;
}

// Where the part of a growing text ends that no later word changes: a blank line outside a fence and a list.
function settled(words, from) {
  let end = from;
  let at = from;
  let fence = null;
  while (true) {
    const next = words.indexOf("\n", at);
    if (next < 0) return end;
    const line = words.slice(at, next);
    const mark = /^ {0,3}(```+|~~~+)/.exec(line)?.[1];
    if (mark && (fence === null || (mark[0] === fence[0] && mark.length >= fence.length))) fence = fence === null ? mark : null;
    at = next + 1;
    const after = words.slice(at, at + 4);
    if (fence === null && line.trim() === "" && after.trim() !== "" && !/^( {1,3}\S|    |\t|[-*+>|]|\d)/.test(after)) end = at;
  }
}

// A text that may still grow.
export class Growing {
  #node = el("div.text");
  #tail = el("div.tail-end");
  #words = "";
  #done = 0; // characters drawn for good
  #closed = false;
  #again = 0; // not to be drawn before

  get node() {
    return this.#node;
  }

  // Draw it as it stands; return whether there is more to draw later.
  draw(words, open, now) {
    if (words === this.#words && this.#closed === !open) return false;
    if (open && now < this.#again) return true;
    const began = performance.now();
    if (!open || !words.startsWith(this.#words.slice(0, this.#done)) || words.length > MOST) {
      this.#node.replaceChildren(markdown(words));
      this.#done = words.length;
      this.#closed = !open;
    } else {
      const end = settled(words, this.#done);
      if (end > this.#done) {
        this.#node.append(this.#tail);
        this.#tail.before(markdown(words.slice(this.#done, end)));
        this.#done = end;
      }
      if (!this.#tail.isConnected || this.#tail.parentNode !== this.#node) this.#node.append(this.#tail);
      this.#tail.replaceChildren(markdown(words.slice(this.#done)));
    }
    this.#words = words;
    this.#again = now + SHARE * (performance.now() - began);
    return false;
  }
}
