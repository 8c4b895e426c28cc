// What the page says about models and marks.

import { titleOf } from "./labels.js";
import { element } from "./made.js";

/** Returns the name of a model, with its version if several are loaded, and its number of labels. */
export function described({ id, labels, version, chosen }) {
  const name = chosen?.version ? `${id} ${version}` : id;
  return `${name} · ${new Intl.NumberFormat("en").format(labels)} labels`;
}

/** Returns text and elements that say what the marks of a label mean; why: the answer's reasons for it. */
export function legend(label, why) {
  if (!why) return [];
  if (why.problem) return [why.problem];
  if (!why.reasons.length) return ["No single word supports ", element("b", titleOf(label))];
  const against = why.reasons.some(({ weight }) => weight < 0);
  const dotted = against ? [", ", element("span", "dotted", "against"), " words count against it"] : [];
  return [element("mark", "Marked"), " words support ", element("b", titleOf(label)), ...dotted];
}
