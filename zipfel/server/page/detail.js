// What is known of a label, shown under its row: description, frequency, the words that pulled it, its neighbours.

import { button, element, made } from "./made.js";

const number = new Intl.NumberFormat("en");

/** The one detail that is open, or none. `source` gives about(label), words(label) and accept(label). */
export class Detail {
  label = null; // the row it belongs to
  #panel = null;
  #path = []; // neighbours that were followed from there

  constructor(source) {
    this.source = source;
  }

  toggle(row) {
    const label = row.dataset.label;
    if (this.label === label) return this.close();
    this.close();
    this.label = label;
    this.#path = [label];
    this.#panel = made("tag-detail");
    this.#panel.querySelector(".back").addEventListener("click", () => this.#back());
    row.append(this.#panel);
    row.querySelector(".main").setAttribute("aria-expanded", "true");
    return this.#show();
  }

  close() {
    if (!this.#panel) return;
    const main = this.#panel.closest("li")?.querySelector(".main");
    main?.setAttribute("aria-expanded", "false");
    if (this.#panel.contains(document.activeElement)) main?.focus();
    this.#panel.remove();
    this.#panel = this.label = null;
  }

  /** Shows again what may have changed: the words, or nothing where the row is gone. */
  refresh() {
    if (this.#panel && !this.#panel.isConnected) this.#panel = this.label = null;
    if (this.#panel) this.#showWords();
  }

  #back() {
    this.#path.pop();
    return this.#show();
  }

  #follow(name) {
    this.#path.push(name);
    return this.#show();
  }

  async #show() {
    const panel = this.#panel;
    const label = this.#path.at(-1);
    panel.setAttribute("aria-label", `About ${label}`);
    panel.querySelector(".name").textContent = label;
    panel.querySelector(".heading").hidden = this.#path.length < 2; // the row above says it
    this.#showWords();
    const about = await this.source.about(label);
    if (panel !== this.#panel || label !== this.#path.at(-1)) return; // closed, or gone on, meanwhile
    panel.querySelector(".about").textContent = about.text;
    panel.querySelector(".frequency").textContent = told(about);
    this.#showNeighbours(about.near);
  }

  #showWords() {
    const words = this.#path.length === 1 ? this.source.words(this.label) : [];
    const most = Math.max(...words.map(({ weight }) => Math.abs(weight)), Number.MIN_VALUE);
    const box = this.#panel.querySelector(".words");
    box.hidden = !words.length;
    box.querySelector("ul").replaceChildren(...words.map(({ term, weight }) => word(term, weight / most)));
  }

  #showNeighbours(neighbours) {
    const box = this.#panel.querySelector(".neighbours");
    box.hidden = !neighbours.length;
    const items = neighbours.map(({ label }) => {
      const add = button("+", () => this.source.accept(label), "add");
      add.setAttribute("aria-label", `Accept ${label}`);
      return element("li", [button(label, () => this.#follow(label), "follow"), add]);
    });
    box.querySelector("ul").replaceChildren(...items);
  }
}

function word(term, pull) {
  const item = element("li", term, pull < 0 ? "against" : "");
  item.style.setProperty("--pull", (0.25 + 0.75 * Math.abs(pull)).toFixed(2));
  return item;
}

function told({ count, why }) {
  const seen = { null: "", undefined: "", 0: "Not on any text that the model learned from.", 1: "On 1 text that the model learned from." };
  return [seen[count] ?? `On ${number.format(count)} texts that the model learned from.`, why ?? ""].join(" ").trim();
}
