// The question for a token.

const byId = (id) => document.getElementById(id);

/** Asks the user for a token, and says why; returns it, or an empty text if there is none. */
export function tokenFromUser(why) {
  const dialog = byId("token-dialog");
  byId("token-problem").textContent = why;
  byId("token").value = dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue && byId("token").value), { once: true });
  });
}
