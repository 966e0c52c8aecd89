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

  // Stacked bars: each series is drawn down to the axis, so the sum of all comes first.
  const dayName = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", timeZone: "UTC" });
  function drawStack(place, rows) {
    const colours = { green: "--good", yellow: "--care", red: "--bad", other: "--quiet" };
    const names = Object.keys(colours).filter((name) => rows[0].querySelector(`[data-count=${name}]`));
    const days = rows.map((row) => Date.parse(row.querySelector("time").dateTime) / 1000);
    const sums = rows.map(() => 0);
    const series = names.map((name) => {
      rows.forEach((row, n) => { sums[n] += Number(row.querySelector(`[data-count=${name}]`).textContent.replaceAll(",", "")); });
      return { name, values: [...sums] };
    }).reverse();
    const size = () => ({ width: Math.max(200, place.clientWidth), height: 200 });
    const axis = { stroke: styleOf("--pico-color"), grid: { stroke: styleOf("--pico-muted-border-color"), width: 1 }, font: "12px system-ui, sans-serif" };
    const plot = new uPlot({
      ...size(), legend: { show: false }, cursor: { show: false },
      scales: { x: { time: true, range: (_, first, last) => [first - 43200, last + 43200] }, y: { range: (_, least, most) => [0, Math.max(1, 1.1 * most)] } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [{ ...axis, grid: { show: false }, space: 64, incrs: [86400, 2 * 86400, 5 * 86400, 10 * 86400], values: (_, splits) => splits.map((at) => dayName.format(at * 1000)) }, { ...axis, size: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7] }],
      series: [{}, ...series.map(({ name }) => ({ label: name, width: 0, fill: styleOf(colours[name]), stroke: styleOf(colours[name]), points: { show: false }, paths: uPlot.paths.bars({ size: [0.7, 40] }) }))],
    }, [days, ...series.map((each) => each.values)], place);
    addEventListener("resize", () => plot.setSize(size()));
  }

  for (const place of document.querySelectorAll("[data-chart=days]")) {
    drawStack(place, [...document.querySelectorAll("#days tbody tr")].reverse());
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
      const query = new URLSearchParams({ name: chosen.name, column: form.elements.column.value, recheck: Number(form.elements.recheck.checked), patience_s: form.elements.patience_s.value });
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
  const icon = document.querySelector("link[rel=icon]");
  const ring = (share) => "data:image/svg+xml," + encodeURIComponent(
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" fill="none" stroke-width="7"><circle cx="16" cy="16" r="12" stroke="#b8abef"/>`
    + `<circle cx="16" cy="16" r="12" stroke="#5b3fd1" pathLength="100" stroke-dasharray="${share} 100" transform="rotate(-90 16 16)"/></svg>`);
  const showShare = () => {
    const bar = progress().querySelector("progress"), share = Math.floor(100 * bar.value / bar.max);
    document.title = share + " % – " + title;
    icon.href = ring(share);
  };
  if (isUnderWay()) {
    let failures = 0, polls = null, last = 0, later = null;
    const fetchProgress = () => {
      const wait = last + 900 - Date.now();
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
