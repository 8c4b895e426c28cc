// What the service said about one text: its tags, and the words behind them as they arrive.

import { ask, Problem } from "./api.js";
import { chosenModel } from "./labels.js";
import { ranges } from "./marks.js";
import * as session from "./session.js";

const ASKED = 50; // tags, so that the slider needs no server and a new label's place is known
const SHOWN = 10; // rows at most, besides those that were decided on
const PULLERS = 4; // words told in a row
const FAINT = 0.05; // of the strongest word's weight: what is below says nothing

export class Answer {
  #reasons = new Map(); // label → what /explain says, and where that is in the text

  constructor(text, tags) {
    this.text = text;
    this.tags = tags;
  }

  static async of(text, signal) {
    const extra = session.invented.size ? { extra: Object.fromEntries(session.invented) } : {};
    const { tags } = await ask("tag", { body: { texts: [text], k: ASKED, ...chosenModel(), ...extra }, signal });
    return new Answer(text, tags[0]);
  }

  score(label) {
    return this.tags.find((tag) => tag.label === label)?.score ?? null;
  }

  choice(label) {
    return session.choiceOf(this.text, label);
  }

  above(threshold) {
    return this.tags.filter(({ score }) => score >= threshold);
  }

  /** Returns the rows to show: the best tags above the threshold, then others that were decided on. */
  shown(threshold) {
    const first = this.above(threshold).slice(0, SHOWN);
    const there = new Set(first.map(({ label }) => label));
    const others = ["accept", "reject"].flatMap((choice) => session.labelsOf(this.text, choice));
    const scored = others.filter((label) => !there.has(label)).map((label) => ({ label, score: this.score(label) }));
    return [...first, ...scored.sort((one, other) => (other.score ?? -1) - (one.score ?? -1))];
  }

  /** Asks for the words behind a tag, once. */
  async explain(label, signal) {
    if (this.#reasons.has(label) || this.score(label) === null) return;
    const said = await this.#askWhy(label, signal);
    const reasons = strong(said.reasons);
    this.#reasons.set(label, { reasons, found: ranges(this.text, reasons), problem: said.problem });
  }

  async #askWhy(label, signal) {
    if (session.invented.has(label)) return { reasons: [], problem: "A new label is placed by its text as a whole." };
    try {
      return await ask("explain", { body: { text: this.text, label, ...chosenModel() }, signal });
    } catch (error) {
      if (error instanceof Problem) return { reasons: [], problem: error.message };
      throw error;
    }
  }

  /** Returns {reasons, found, problem} of a label; undefined while it is on its way. */
  why(label) {
    return this.#reasons.get(label);
  }

  pullers(label) {
    const reasons = this.why(label)?.reasons ?? [];
    return reasons.filter(({ weight }) => weight > 0).slice(0, PULLERS).map(({ term }) => term);
  }

  placeOf(label) {
    const place = this.tags.findIndex((tag) => tag.label === label);
    return place < 0 ? `not among the first ${ASKED}` : `place ${place + 1}, ${this.tags[place].score.toFixed(2)}`;
  }

  /** Tells what is not shown. */
  rest(threshold) {
    const [best] = this.tags;
    const above = this.above(threshold).length;
    if (!best) return "The model finds no tag for this text.";
    if (!above) return `No tag reaches ${threshold.toFixed(2)}; the best, ${best.label}, has ${best.score.toFixed(2)}.`;
    if (above <= SHOWN) return "";
    return above === ASKED ? "and more below these" : `and ${above - SHOWN} more below these`;
  }
}

function strong(reasons) {
  const most = Math.max(...reasons.map(({ weight }) => Math.abs(weight)));
  return reasons.filter(({ weight }) => weight && Math.abs(weight) >= FAINT * most);
}
