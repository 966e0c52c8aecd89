"use strict";
// The documentation's own script. Every page is whole without it.
(() => {
  const field = document.querySelector("input[type=search]");
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    event.preventDefault();
    field.focus();
    field.select();
  });

  // What is wider than the screen is scrolled by keyboard too.
  const mark = () => {
    for (const each of document.querySelectorAll("pre, .wide")) {
      if (each.scrollWidth > each.clientWidth) each.tabIndex = 0; else each.removeAttribute("tabindex");
    }
  };
  requestAnimationFrame(() => setTimeout(mark)); // after the first paint: it lays out the whole page
  addEventListener("resize", mark);

  // The guide to the API was at /docs: its sections are where it is now.
  const section = location.hash.slice(1);
  if (location.pathname === "/docs" && section && !document.getElementById(section)) {
    location.replace("/docs/api#" + section);
  }
})();
