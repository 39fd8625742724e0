// Light or dark? The system's choice, until somebody chooses here. Runs before the first paint, so that nothing flashes.
(() => {
  const names = ["auto", "light", "dark"];
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("theme") || "auto";
  } catch {
    /* storage is forbidden: auto */
  }
  const show = () => {
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${chosen}`;
  };
  if (!names.includes(chosen)) chosen = "auto";
  show();
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      chosen = names[(names.indexOf(chosen) + 1) % names.length];
      try {
        localStorage.setItem("theme", chosen);
      } catch {
        /* for this visit only, then */
      }
      show();
    });
  });
})();
