// Markdown to HTML in a worker, so that a text that takes too long to parse blocks nothing and can be given up.

import { Marked } from "./marked.js";

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

onmessage = ({ data: words }) => {
  let html = null;
  try {
    html = marked.parse(words);
  } catch {
    // nested too deeply; the text is shown as it is
  }
  postMessage(html);
};
postMessage(null); // the worker is ready
