// The service's tags of one text, and the words behind each tag as they arrive.

import { ask, Problem } from "./api.js";
import { chosenModel, keepTitle, titleOf } from "./labels.js";
import { ranges } from "./marks.js";
import * as session from "./session.js";

const ASKED = 50; // tags to request, so that the slider needs no request and a new label's rank is known
const SHOWN = 10; // maximum rows, besides accepted and rejected tags
const STRONGEST = 4; // words shown per row
const FAINT = 0.05; // share of the strongest word's weight; weaker words are noise

export class Answer {
  #reasons = new Map(); // label → response of /explain, and ranges in the text

  constructor(document, tags, known, { id, version }) {
    this.document = document; // a text, or an object of texts by field
    this.model = id; // of the model that predicted the tags
    this.version = version;
    this.tags = tags;
    this.known = known; // whether the model knows a word of the text
  }

  static async of(document, signal) {
    const extra = session.invented.size ? { extra: Object.fromEntries(session.invented) } : {};
    const { tags, known, model } = await ask("tag", { body: { texts: [document], k: ASKED, ...chosenModel(), ...extra }, signal });
    for (const { label, title } of tags[0]) if (title) keepTitle(label, title);
    return new Answer(document, tags[0], known[0], model);
  }

  score(label) {
    return this.tags.find((tag) => tag.label === label)?.score ?? null;
  }

  choice(label) {
    return session.choiceOf(this, label);
  }

  above(threshold) {
    return this.tags.filter(({ score }) => score >= threshold);
  }

  /** Returns how a label was decided, and its rank and score if it was among the tags that the page proposed. */
  decision(label, threshold) {
    const index = this.above(threshold).slice(0, SHOWN).findIndex((tag) => tag.label === label);
    const shown = index < 0 ? {} : { rank: index + 1, score: this.tags[index].score };
    return { label, decision: this.choice(label) ?? "undo", ...shown };
  }

  /** Returns the rows to show: the best tags above the threshold, then other accepted or rejected tags. */
  shown(threshold) {
    const best = this.above(threshold).slice(0, SHOWN);
    const included = new Set(best.map(({ label }) => label));
    const others = ["accept", "reject"].flatMap((choice) => session.labelsOf(this, choice));
    const scored = others.filter((label) => !included.has(label)).map((label) => ({ label, score: this.score(label) }));
    return [...best, ...scored.sort((one, other) => (other.score ?? -1) - (one.score ?? -1))];
  }

  /** Requests the words behind a tag, once. */
  async explain(label, signal) {
    if (this.#reasons.has(label) || this.score(label) === null) return;
    const response = await this.#requestReasons(label, signal);
    const reasons = strong(response.reasons);
    this.#reasons.set(label, { reasons, problem: response.problem });
  }

  async #requestReasons(label, signal) {
    if (session.invented.has(label)) return { reasons: [], problem: "A new label is scored by its text as a whole." };
    try {
      return await ask("explain", { body: { text: this.document, label, ...chosenModel() }, signal });
    } catch (error) {
      if (error instanceof Problem) return { reasons: [], problem: error.message };
      throw error;
    }
  }

  /** Returns the words behind a tag as ranges of a field, or with "" of the text. */
  rangesIn(field, label) {
    const reasons = this.why(label)?.reasons ?? [];
    if (typeof this.document === "string") return ranges(this.document, reasons);
    const inField = reasons.map(({ weight, places }) => ({ weight, places: places[field] ?? [] }));
    return ranges(this.document[field], inField);
  }

  /** Returns {reasons, problem} of a label; undefined until the response arrives. */
  why(label) {
    return this.#reasons.get(label);
  }

  strongestWords(label) {
    const reasons = this.why(label)?.reasons ?? [];
    return reasons.filter(({ weight }) => weight > 0).slice(0, STRONGEST).map(({ term }) => term);
  }

  rankOf(label) {
    const index = this.tags.findIndex((tag) => tag.label === label);
    return index < 0 ? `not in the top ${ASKED}` : `rank ${index + 1}, score ${this.tags[index].score.toFixed(2)}`;
  }

  /** Returns a sentence on the tags that are not shown. */
  rest(threshold) {
    const [best] = this.tags;
    const above = this.above(threshold).length;
    if (!best) return "The model predicts no tag for this text.";
    if (!above) return `No tag scores ${threshold.toFixed(2)} or more; the best, ${titleOf(best.label)}, scores ${best.score.toFixed(2)}.`;
    if (above === ASKED) return "and more tags";
    const below = this.tags.length < ASKED ? `${this.tags.length - above}` : `${this.tags.length - above} or more`;
    const parts = [above > SHOWN && `${above - SHOWN} more above`, above < this.tags.length && `${below} more below`];
    const rest = parts.filter(Boolean).join(", ");
    return rest && `${rest} the threshold`;
  }
}

function strong(reasons) {
  const most = Math.max(...reasons.map(({ weight }) => Math.abs(weight)));
  return reasons.filter(({ weight }) => weight && Math.abs(weight) >= FAINT * most);
}
