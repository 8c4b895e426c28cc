// What this browser session keeps: the text, labels that the user made up, and corrections. Nothing outlives the tab.

function kept(name, start) {
  try {
    return JSON.parse(sessionStorage.getItem(`zipfel.${name}`)) ?? start;
  } catch {
    return start;
  }
}

function keep(name, value) {
  try {
    sessionStorage.setItem(`zipfel.${name}`, JSON.stringify(value));
  } catch {
    // The storage is full or switched off: the page works on, and forgets when it is closed.
  }
}

export const text = { get: () => kept("text", ""), set: (value) => keep("text", value) };
export const threshold = { get: () => kept("threshold", null), set: (value) => keep("threshold", value) };

/** Labels that exist in this session only: a Map from name to text. */
export const invented = new Map(kept("invented", []));

export function invent(name, about) {
  invented.set(name, about);
  keep("invented", [...invented]);
}

export function forget(name) {
  invented.delete(name);
  keep("invented", [...invented]);
}

/** Decisions by text: a Map from text to a Map from label to "accept" or "reject". */
const decided = new Map(kept("decided", []).map(([about, choices]) => [about, new Map(choices)]));

export function choiceOf(about, label) {
  return decided.get(about)?.get(label) ?? null;
}

export function labelsOf(about, choice) {
  return [...(decided.get(about) ?? [])].filter(([, made]) => made === choice).map(([label]) => label);
}

/** Notes a choice; the same one again takes it back, and so does null. */
export function choose(about, label, choice) {
  const choices = decided.get(about) ?? new Map();
  if (choice === null || choices.get(label) === choice) choices.delete(label);
  else choices.set(label, choice);
  if (choices.size) decided.set(about, choices);
  else decided.delete(about);
  keepDecisions();
}

export function drop(about) {
  decided.delete(about);
  keepDecisions();
}

function keepDecisions() {
  keep("decided", [...decided].map(([about, choices]) => [about, [...choices]]));
}

/** Corrected texts, oldest first, as rows of a table that `zipfel train` reads. */
export function corrections() {
  return [...decided.keys()].map((about) => ({
    text: about,
    labels: labelsOf(about, "accept"),
    rejected: labelsOf(about, "reject"),
  }));
}

/** Returns the corrections as JSONL. A text without an accepted tag is left out: what its tags are, nobody has said. */
export function asJsonl() {
  const rows = corrections().filter((row) => row.labels.length);
  return rows.map((row) => `${JSON.stringify(row)}\n`).join("");
}
