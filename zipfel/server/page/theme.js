// Light or dark: the system's setting, until the user chooses the other one.

const KEPT = "zipfel.theme"; // a preference, so it outlives the session
const system = matchMedia("(prefers-color-scheme: dark)");

/** Makes the button switch between light and dark. */
export function setUpTheme(button) {
  const show = () => {
    const chosen = localStorage.getItem(KEPT);
    if (chosen) document.documentElement.dataset.theme = chosen;
    else delete document.documentElement.dataset.theme;
    button.textContent = other();
    button.setAttribute("aria-label", `Use ${other().toLowerCase()} colours`);
  };
  const other = () => ((localStorage.getItem(KEPT) ?? (system.matches ? "dark" : "light")) === "dark" ? "Light" : "Dark");
  button.addEventListener("click", () => {
    const wanted = other().toLowerCase();
    if ((wanted === "dark") === system.matches) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, wanted);
    show();
  });
  system.addEventListener("change", show);
  show();
}
