// One dialog at a time: words, perhaps a field, and an action.

import { $, el } from "./dom.js";

// Return the typed text (true without a field), or null if it was closed. With `act` the button calls that instead,
// and the dialog stays.
export function ask({ title, body = [], field = null, action, danger = false, act = null }) {
  const dialog = $("dialog");
  return new Promise((resolve) => {
    let answer = null;
    const input =
      field &&
      el("input", {
        id: "dialog-field",
        value: field.value ?? "",
        maxlength: 200,
        required: true,
        spellcheck: "false",
      });
    const close = () => dialog.close();
    const form = el(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          if (act) return act();
          answer = input ? input.value.trim() || null : true;
          close();
        },
      },
      el("h2", { id: "dialog-title" }, title),
      ...body,
      input && el("label", { for: "dialog-field" }, field.label),
      input,
      el(
        "p.actions",
        {},
        el("button", { type: "button", onclick: close }, action && !act ? "Not now" : "Close"),
        action && el(danger ? "button.danger" : "button.main", { type: "submit" }, action),
      ),
    );
    dialog.replaceChildren(form);
    dialog.onclose = () => resolve(answer);
    dialog.showModal();
    input?.select();
  });
}

export const tell = (title, ...body) => ask({ title, body });
