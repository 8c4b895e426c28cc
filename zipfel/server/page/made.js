// Elements made from the page's templates, and small ones made directly. Text is inserted as text, never as markup.

/** Returns a copy of the template's content. */
export function made(template) {
  return document.getElementById(template).content.firstElementChild.cloneNode(true);
}

/** Returns an element with text or elements in it, and a class. */
export function element(kind, content, name = "") {
  const one = document.createElement(kind);
  one.className = name;
  if (kind === "button") one.type = "button";
  one.append(...[content].flat());
  return one;
}

/** Returns a button that calls `act` on a click. */
export function button(text, act, name = "") {
  const one = element("button", text, name);
  one.addEventListener("click", act);
  return one;
}
