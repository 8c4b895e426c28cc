// Labels of the service, each requested once, and labels added in this session, which the service does not know.

import { ask } from "./api.js";
import * as session from "./session.js";

const requested = new Map(); // label → promise of its details
const texts = new Map(); // label → its text, once it has arrived
const titles = new Map(); // label → its title, where it has one

let model = {};

/** Uses another model from now on: an id, and a version if several are loaded. */
export function useModel(chosen) {
  model = chosen;
  requested.clear();
  texts.clear();
  titles.clear();
}

/** Returns the chosen model, which is part of every request. */
export function chosenModel() {
  return model;
}

export function search(q, signal, limit = 20) {
  return ask(`labels?${new URLSearchParams({ q, limit, ...model })}`, { signal });
}

/** Keeps the title of a label. */
export function keepTitle(label, title) {
  titles.set(label, title);
}

/** Returns {text, count, near, why} of a label; never throws: `why` says what is missing. */
export async function about(label) {
  if (session.invented.has(label)) return { text: session.invented.get(label), near: [], why: "Added in this session." };
  if (!requested.has(label)) requested.set(label, ask(`labels/${encodeURIComponent(label)}?${new URLSearchParams(model)}`));
  try {
    const details = await requested.get(label);
    if (details.title) keepTitle(details.name, details.title);
    texts.set(label, details.text ?? "");
    return details;
  } catch (problem) {
    requested.delete(label);
    return { text: "", near: [], why: problem.message };
  }
}

/** Returns the name that people see for a label: its title in a thesaurus, or else the label itself. */
export function titleOf(label) {
  return titles.get(label) ?? label;
}

/** Returns a label's text, empty if it is not known or equals the name. */
export function textOf(label) {
  if (titles.has(label) && titles.get(label) !== label) return label; // the title is shown, and the label behind it
  const text = session.invented.get(label) ?? texts.get(label) ?? "";
  return text.toLowerCase() === label.toLowerCase() ? "" : text;
}

/** Makes an example text of a few frequent labels, so that it fits the model's domain. */
export async function exampleText() {
  const { labels } = await search("", undefined, 100);
  const frequent = labels.sort((one, other) => other.count - one.count).slice(0, 3);
  return frequent.map(({ name, text }) => text || name).join(". ");
}
