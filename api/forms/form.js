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

  async function ask(email, signal) {
    const response = await fetch(url, {
      method: "POST",
      credentials: "omit",
      headers: { Authorization: "Bearer " + settings.key, "Content-Type": "application/json" },
      body: JSON.stringify({ email }),
      signal,
    });
    return response.ok ? response.json() : null;
  }

  async function check(field) {
    stop(field);
    const email = field.value.trim();
    if (!/.@./.test(email) || email.length > 320) return; // the browser's own check says it
    const running = new AbortController();
    const timer = setTimeout(() => running.abort(), WAIT_MS);
    pending.set(field, running);
    try {
      const answer = answers.get(email) || (await ask(email, running.signal));
      if (!answer) return;
      answers.set(email, answer);
      if (answers.size > KEPT) answers.delete(answers.keys().next().value);
      if (pending.get(field) === running && field.value.trim() === email) show(field, answer);
    } catch {
      // no answer: the form works without the check
    } finally {
      clearTimeout(timer);
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
