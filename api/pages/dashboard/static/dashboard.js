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

  // How far a list is, over the live socket.
  const progress = document.getElementById("progress");
  if (progress && progress.dataset.status === "running") {
    const show = (name) => progress.querySelector(`[data-show=${name}]`);
    const place = progress.querySelector("[data-chart=rate]"), xs = [], ys = [];
    let plot = null, last = null, pause = 1000;
    const rate = (list) => {
      const now = performance.now() / 1000;
      if (last && now > last.at) { xs.push(now - last.first); ys.push(Math.max(0, (list.answered - last.answered) / (now - last.at))); }
      last = { at: now, answered: list.answered, first: last ? last.first : now };
      if (xs.length > 600) { xs.shift(); ys.shift(); }
      if (xs.length === 2) plot = drawLine(place, "a second", xs, ys, false);
      else if (plot) plot.setData([xs, ys]);
    };
    const update = (list) => {
      show("status").textContent = list.status;
      show("answered").textContent = number.format(list.answered);
      show("rate").textContent = number.format(Math.round(list.per_minute / 60));
      show("left").textContent = list.left_s === null ? "?" : list.left_s > 90 ? Math.round(list.left_s / 60) + " min" : Math.round(list.left_s) + " s";
      const again = list.recheck_at && Date.parse(list.recheck_at) > Date.now();
      show("again").textContent = again ? "What time may cure is asked again at " + new Date(list.recheck_at).toLocaleTimeString() + "." : "";
      progress.querySelector("progress").value = list.answered;
      const rows = Object.entries(list.counts).map(([status, count]) => {
        const row = document.createElement("tr"), share = document.createElement("meter");
        share.max = list.addresses || 1;
        share.value = count;
        share.setAttribute("aria-label", status);
        for (const text of [status.replace("_", " "), number.format(count)]) row.insertCell().textContent = text;
        row.insertCell().append(share);
        return row;
      });
      show("counts").replaceChildren(...rows);
      rate(list);
    };
    const watch = () => {
      const socket = new WebSocket(location.origin.replace("http", "ws") + "/v1/email/verify/live");
      socket.onopen = () => { pause = 1000; socket.send(JSON.stringify({ type: "watch", list: progress.dataset.list })); };
      socket.onmessage = (event) => {
        for (const line of event.data.split("\n")) {
          const message = JSON.parse(line);
          if (message.type !== "list") continue;
          update(message);
          if (message.status !== "running") { socket.onclose = null; socket.close(); location.reload(); }
        }
      };
      socket.onclose = () => { setTimeout(watch, pause); pause = Math.min(30000, 2 * pause); };
    };
    watch();
  }
})();
