// The inputs of the page: one for the text, or one for each text field of the model. Each has a mirror with its marks.

import { made } from "./made.js";
import { moved, paint, strongest } from "./marks.js";

/** Returns a document that has these fields: a text if there are none, else an object of texts by field. */
function fitted(document, names) {
  if (!names.length) return typeof document === "string" ? document : Object.values(document).join("\n");
  const given = typeof document === "string" ? { [names.at(-1)]: document } : document;
  return Object.fromEntries(names.map((name) => [name, given[name] ?? ""]));
}

/** Holds the document; calls on.typed() after a change by the user, and on.key(event, isLast) for keys. */
export class Inputs {
  #names = []; // of the fields; none for a text without fields
  #parts; // {name, area, mirror, painted: {text, ranges, most}}

  constructor(box, on) {
    this.box = box;
    this.on = on;
    this.#take([""], [...box.children]);
  }

  /** Shows an input for each field; a model with a single field gets a text. Returns whether the inputs changed. */
  use(names) {
    const wanted = names.length > 1 ? names : [];
    if (wanted.join("\n") === this.#names.join("\n")) return false;
    const { document } = this;
    this.#names = wanted;
    const nodes = (wanted.length ? wanted : [""]).map(() => made(wanted.length ? "field-input" : "text-input"));
    this.box.replaceChildren(...nodes);
    this.#take(wanted.length ? wanted : [""], nodes);
    this.document = document;
    return true;
  }

  /** The document: a text, or an object of texts by field. */
  get document() {
    if (!this.#names.length) return this.#parts[0].area.value;
    return Object.fromEntries(this.#parts.map(({ name, area }) => [name, area.value]));
  }

  set document(document) {
    const texts = fitted(document, this.#names);
    for (const part of this.#parts) {
      part.area.value = this.#names.length ? texts[part.name] : texts;
      repaint(part, [], 1);
    }
  }

  get isBlank() {
    return this.#parts.every(({ area }) => !area.value.trim());
  }

  /** Whether the inputs hold this document. */
  shows(document) {
    return JSON.stringify(document) === JSON.stringify(this.document);
  }

  /** Marks the words of a document: rangesOf(name) are those of a field, or with "" those of the text. */
  mark(rangesOf) {
    const ranges = this.#parts.map(({ name }) => rangesOf(name));
    const most = strongest(ranges.flat());
    this.#parts.forEach((part, at) => repaint(part, ranges[at], most));
  }

  focus() {
    this.#parts[0].area.focus();
  }

  #take(names, nodes) {
    this.#parts = names.map((name, at) => {
      const [area, mirror] = ["textarea", ".mirror"].map((what) => nodes[at].querySelector(what));
      const part = { name, area, mirror, painted: { text: "", ranges: [], most: 1 } };
      if (name) this.#label(nodes[at], area, name, at);
      area.addEventListener("input", () => this.#typed(part));
      area.addEventListener("keydown", (event) => this.on.key(event, at === names.length - 1));
      return part;
    });
  }

  #label(node, area, name, at) {
    const label = node.querySelector("label");
    area.id = `field-${at}`;
    label.htmlFor = area.id;
    label.textContent = name;
  }

  #typed(part) {
    const { text, ranges, most } = part.painted;
    repaint(part, moved(ranges, text, part.area.value), most);
    this.on.typed();
  }
}

function repaint(part, ranges, most) {
  part.painted = { text: part.area.value, ranges, most };
  paint(part.mirror, part.area.value, ranges, most);
}
