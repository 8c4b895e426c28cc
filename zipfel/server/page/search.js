// Searches labels by name or text as the user types, and lists them below the field.

import { Problem } from "./api.js";
import { element } from "./made.js";

const WAIT = 150; // ms after the last key

/** Makes the field a combobox; calls search(words, signal), pick(name) with the chosen label, fail(problem), and done() when it works again. */
export function searchable(field, list, { search, pick, fail, done }) {
  let timer, control, at;

  const options = () => [...list.children];
  const close = () => {
    control?.abort();
    clearTimeout(timer);
    list.hidden = true;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };
  const choose = (option) => {
    if (!option?.dataset.label) return;
    field.value = "";
    close();
    pick(option.dataset.label);
  };
  const mark = (index) => {
    at = Math.min(Math.max(index, 0), options().length - 1);
    options().forEach((option, number) => option.setAttribute("aria-selected", String(number === at)));
    if (options()[at]) field.setAttribute("aria-activedescendant", options()[at].id);
    options()[at]?.scrollIntoView({ block: "nearest" });
  };
  const find = async () => {
    control?.abort();
    control = new AbortController();
    const { signal } = control;
    try {
      const { labels } = await search(field.value.trim(), signal);
      if (!signal.aborted) show(labels), done();
    } catch (error) {
      if (error instanceof Problem) fail(error);
      else if (error.name !== "AbortError") throw error;
    }
  };
  const show = (labels) => {
    list.replaceChildren(...(labels.length ? labels.map(option) : [element("li", "No matching label.", "none")]));
    list.hidden = false;
    field.setAttribute("aria-expanded", "true");
    if (labels.length) mark(0);
  };

  field.addEventListener("input", () => {
    clearTimeout(timer);
    if (field.value.trim()) timer = setTimeout(find, WAIT);
    else close(), done();
  });
  field.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    const act = {
      ArrowDown: () => mark(at + 1),
      ArrowUp: () => mark(at - 1),
      Enter: () => choose(options()[at]),
      Escape: close,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
  list.addEventListener("pointerdown", (event) => event.preventDefault()); // else the field would lose the focus first
  list.addEventListener("click", (event) => choose(event.target.closest("li")));
  field.addEventListener("blur", close);
}

function option({ name, title, text }, index) {
  const item = element("li", [element("span", title ?? name, "name"), element("span", title ? name : text ?? "", "about")]);
  item.id = `found-${index}`;
  item.dataset.label = name;
  item.setAttribute("role", "option");
  return item;
}
