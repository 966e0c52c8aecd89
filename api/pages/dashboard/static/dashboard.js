"use strict";
// The dashboard's own script. Every page works without it, but for the charts, the live
// progress, and files of more than 2 MB.
(() => {
  const number = new Intl.NumberFormat("en");
  const csrf = () => document.querySelector("meta[name=csrf]").content;
  const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function drawLine(place, label, xs, ys, isTime) {
    const size = () => ({ width: Math.max(200, place.clientWidth), height: 180 });
    const axis = { stroke: styleOf("--pico-color"), grid: { stroke: styleOf("--pico-muted-border-color") } };
    const plot = new uPlot({
      ...size(), scales: { x: { time: isTime } }, legend: { show: false }, cursor: { show: false },
      axes: [axis, { ...axis, size: 60 }],
      series: [{}, { label, stroke: styleOf("--pico-primary"), width: 2, fill: styleOf("--pico-primary-focus") }],
    }, [xs, ys], place);
    addEventListener("resize", () => plot.setSize(size()));
    return plot;
  }

  for (const place of document.querySelectorAll("[data-chart=days]")) {
    const cells = [...document.querySelectorAll("#days tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
    drawLine(place, "verifications", cells.map(([day]) => Date.parse(day) / 1000), cells.map(([, calls]) => Number(calls)), true);
  }

  for (const place of document.querySelectorAll("[data-chart=reputation]")) {
    const cells = [...document.querySelectorAll("#reputation tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent)).reverse();
    if (cells.length > 1) drawLine(place, "% refused because of us", cells.map(([day]) => Date.parse(day) / 1000), cells.map((row) => parseFloat(row[3])), true);
  }

  // A list is sent as it is, so that it may have 256 MB.
  const form = document.getElementById("upload");
  if (form) {
    const file = form.elements.file, bar = document.getElementById("sent"), error = document.getElementById("upload-error");
    const send = () => {
      const chosen = file.files[0], request = new XMLHttpRequest();
      const query = new URLSearchParams({ name: chosen.name, column: form.elements.column.value, recheck: Number(form.elements.recheck.checked) });
      request.open("POST", "/dashboard/lists?" + query);
      request.setRequestHeader("X-CSRF-Token", csrf());
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.upload.onprogress = (sent) => { bar.hidden = false; bar.value = 100 * sent.loaded / sent.total; };
      request.onload = () => {
        if (request.status === 201) { location.href = request.getResponseHeader("Location"); return; }
        const page = new DOMParser().parseFromString(request.responseText, "text/html").querySelector("[role=alert]");
        error.textContent = page ? page.textContent : "The list was not taken.";
        bar.hidden = true;
      };
      request.onerror = () => { error.textContent = "The connection broke; send the list again."; bar.hidden = true; };
      error.textContent = "";
      request.send(chosen);
    };
    form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
    form.addEventListener("dragover", (event) => { event.preventDefault(); form.classList.add("over"); });
    form.addEventListener("dragleave", () => form.classList.remove("over"));
    form.addEventListener("drop", (event) => {
      event.preventDefault();
      form.classList.remove("over");
      if (event.dataTransfer.files.length) { file.files = event.dataTransfer.files; send(); }
    });
  }

  // How far a list is: the live socket says when that changes, and the page fetches its progress.
  // Where the socket fails twice, it is fetched every POLL_MS.
  const POLL_MS = 3000, FAILURES_MAX = 2;
  const progress = () => document.getElementById("progress");
  const title = document.title;
  const isUnderWay = () => progress() && ["running", "loading"].includes(progress().dataset.status);
  const showShare = () => {
    const bar = progress().querySelector("progress");
    document.title = (isUnderWay() ? Math.floor(100 * bar.value / bar.max) + " % – " : "") + title;
  };
  if (isUnderWay()) {
    let failures = 0, polls = null, last = 0;
    const fetchProgress = () => {
      if (Date.now() - last < 900) return;
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
