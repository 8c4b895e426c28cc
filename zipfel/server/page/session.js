// State of this browser session: the text, labels that the user added, and corrections. Nothing outlives the tab.

function stored(name, start) {
  try {
    return JSON.parse(sessionStorage.getItem(`zipfel.${name}`)) ?? start;
  } catch {
    return start;
  }
}

function store(name, value) {
  try {
    sessionStorage.setItem(`zipfel.${name}`, JSON.stringify(value));
  } catch {
    // The storage is full or disabled: the page still works, but a reload loses its state.
  }
}

export const text = { get: () => stored("text", ""), set: (value) => store("text", value) };
export const model = { get: () => stored("model", null), set: (value) => store("model", value) };
export const threshold = { get: () => stored("threshold", null), set: (value) => store("threshold", value) };

/** Labels that exist in this session only: a Map from name to text. */
export const invented = new Map(stored("invented", []));

export function invent(name, about) {
  invented.set(name, about);
  store("invented", [...invented]);
}

export function forget(name) {
  invented.delete(name);
  store("invented", [...invented]);
}

/**
 * Decisions by subject, which is a document (a text, or texts by field) and the model that tagged it: a Map from its key
 * to a Map from label to "accept" or "reject".
 */
const decided = new Map(stored("choices", []).map(([key, choices]) => [key, new Map(choices)]));

const keyOf = ({ document, model }) => JSON.stringify([document, model]);

export function choiceOf(subject, label) {
  return decided.get(keyOf(subject))?.get(label) ?? null;
}

export function labelsOf(subject, choice) {
  return [...(decided.get(keyOf(subject)) ?? [])].filter(([, made]) => made === choice).map(([label]) => label);
}

/** Stores a choice; null, or the same choice again, removes it. */
export function choose(subject, label, choice) {
  const key = keyOf(subject);
  const choices = decided.get(key) ?? new Map();
  if (choice === null || choices.get(label) === choice) choices.delete(label);
  else choices.set(label, choice);
  if (choices.size) decided.set(key, choices);
  else decided.delete(key);
  storeDecisions();
}

export function drop(subject) {
  decided.delete(keyOf(subject));
  storeDecisions();
}

function storeDecisions() {
  store("choices", [...decided].map(([key, choices]) => [key, [...choices]]));
}

/** Corrected subjects, oldest first, with their accepted labels and rejected ones. */
export function corrections() {
  return [...decided.keys()].map(JSON.parse).map(([document, model]) => ({
    document,
    labels: labelsOf({ document, model }, "accept"),
    rejected: labelsOf({ document, model }, "reject"),
    model,
  }));
}

/** Returns the corrections as JSONL that `zipfel train` reads. A text without an accepted tag is left out: its tags are unknown. */
export function asJsonl() {
  const rows = corrections().filter((row) => row.labels.length);
  const texts = (about) => (typeof about === "string" ? { text: about } : about);
  return rows.map(({ document, ...choices }) => `${JSON.stringify({ ...texts(document), ...choices })}\n`).join("");
}
