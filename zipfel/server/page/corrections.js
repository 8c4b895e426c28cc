// The list of corrected texts, and their download as a table that `zipfel train` reads.

import { titleOf } from "./labels.js";
import { button, element } from "./made.js";
import * as session from "./session.js";

const byId = (id) => document.getElementById(id);

/** Shows the corrected texts; `open(document, model)` puts one back into the field, `removed(correction)` is called after a removal. */
export function showCorrections(open, removed) {
  const rows = session.corrections();
  const incomplete = rows.filter((row) => !row.labels.length).length;
  byId("corrections").hidden = !rows.length;
  byId("download").disabled = incomplete === rows.length;
  byId("left-out").textContent = incomplete ? `${texts(incomplete)} left out until a tag is accepted.` : "";
  byId("corrected").replaceChildren(...rows.map((row) => correction(row, open, removed)));
}

function correction(row, open, removed) {
  const { document, model, labels, rejected } = row;
  const text = typeof document === "string" ? document : Object.values(document).join(" · ");
  const remove = button("×", () => (session.drop({ document, model }), removed(row)), "remove");
  remove.setAttribute("aria-label", `Remove the correction of “${text.slice(0, 40)}”`);
  const tags = [...labels.map((label) => element("span", titleOf(label), "kept")), ...rejected.map((label) => element("s", titleOf(label)))];
  return element("li", [button(text.trim().slice(0, 200), () => open(document, model), "excerpt"), element("p", tags), remove]);
}

function texts(count) {
  return count === 1 ? "1 text is" : `${count} texts are`;
}

/** Downloads the corrections as a file. */
export function download() {
  const address = URL.createObjectURL(new Blob([session.asJsonl()], { type: "application/jsonl" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = "corrections.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // the browser reads it after the click
}
