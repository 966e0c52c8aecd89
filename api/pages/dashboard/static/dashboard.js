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

  // A mail is sent again after a while: the button counts down. By the clock, as a hidden tab ticks late.
  const again = document.querySelector("[data-again]");
  if (again) {
    const words = again.textContent, at = Date.now() + 1000 * again.dataset.again;
    const tick = () => {
      const left = Math.ceil((at - Date.now()) / 1000);
      again.disabled = left > 0;
      again.textContent = left <= 0 ? words : `${words} in ${left < 100 ? left + " s" : Math.ceil(left / 60) + " min"}`;
      if (left > 0) setTimeout(tick, 1000);
    };
    tick();
  }

  // Times and dates in the zone of the reader; their title has UTC.
  const localize = (place) => {
    for (const each of place.querySelectorAll("[data-as]")) {
      const at = new Date(each.dateTime ?? each.dataset.at);
      each.textContent = each.dataset.as === "date" ? at.toLocaleDateString("sv") : at.toLocaleTimeString("en-GB", { timeStyle: "short" });
    }
  };
  localize(document);
  document.addEventListener("htmx:load", (event) => localize(event.target));

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

  // A page that renews itself says when it cannot, and since when what it shows is old.
  const lost = document.getElementById("lost");
  let shownAt = new Date();
  const connected = (is) => {
    if (!lost) return;
    if (is) shownAt = new Date();
    lost.querySelector("[data-at]").textContent = shownAt.toLocaleTimeString("en-GB", { timeStyle: "short" });
    lost.hidden = is;
  };
  document.addEventListener("htmx:sendError", () => connected(false));
  document.addEventListener("htmx:afterOnLoad", () => connected(true));

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
  const sendList = (body, fields, shows) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/dashboard/lists?" + new URLSearchParams(fields));
    request.setRequestHeader("X-CSRF-Token", csrf());
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (sent) => shows.progress(Math.floor(100 * sent.loaded / sent.total));
    request.onload = () => {
      if (request.status === 201) { location.href = request.getResponseHeader("Location"); return; }
      const page = new DOMParser().parseFromString(request.responseText, "text/html").querySelector("[role=alert]");
      shows.failure(page ? page.textContent : "The list was not taken.");
    };
    request.onerror = () => shows.failure("The connection broke; send the list again.");
    request.send(body);
  };
  const fieldsOf = (form) => Object.fromEntries([...new FormData(form)].filter(([name, value]) => name !== "csrf" && typeof value === "string"));
  // What was changed is read before anything is verified: until then the sum is another one's.
  document.querySelector("form[data-reads]")?.addEventListener("change", (event) => {
    event.currentTarget.querySelector(":scope > button").className = "main-action";
    document.querySelector("[data-starts]").disabled = true;
    document.querySelector("[data-stale]").hidden = false;
  });
  // Another sheet of the same file.
  for (const form of document.querySelectorAll("form[data-sends]")) {
    const button = form.querySelector("button"), error = form.querySelector("[role=alert]"), label = button.textContent;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      error.textContent = "";
      const [chosen] = form.elements.file.files;
      sendList(chosen, { name: chosen.name, ...fieldsOf(form) }, {
        progress: (share) => { button.textContent = `Sending: ${share} %`; },
        failure: (what) => { button.ariaBusy = null; button.textContent = label; error.textContent = what; },
      });
    });
  }
  const form = document.getElementById("upload");
  if (form) {
    const file = form.elements.file, words = document.getElementById("zone-words"), error = document.getElementById("upload-error");
    const said = words.textContent;
    const paste = document.getElementById("paste"), button = paste.querySelector("button"), label = button.textContent;
    const send = (body, name) => {
      const { sheet, encoding, ...chosen } = fieldsOf(form); // a text that is pasted has neither
      error.textContent = "";
      sendList(body, { name, ...chosen, ...(name && { sheet, encoding }), recheck: Number(form.elements.recheck.checked) }, {
        progress: (share) => { if (name) words.textContent = share < 100 ? `Sending ${name}: ${share} %` : `Reading ${name}…`; },
        failure: (what) => {
          error.textContent = what;
          words.textContent = said;
          file.value = "";
          button.ariaBusy = null;
          button.textContent = label;
        },
      });
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

  // How far a list is: the server sends that part of the page whenever it changes. The table stays as
  // it is, and offers what is new. A hidden tab closes its stream: a browser has few connections.
  const FIRST_WAIT_MS = 1000, WAIT_MS_MAX = 30000;
  const progress = () => document.getElementById("progress");
  const title = document.title;
  const isUnderWay = () => progress() && ["running", "reading"].includes(progress().dataset.status);
  // Changes what differs and nothing else, so that the focus stays and widths move.
  const become = (now, next) => {
    if (now.nodeName !== next.nodeName || now.childNodes.length !== next.childNodes.length) { now.replaceWith(next); return; }
    if (now.nodeType === Node.TEXT_NODE) { if (now.data !== next.data) now.data = next.data; return; }
    for (const { name } of [...now.attributes]) if (!next.hasAttribute(name)) now.removeAttribute(name);
    for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
    const nexts = [...next.childNodes];
    [...now.childNodes].forEach((each, place) => become(each, nexts[place]));
  };
  const offerNew = () => {
    const results = document.getElementById("results"), newer = document.getElementById("newer");
    const count = progress().dataset.answered - results.dataset.answered;
    if (count > 0 && results.dataset.answered === "0") htmx.trigger(results, "answers");
    if (!newer) return;
    newer.hidden = count <= 0;
    newer.querySelector("span").textContent = count.toLocaleString("en") + " new";
  };
  if (isUnderWay()) {
    let source = null, wait = FIRST_WAIT_MS, later = null;
    const show = () => {
      document.title = progress().dataset.share + " % – " + title;
      offerNew();
    };
    const open = () => {
      if (source || document.hidden) return;
      source = new EventSource(`/dashboard/lists/${progress().dataset.list}/events`);
      source.addEventListener("progress", (event) => {
        wait = FIRST_WAIT_MS;
        connected(true);
        const next = new DOMParser().parseFromString(event.data, "text/html").getElementById("progress");
        const status = progress().dataset.status;
        localize(next);
        become(progress(), next);
        if (progress().dataset.status !== status) { shut(); location.reload(); } else show();
      });
      source.addEventListener("end", () => { shut(); location.reload(); });
      source.onopen = () => connected(true);
      source.onerror = () => { // where the connection broke, the browser opens it again by itself
        connected(false);
        if (source.readyState !== EventSource.CLOSED) return;
        shut();
        later = setTimeout(open, wait);
        wait = Math.min(2 * wait, WAIT_MS_MAX);
      };
    };
    const shut = () => { clearTimeout(later); source?.close(); source = null; };
    document.addEventListener("visibilitychange", () => { if (document.hidden) shut(); else open(); });
    document.body.addEventListener("htmx:afterSettle", offerNew);
    show();
    open();
  }
})();
