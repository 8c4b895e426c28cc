// What the service knows of labels, each asked for once; and the labels of this session, which it does not know.

import { ask } from "./api.js";
import * as session from "./session.js";

const asked = new Map(); // label → promise of what is known of it
const texts = new Map(); // label → its text, once it is there

let model = {};

/** Asks another model from now on. */
export function useModel(id) {
  model = { model: id };
  asked.clear();
  texts.clear();
}

/** What goes along with every question. */
export function chosenModel() {
  return model;
}

export function search(q, signal, limit = 20) {
  return ask(`labels?${new URLSearchParams({ q, limit, ...model })}`, { signal });
}

/** Returns {text, count, near, why} of a label; never fails, but tells in `why` what is missing. */
export async function about(label) {
  if (session.invented.has(label)) return { text: session.invented.get(label), near: [], why: "A label of this session." };
  if (!asked.has(label)) asked.set(label, ask(`labels/${encodeURIComponent(label)}?${new URLSearchParams(model)}`));
  try {
    const said = await asked.get(label);
    texts.set(label, said.text ?? "");
    return said;
  } catch (problem) {
    asked.delete(label);
    return { text: "", near: [], why: problem.message };
  }
}

/** Returns a label's text where it is there and says more than the name. */
export function textOf(label) {
  const text = session.invented.get(label) ?? texts.get(label) ?? "";
  return text.toLowerCase() === label.toLowerCase() ? "" : text;
}

/** Makes a text out of a few frequent labels: the model's own field, whatever it is. */
export async function exampleText() {
  const { labels } = await search("", undefined, 100);
  const frequent = labels.sort((one, other) => other.count - one.count).slice(0, 3);
  return frequent.map(({ name, text }) => text || name).join(". ");
}
