// The list of tags: one row per label, reused while the label stays, so that bars move instead of jumping.

import { made } from "./made.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** Shows tags in a list; calls on.open(label), on.choose(label, choice), on.look(label or null) and on.leave(). */
export class TagList {
  #rows = new Map(); // label → <li>

  constructor(list, on) {
    this.list = list;
    this.on = on;
    list.addEventListener("click", (event) => this.#clicked(event));
    list.addEventListener("keydown", (event) => this.#pressed(event));
    for (const kind of ["pointerover", "focusin"]) list.addEventListener(kind, (event) => this.#looked(event));
    list.addEventListener("pointerleave", () => on.look(this.focused));
    list.addEventListener("focusout", (event) => list.contains(event.relatedTarget) || on.look(null));
  }

  /** Shows items, best first: {label, title, score or null, about, words, choice, invented}. */
  show(items, threshold) {
    const before = new Map([...this.#rows].map(([label, row]) => [label, row.offsetTop]));
    const focusedIndex = this.#labels().indexOf(this.focused);
    const wanted = new Set(items.map((item) => item.label));
    for (const [label, row] of this.#rows) if (!wanted.has(label)) this.#remove(label, row);
    items.forEach((item, at) => {
      const row = this.#rowOf(item.label);
      fill(row, item, threshold);
      if (this.list.children[at] !== row) this.#move(row, at);
    });
    this.#slide(before);
    this.#keepFocus(focusedIndex);
  }

  get focused() {
    return document.activeElement?.closest("li.tag")?.dataset.label ?? null;
  }

  row(label) {
    return this.#rows.get(label) ?? null;
  }

  focus(label) {
    this.row(label)?.querySelector(".main").focus();
  }

  #labels() {
    return [...this.list.children].map((row) => row.dataset.label);
  }

  #rowOf(label) {
    if (!this.#rows.has(label)) {
      const row = made("tag-row");
      row.dataset.label = label;
      this.#rows.set(label, row);
    }
    return this.#rows.get(label);
  }

  #remove(label, row) {
    row.remove();
    this.#rows.delete(label);
  }

  /** Moves a row, and restores the focus, which a moved element loses. */
  #move(row, at) {
    const focus = row.contains(document.activeElement) ? document.activeElement : null;
    this.list.insertBefore(row, this.list.children[at] ?? null);
    focus?.focus({ preventScroll: true });
  }

  #slide(before) {
    if (calm.matches) return;
    for (const [label, row] of this.#rows) {
      const from = (before.get(label) ?? row.offsetTop) - row.offsetTop;
      const timing = { duration: 220, easing: "ease-out" };
      if (from) row.animate([{ transform: `translateY(${from}px)` }, { transform: "none" }], timing);
      else if (!before.has(label)) row.animate([{ opacity: 0 }, { opacity: 1 }], timing);
    }
  }

  /** Makes one row reachable by Tab, as in a toolbar; arrow keys reach the others. */
  #keepFocus(focusedIndex) {
    const labels = this.#labels();
    const gone = focusedIndex >= 0 && this.focused === null;
    const current = gone ? labels[Math.min(focusedIndex, labels.length - 1)] : this.focused ?? this.current;
    this.#setCurrent(labels.includes(current) ? current : labels[0]);
    if (gone) this.focus(this.current);
  }

  #setCurrent(label) {
    this.current = label;
    for (const [name, row] of this.#rows)
      for (const button of row.querySelectorAll(".row button")) button.tabIndex = name === label ? 0 : -1;
  }

  #clicked(event) {
    const button = event.target.closest(".row button");
    if (!button) return;
    const { label } = button.closest("li.tag").dataset;
    if (button.classList.contains("main")) this.on.open(label);
    else this.on.choose(label, button.classList.contains("accept") ? "accept" : "reject");
  }

  #pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.closest(".row")) return;
    const act = this.#keys(event.key);
    if (!act) return;
    event.preventDefault();
    act();
  }

  #keys(key) {
    const labels = this.#labels();
    const at = labels.indexOf(this.focused);
    const choose = (choice) => () => this.on.choose(labels[at], choice);
    return {
      ArrowDown: () => this.focus(labels[Math.min(at + 1, labels.length - 1)]),
      ArrowUp: () => (at ? this.focus(labels[at - 1]) : this.on.leave()),
      Home: () => this.focus(labels[0]),
      End: () => this.focus(labels.at(-1)),
      a: choose("accept"),
      r: choose("reject"),
    }[key];
  }

  #looked(event) {
    const label = event.target.closest("li.tag")?.dataset.label;
    if (!label) return;
    if (event.type === "focusin") this.#setCurrent(label);
    this.on.look(label);
  }
}

function fill(row, { label, title, score, about, words, choice, invented }, threshold) {
  const part = (name) => row.querySelector(`.row .${name}`);
  part("name").textContent = title;
  part("about").textContent = about;
  part("score").textContent = score === null ? "added" : score.toFixed(2);
  part("fill").style.transform = `scaleX(${Math.min(Math.max(score ?? 0, 0), 1)})`;
  part("cut").style.left = `${100 * threshold}%`;
  part("why").textContent = words.join(" · ");
  row.classList.toggle("invented", invented);
  row.classList.toggle("below", score !== null && score < threshold);
  for (const kind of ["accept", "reject"]) {
    part(kind).setAttribute("aria-pressed", String(choice === kind));
    part(kind).setAttribute("aria-label", `${kind === "accept" ? "Accept" : "Reject"} ${title}`);
    row.classList.toggle(`${kind}ed`, choice === kind);
  }
}
