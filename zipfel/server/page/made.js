// Elements out of the page's templates, and small ones made by hand. Text goes in as text, never as markup.

/** Returns a copy of what the template holds. */
export function made(template) {
  return document.getElementById(template).content.firstElementChild.cloneNode(true);
}

/** Returns an element of that kind with text (or elements) in it, and a class. */
export function element(kind, content, name = "") {
  const one = document.createElement(kind);
  one.className = name;
  if (kind === "button") one.type = "button";
  one.append(...[content].flat());
  return one;
}

/** Returns a button that does something. */
export function button(text, act, name = "") {
  const one = element("button", text, name);
  one.addEventListener("click", act);
  return one;
}
