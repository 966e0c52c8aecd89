"use strict";
// The dashboard's own script. Every page works without it, but for the live progress, the panel of
// a row, and files of more than 2 MB.
(() => {
  const csrf = () => document.querySelector("meta[name=csrf]").content;

  // Questions before forms, and a sign of waiting: a second click is ignored.
  document.addEventListener("submit", (event) => {
    const form = event.target, words = form.dataset.confirm;
    if (words && !confirm(words)) { event.preventDefault(); return; }
    if (!form.dataset.wait) return;
    const button = form.querySelector("button");
    if (button.ariaBusy === "true") { event.preventDefault(); return; }
    button.ariaBusy = "true";
    button.textContent = form.dataset.wait;
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted && document.querySelector("button[aria-busy=true]")) location.reload();
  });

  // A menu closes by Escape and by a click elsewhere.
  const closeMenus = (but) => {
    for (const each of document.querySelectorAll("details[name=menu][open]")) if (!each.contains(but)) each.open = false;
  };
  document.addEventListener("click", (event) => closeMenus(event.target));

  // What takes longer than LATE_MS shows a line at the top.
  const LATE_MS = 300;
  let late = null;
  document.addEventListener("htmx:beforeRequest", () => { late ??= setTimeout(() => document.body.classList.add("late"), LATE_MS); });
  document.addEventListener("htmx:afterRequest", () => { clearTimeout(late); late = null; document.body.classList.remove("late"); });

  // The last addresses of the page Try. Signing out, or into another account, forgets them.
  const TRIED_MAX = 10;
  const tried = document.getElementById("tried");
  if (tried) {
    let kept = JSON.parse(sessionStorage.getItem("tried") ?? "{}");
    if (kept.account !== tried.dataset.account) kept = { account: tried.dataset.account, items: [] };
    for (const { dataset } of document.querySelectorAll("[data-tried]")) {
      const item = { email: dataset.tried, kind: dataset.kind, why: dataset.why };
      kept.items = [item, ...kept.items.filter((each) => each.email !== item.email)].slice(0, TRIED_MAX);
    }
    sessionStorage.setItem("tried", JSON.stringify(kept));
    for (const { email, kind, why } of kept.items) {
      const verdict = tried.querySelector(`template[data-verdict=${kind}]`);
      if (!verdict) continue; // kept by an earlier version
      const row = document.createElement("li"), link = document.createElement("a"), words = document.createElement("small");
      link.href = "/dashboard/try?" + new URLSearchParams({ email });
      link.textContent = email;
      link.className = "mono";
      words.textContent = why;
      row.append(link, verdict.content.cloneNode(true), words);
      tried.querySelector("ol").append(row);
    }
    tried.hidden = !kept.items.length;
  } else if (!document.querySelector("meta[name=csrf]")) {
    sessionStorage.removeItem("tried");
  }

  // A browser gives the focus to such a field with its first frame; keys pressed until then must not act.
  document.querySelector("[autofocus]")?.focus();

  // A row of a list opens beside the table, under an address of its own; closed, the focus goes back.
  const panel = document.getElementById("panel");
  let opened = null;
  const rows = () => [...document.querySelectorAll(".results td:first-child a")];
  const mark = () => { for (const each of rows()) each.closest("tr").classList.toggle("open", each.pathname === opened); };
  const close = () => {
    panel.hidden = true;
    const link = rows().find((each) => each.pathname === opened);
    opened = null;
    mark();
    link?.focus();
  };
  const move = (by) => {
    const links = rows(), at = links.findIndex((each) => each.pathname === opened);
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.click();
  };
  if (panel) {
    document.body.addEventListener("htmx:afterSwap", (event) => {
      if (event.detail.target.id !== "row" || event.detail.requestConfig.verb !== "get") return;
      opened = event.detail.pathInfo.requestPath;
      panel.hidden = false;
      panel.scrollTop = 0;
      panel.focus();
      mark();
    });
    panel.addEventListener("click", (event) => {
      const by = event.target.closest("[data-row]")?.dataset.row;
      if (by !== undefined) { if (by === "0") close(); else move(Number(by)); }
    });
  }

  // Keys: / searches, n sends a list, ? shows them all; j and k open rows, Escape closes one.
  const help = document.getElementById("keys-help");
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { closeMenus(null); if (opened) close(); }
    if (!help || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest("input, textarea, select, [contenteditable], dialog")) return;
    const acts = {
      "/": () => {
        const field = document.querySelector("[data-search], input[type=search]");
        if (field) { field.focus(); field.select(); } else location.href = "/dashboard/try";
      },
      n: () => { location.href = "/dashboard/lists#file"; },
      "?": () => help.showModal(),
      ...(panel && { j: () => move(1), k: () => move(-1) }),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
  if (help) document.querySelector("[data-opens=keys-help]").addEventListener("click", () => { closeMenus(null); help.showModal(); });

  // A list is sent as it is, so that it may have 256 MB; a text that is pasted, too.
  const form = document.getElementById("upload");
  if (form) {
    const file = form.elements.file, words = document.getElementById("zone-words"), error = document.getElementById("upload-error");
    const said = words.textContent;
    const fail = (what) => { error.textContent = what; words.textContent = said; file.value = ""; reset(); };
    const paste = document.getElementById("paste"), button = paste.querySelector("button"), label = button.textContent;
    const reset = () => { button.ariaBusy = null; button.textContent = label; };
    const send = (body, name) => {
      const request = new XMLHttpRequest(), { column, recheck, patience_s } = form.elements;
      const query = new URLSearchParams({ name, column: column.value, recheck: Number(recheck.checked), patience_s: patience_s.value });
      request.open("POST", "/dashboard/lists?" + query);
      request.setRequestHeader("X-CSRF-Token", csrf());
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.upload.onprogress = (sent) => { if (name) words.textContent = `Sending ${name}: ${Math.floor(100 * sent.loaded / sent.total)} %`; };
      request.onload = () => {
        if (request.status === 201) { location.href = request.getResponseHeader("Location"); return; }
        const page = new DOMParser().parseFromString(request.responseText, "text/html").querySelector("[role=alert]");
        fail(page ? page.textContent : "The list was not taken.");
      };
      request.onerror = () => fail("The connection broke; send the list again.");
      error.textContent = "";
      request.send(body);
    };
    file.addEventListener("change", () => { if (file.files.length) send(file.files[0], file.files[0].name); });
    form.addEventListener("submit", (event) => event.preventDefault());
    paste.addEventListener("submit", (event) => { event.preventDefault(); send(new Blob([paste.elements.text.value]), ""); });
    // The whole window takes a file that is dropped.
    const over = (event, is) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      form.classList.toggle("over", is);
      words.textContent = is ? "Let go to add the file" : said;
    };
    addEventListener("dragover", (event) => over(event, true));
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(event, false); });
    addEventListener("drop", (event) => {
      over(event, false);
      const [dropped] = event.dataTransfer.files;
      if (dropped) send(dropped, dropped.name);
    });
  }

  // How far a list is: the live socket says when that changes, and the page fetches its progress.
  // Where the socket fails twice, it is fetched every POLL_MS.
  const POLL_MS = 3000, FAILURES_MAX = 2;
  const progress = () => document.getElementById("progress");
  const title = document.title;
  const isUnderWay = () => progress() && ["running", "loading"].includes(progress().dataset.status);
  const showShare = () => { document.title = progress().dataset.share + " % – " + title; };
  if (isUnderWay()) {
    let failures = 0, polls = null, last = 0, later = null;
    const fetchProgress = () => {
      const wait = last + Number(progress().dataset.pace) - Date.now();
      if (wait > 0) { later ??= setTimeout(() => { later = null; fetchProgress(); }, wait); return; }
      last = Date.now();
      htmx.trigger(document.body, "poll");
    };
    const watch = () => {
      if (failures >= FAILURES_MAX) { polls = setInterval(fetchProgress, POLL_MS); return; }
      const socket = new WebSocket(location.origin.replace("http", "ws") + "/v1/email/verify/live");
      socket.onopen = () => socket.send(JSON.stringify({ type: "watch", list: progress().dataset.list }));
      socket.onmessage = (event) => {
        for (const line of event.data.split("\n")) {
          if (JSON.parse(line).type === "list") { failures = 0; fetchProgress(); }
        }
      };
      socket.onclose = () => { failures += 1; if (isUnderWay()) setTimeout(watch, 1000); };
    };
    document.body.addEventListener("htmx:afterSettle", () => {
      if (isUnderWay()) { showShare(); return; }
      clearInterval(polls);
      location.reload();
    });
    showShare();
    setInterval(fetchProgress, 10000);
    watch();
  }
})();
