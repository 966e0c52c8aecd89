"use strict";
// What every page of the dashboard has: questions before forms, a sign of waiting,
// keys, and the addresses that this tab has tried.
(() => {
  document.addEventListener("submit", (event) => {
    const form = event.target, words = form.dataset.confirm;
    if (words && !confirm(words)) { event.preventDefault(); return; }
    if (!form.dataset.wait) return;
    const button = form.querySelector("button");
    if (button.ariaBusy === "true") { event.preventDefault(); return; }
    button.dataset.words = button.textContent;
    button.ariaBusy = "true";
    button.textContent = form.dataset.wait;
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted && document.querySelector("button[aria-busy=true]")) location.reload();
  });

  // The last addresses of the page Try. Signing out, or into another account, forgets them.
  const TRIED_MAX = 10;
  const tried = document.getElementById("tried");
  if (tried) {
    let kept = JSON.parse(sessionStorage.getItem("tried") ?? "{}");
    if (kept.account !== tried.dataset.account) kept = { account: tried.dataset.account, items: [] };
    for (const { dataset } of document.querySelectorAll("[data-tried]")) {
      const item = { email: dataset.tried, light: dataset.light, status: dataset.status };
      kept.items = [item, ...kept.items.filter((each) => each.email !== item.email)].slice(0, TRIED_MAX);
    }
    sessionStorage.setItem("tried", JSON.stringify(kept));
    for (const { email, status } of kept.items) {
      const row = document.createElement("li"), link = document.createElement("a"), badge = document.createElement("span");
      link.href = "/dashboard/try?" + new URLSearchParams({ email });
      link.textContent = email;
      badge.className = "badge " + status;
      badge.textContent = status.replace("_", " ");
      row.append(badge, " ", link);
      tried.querySelector("ol").append(row);
    }
    tried.hidden = !kept.items.length;
  } else if (!document.querySelector("meta[name=csrf]")) {
    sessionStorage.removeItem("tried");
  }

  // A browser gives the focus to such a field with its first frame; keys pressed until then must not act.
  document.querySelector("[autofocus]")?.focus();

  // Keys: / searches, n sends a list, ? shows them all.
  const help = document.getElementById("keys-help");
  document.addEventListener("keydown", (event) => {
    if (!help || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest("input, textarea, select, [contenteditable], dialog")) return;
    const acts = {
      "/": () => {
        const field = document.querySelector("[data-search], input[type=search]");
        if (field) { field.focus(); field.select(); } else location.href = "/dashboard/try";
      },
      n: () => { location.href = "/dashboard/lists#file"; },
      "?": () => help.showModal(),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
  if (help) document.querySelector("[data-opens=keys-help]").addEventListener("click", () => help.showModal());
})();
