// Dialogs about others: an owner's shares of a session, and pairing another device.

import { ask, tell } from "./dialog.js";
import { el, plain, text } from "./dom.js";
import { place } from "./link.js";
import { time } from "./words.js";

export async function pair(link) {
  const { code, seconds } = await link.request("interlock.pair");
  const address = `${place("")}#pair=${code}`;
  await tell(
    "Pair another device",
    el("p", {}, `Open this address there. It works once, within ${time(seconds)}.`),
    el("p", {}, el("code.address", { tabindex: 0 }, address)),
  );
}

export async function share(link, session) {
  let told;
  try {
    told = (await link.request("sessions.describe", { key: session })).session;
  } catch (error) {
    const none = "There is no such session for you yet: it begins with its first message.";
    await tell("Share", el("p", {}, error.code === "NOT_FOUND" ? none : error.message));
    return;
  }
  const mine = told.owner === link.me || link.may("admin");
  const list = el("div", { role: "list", "aria-label": "Shared with" });
  const news = el("p", { role: "status" });
  const name = el("input", { id: "share-name", maxlength: 64, required: true, autocapitalize: "off", spellcheck: "false" });
  const options = ["write", "read"].map((each) => el("option", { value: each }, `may ${each}`));
  const may = el("select", { id: "share-may" }, ...options);
  const draw = ({ shares }) => {
    const rows = Object.entries(shares).map(([who, what]) => {
      const remove = () => change("interlock.unshare", { with: who }, `${who} may not see it any more.`);
      const button = mine && el("button", { type: "button", "aria-label": `Remove ${who}`, onclick: remove }, "Remove");
      return el("p.answers", { role: "listitem" }, `${plain(who)} may ${what}`, button || "");
    });
    list.replaceChildren(...(rows.length ? rows : [el("p.note", { role: "listitem" }, "Shared with nobody.")]));
  };
  const change = async (method, params, words) => {
    try {
      draw(await link.request(method, { session, ...params }, { again: true }));
      text(news, words);
      name.value = "";
    } catch (error) {
      text(news, error.message);
    }
    name.focus();
  };
  const full = session.startsWith(`${told.owner}/`) ? session : `${told.owner}/${session}`;
  const act = () => {
    const [who, what] = [name.value.trim(), may.value];
    if (who) change("interlock.share", { with: who, may: what }, `${who} may ${what} now, and finds it as ${full}.`);
  };
  draw(told);
  const title = `Share ${plain(session)}`;
  if (!mine) await tell(title, el("p", {}, `It is ${plain(told.owner)}’s, who alone can share it.`), list);
  else {
    const body = [el("label", { for: name.id }, "With whom"), name, el("label", { for: may.id }, "They"), may, list, news];
    await ask({ title, body, action: "Share", act });
  }
}
