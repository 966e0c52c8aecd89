/*! mailprobe form.js: checks e-mail fields with data-mailprobe. It never blocks a submit. */
(() => {
  "use strict";
  const script = document.currentScript;
  const settings = (script && script.dataset) || {};
  const url = script && new URL("v1/forms/verify", script.src).href;
  if (!url || !settings.key) {
    console.warn("mailprobe: the script needs data-key with a publishable key (pk_...)");
    return;
  }

  const SELECTOR = "input[data-mailprobe]";
  const WAIT_MS = 5000; // an answer takes 3 s at most
  const SLICE_MS = 8; // of work between two frames of the page
  const TRIES = 2 ** 24; // sixteen times what the hardest challenge takes
  const KEPT = 20; // answers of this page, so that going back to one costs nothing
  const answers = new Map();
  const notes = new WeakMap(); // field -> where its note stands
  const pending = new WeakMap(); // field -> the check that runs

  function noteOf(field) {
    let note = notes.get(field);
    if (!note) {
      note = document.createElement("span");
      note.className = "mailprobe-note";
      note.id = "mailprobe-" + Math.random().toString(36).slice(2);
      note.setAttribute("role", "status"); // read out when its text changes
      field.insertAdjacentElement("afterend", note);
      const others = field.getAttribute("aria-describedby");
      field.setAttribute("aria-describedby", (others ? others + " " : "") + note.id);
      notes.set(field, note);
    }
    return note;
  }

  // Texts are text alone: neither an answer nor an address becomes markup.
  function show(field, answer) {
    const email = field.value.trim();
    const proposed = answer.suggestion && email.slice(0, email.lastIndexOf("@") + 1) + answer.suggestion;
    const detail = { email, light: answer.light, reason: answer.reason, suggestion: proposed || null };
    const event = new CustomEvent("mailprobe", { bubbles: true, cancelable: true, detail });
    if (!field.dispatchEvent(event)) return; // the page shows it itself
    const note = noteOf(field);
    note.dataset.light = answer.light;
    if (proposed) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = proposed;
      button.addEventListener("click", () => {
        field.value = proposed;
        field.focus();
        for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, { bubbles: true }));
      });
      note.replaceChildren((settings.textSuggestion || "Did you mean") + " ", button, "?");
    } else if (answer.light === "RED_LIGHT") {
      note.textContent = settings.textRed || "This address seems to take no mail. Is it right?";
    } else {
      note.textContent = "";
    }
  }

  function stop(field) {
    const check = pending.get(field);
    if (check) check.abort();
    pending.delete(field);
    const note = notes.get(field);
    if (note) {
      note.textContent = "";
      delete note.dataset.light;
    }
  }

  // Proof of work, where the service wants it: a number with which the challenge's SHA-256 (FIPS 180-4)
  // begins with zero bits. crypto.subtle would need HTTPS, and a promise for each of the numbers.
  const H = []; // the fractions of the first primes' square roots
  const K = []; // and of their cube roots
  const fraction = (x) => (x - Math.floor(x)) * 2 ** 32;
  function fillConstants() {
    for (let n = 2; K.length < 64; n++) {
      let divisor = 2;
      while (n % divisor) divisor++;
      if (divisor < n) continue;
      if (H.length < 8) H.push(fraction(Math.sqrt(n)) | 0);
      K.push(fraction(Math.cbrt(n)) | 0);
    }
  }

  // The first 32 bits for a text of at most 55 characters of ASCII: one block.
  const w = new Int32Array(64);
  function firstWord(text) {
    w.fill(0);
    const turn = (x, by) => (x >>> by) | (x << (32 - by));
    for (let i = 0; i < text.length; i++) w[i >> 2] |= text.charCodeAt(i) << (24 - 8 * (i & 3));
    w[text.length >> 2] |= 128 << (24 - 8 * (text.length & 3));
    w[15] = 8 * text.length;
    let [a, b, c, d, e, f, g, h] = H;
    for (let i = 0; i < 64; i++) {
      if (i > 15) {
        const x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (turn(x, 7) ^ turn(x, 18) ^ (x >>> 3)) + (turn(y, 17) ^ turn(y, 19) ^ (y >>> 10));
      }
      const t = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
      const u = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + t) | 0, c, b, a, (t + u) | 0];
    }
    return (a + H[0]) | 0;
  }

  // In slices, so that the page stays quick.
  async function solve(challenge, signal) {
    const bits = +challenge.split(".")[1];
    if (!K.length) fillConstants();
    for (let n = 0, end = 0; n < TRIES; n++) {
      if (!(n & 31) && performance.now() > end) {
        await new Promise((resume) => setTimeout(resume));
        if (signal.aborted) break;
        end = performance.now() + SLICE_MS;
      }
      if (firstWord(challenge + ":" + n) >>> (32 - bits) === 0) return challenge + ":" + n;
    }
    throw new Error("not solved");
  }

  let challenge = null; // of the last answer, for the next check

  // Without a proof, or with one that is late, the answer is 428 with a challenge: then once more.
  async function ask(email, running) {
    for (let tries = 2; tries; tries--) {
      const headers = { Authorization: "Bearer " + settings.key, "Content-Type": "application/json" };
      const taken = challenge;
      challenge = null;
      if (taken) headers["Form-Proof"] = await solve(taken, running.signal);
      const timer = setTimeout(() => running.abort(), WAIT_MS);
      try {
        const body = JSON.stringify({ email });
        const response = await fetch(url, { method: "POST", credentials: "omit", headers, body, signal: running.signal });
        challenge = response.headers.get("Form-Challenge");
        if (response.ok) return await response.json();
        if (response.status !== 428) return null;
      } finally {
        clearTimeout(timer);
      }
    }
    return null;
  }

  async function check(field) {
    stop(field);
    const email = field.value.trim();
    if (!/.@./.test(email) || email.length > 320) return; // the browser's own check says it
    const running = new AbortController();
    pending.set(field, running);
    try {
      const answer = answers.get(email) || (await ask(email, running));
      if (!answer) return;
      answers.set(email, answer);
      if (answers.size > KEPT) answers.delete(answers.keys().next().value);
      if (pending.get(field) === running && field.value.trim() === email) show(field, answer);
    } catch {
      // no answer: the form works without the check
    }
  }

  // On the document, so that fields which come later are bound too.
  const on = (name, act) =>
    document.addEventListener(name, (event) => {
      if (event.target instanceof Element && event.target.matches(SELECTOR)) act(event.target);
    });
  on("change", check);
  on("input", stop);
})();
