// Elements, made of tags, attributes and text. Nothing here takes markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

// el("p.note", { id: "n" }, "text", other)
export function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  return make(node, attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return make(document.createElementNS(SVG, tag), attributes, children);
}

// A text in which nothing is unseen or turned round: whoever approves a command must be shown that command.
export function plain(words) {
  return words.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\u{e0000}-\u{e0fff}]/gu, (letter) => `⟨U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// Change only what differs: a screen reader, a selection and a scrolled box stay as they are.
export function text(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

export function data(node, name, value) {
  if (node.dataset[name] !== String(value)) node.dataset[name] = value;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}
