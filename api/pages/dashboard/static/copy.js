"use strict";
// Copying by the buttons of the dashboard and of the documentation.
(() => {
  // The clipboard of the browser is missing over plain http: then the text is selected and copied.
  async function copy(text) {
    if (navigator.clipboard) {
      try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed: the old way */ }
    }
    const field = document.createElement("textarea"), before = document.activeElement;
    field.value = text;
    field.readOnly = true;
    field.className = "copying";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    before?.focus();
    return done;
  }

  // Of what a terminal shows, the commands.
  function textOf(place) {
    const lines = place.textContent.split("\n");
    if (!place.classList.contains("language-console")) return lines.join("\n");
    return lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2)).join("\n");
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const place = document.getElementById(button.dataset.copy);
    const words = button.querySelector("span") ?? button; // beside an icon
    if (await copy(textOf(place))) {
      words.textContent = "Copied";
      return;
    }
    getSelection().selectAllChildren(place);
    words.textContent = "Press Ctrl+C";
  });
})();
