// Elements, made of tags, attributes and text. Nothing here takes markup.

const SVG = "http://www.w3.org/2000/svg";

const UNSEEN = /(?![\t\n])[\p{Cc}\p{Cf}\p{Co}\p{Cn}\u2028\u2029\u115f\u1160\u2800\u3164\uffa0]/gu;

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

// Spell out invisible and direction-changing characters: a person who approves a command must see that command.
export function plain(words) {
  return words.replace(UNSEEN, (letter) => `⟨U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// Set a text only if it differs, so that a screen reader, a selection and a scrolled box stay as they are.
export function text(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

export function data(node, name, value) {
  if (node.dataset[name] !== String(value)) node.dataset[name] = value;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}
