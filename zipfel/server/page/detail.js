// Details of a label, shown under its row: description, path in the hierarchy, frequency, the words behind it, its nearest labels.

import { keepTitle, titleOf } from "./labels.js";
import { button, element, made } from "./made.js";

const number = new Intl.NumberFormat("en");

/** The open detail, at most one. `source` has about(label), words(label) and accept(label). */
export class Detail {
  label = null; // label of its row
  #panel = null;
  #path = []; // that label, and the nearest labels followed from there

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

  /** Updates the words, which may have changed; closes if the row is gone. */
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
    panel.setAttribute("aria-label", `About ${titleOf(label)}`);
    panel.querySelector(".name").textContent = titleOf(label);
    panel.querySelector(".heading").hidden = this.#path.length < 2; // the row above shows the name
    this.#showWords();
    const about = await this.source.about(label);
    if (panel !== this.#panel || label !== this.#path.at(-1)) return; // closed, or another label opened, meanwhile
    panel.querySelector(".about").textContent = about.text;
    const path = panel.querySelector(".path");
    path.textContent = (about.paths ?? []).map((labels) => labels.map((name) => about.titles?.[name] ?? name).join(" › ")).join("; ");
    path.hidden = !path.textContent;
    panel.querySelector(".frequency").textContent = frequency(about);
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
    const items = neighbours.map(({ label, title, text }) => {
      if (title) keepTitle(label, title);
      const shown = title ?? label;
      const add = button("+", () => this.source.accept(label), "add");
      add.setAttribute("aria-label", `Accept ${shown}`);
      const known = !title && text && text.toLowerCase() !== label.toLowerCase() ? [" ", element("span", text, "meaning")] : [];
      return element("li", [button([element("span", shown, "code"), ...known], () => this.#follow(label), "follow"), add]);
    });
    box.querySelector("ul").replaceChildren(...items);
  }
}

function word(term, strength) {
  const item = element("li", term, strength < 0 ? "against" : "");
  item.style.setProperty("--pull", (0.25 + 0.75 * Math.abs(strength)).toFixed(2));
  return item;
}

function frequency({ count, why }) {
  const known = { null: "", undefined: "", 0: "No training text has this label.", 1: "1 training text has this label." };
  return [known[count] ?? `${number.format(count)} training texts have this label.`, why ?? ""].join(" ").trim();
}
