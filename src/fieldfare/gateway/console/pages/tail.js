// The events of a space as they are matched, with a filter tried on them.

import { follow, get, key, post, put, remove, subscriptionPath } from "../api.js";
import { card, h, head, note, pill, problem, show } from "../dom.js";
import { FilterEditor } from "../filter-editor.js";
import { oneLine, plural } from "../words.js";
import { spaceChoice, subscribable } from "./subscriptions.js";

const SHOWN = 100;
const TRIED = 50;
const DRAW_MS = 500;

export async function open(root, { caller, given, signal }) {
  const spaces = await subscribable(caller, signal);
  const space = given[0] ?? (spaces.includes("default") ? "default" : spaces[0]);
  if (!spaces.includes(space)) {
    show(root, head("Event tail"), problem({ title: "Not found", detail: `The space ${space ?? ""} does not exist, or this key may not subscribe in it.` }));
    return;
  }
  const from = given[1] ? await get(subscriptionPath(space, given[1]), { signal }) : { filter: "", dialect: "sql" };
  const tail = new Tail(space, signal);
  let onlyMatches = false;
  const editor = new FilterEditor({ space, filter: from.filter, dialect: from.dialect, signal, onState: (isValid) => tail.setFilter(isValid ? editor.value : null) });
  const start = h("button", { class: "first", onclick: () => tail.toggle() }, "Start");
  const only = h("input", { type: "checkbox", onchange: () => { onlyMatches = only.checked; tail.setOnly(onlyMatches); } });
  const clear = h("button", { onclick: () => tail.clear() }, "Clear");
  tail.onState = () => {
    start.textContent = tail.isOn ? "Stop" : "Start";
    start.className = tail.isOn ? "" : "first";
  };
  show(
    root,
    head("Event tail", { about: "Events as they are matched. While it runs, a temporary subscription to all events of the space exists." }),
    h("div", { class: "toolbar" }, spaceChoice("tail", spaces, space), start, clear, h("label", { class: "check" }, only, h("span", {}, "Only matches"))),
    h("div", { class: "grid wide-first" }, card("Events", tail.state, tail.list), card("Filter to try", h("p", { class: "muted" }, "Each event is marked with whether it matches, and why not."), editor.node)),
  );
  await editor.check();
}

class Tail {
  constructor(space, signal) {
    this.space = space;
    this.events = [];
    this.waiting = [];
    this.received = 0;
    this.skipped = 0;
    this.filter = null;
    this.only = false;
    this.isOn = false;
    this.onState = () => {};
    this.state = h("div", { "aria-live": "polite" }, h("p", { class: "muted" }, "Stopped. Start it to see events."));
    this.list = h("div", {});
    this.isPageOpen = !signal.aborted;
    this.leaving = signal;
    signal.addEventListener("abort", () => this.stop());
    const end = () => this.stop(true);
    addEventListener("pagehide", end, { signal });
  }

  async toggle() {
    if (this.isOn) {
      await this.stop();
      return;
    }
    const id = `console-tail-${[...crypto.getRandomValues(new Uint8Array(8))].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
    this.path = subscriptionPath(this.space, id);
    this.stream = new AbortController();
    this.isOn = true;
    this.onState();
    const { signal } = this.stream;
    try {
      await put(this.path, { filter: "TRUE", delivery: { expires_unused_s: 60 } }, { signal });
      show(this.state, h("p", { class: "muted" }, "Waiting for events."));
      this.timer = setInterval(() => this.draw(), DRAW_MS);
      await follow(`${this.path}/stream?ack=auto&window=${TRIED}`, (name, data) => name === "message" && this.take(data), signal);
      if (!signal.aborted) {
        show(this.state, note("warn", h("p", {}, "The stream has ended.")));
        await this.stop();
      }
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      await this.stop();
      show(this.state, problem(error));
    }
  }

  async stop(isClosing = false) {
    if (!this.isOn) return;
    this.isOn = false;
    clearInterval(this.timer);
    this.stream.abort();
    this.onState();
    if (!this.leaving.aborted) show(this.state, h("p", { class: "muted" }, `Stopped after ${plural(this.received, "event")}.`));
    if (isClosing) {
      // A closing page may not wait; what is left expires by itself.
      const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
      fetch(this.path, { method: "DELETE", headers, keepalive: true }).catch(() => {});
      return;
    }
    await remove(this.path).catch(() => {});
  }

  take(data) {
    let event;
    try {
      event = JSON.parse(data);
    } catch {
      return;
    }
    this.received += 1;
    this.waiting.push({ event, result: null });
    if (this.waiting.length > SHOWN) {
      this.waiting.shift();
      this.skipped += 1;
    }
  }

  setFilter(filter) {
    this.filter = filter;
    for (const each of this.events) each.result = null;
    this.isUntried = true;
    this.draw();
  }

  setOnly(only) {
    this.only = only;
    this.show();
  }

  clear() {
    this.events = [];
    this.waiting = [];
    this.show();
  }

  async draw() {
    if (!this.waiting.length && !this.isUntried) return;
    this.events = [...this.waiting.splice(0).reverse(), ...this.events].slice(0, SHOWN);
    this.isUntried = false;
    await this.test();
    this.show();
  }

  async test() {
    const { filter } = this;
    const some = this.events.filter((each) => !each.result);
    if (!filter || !some.length) return;
    try {
      const found = await post("/v1/filters:test", { ...filter, events: some.map((each) => each.event) });
      if (this.filter !== filter) return;
      some.forEach((each, at) => { each.result = found.results[at]; });
    } catch (error) {
      if (this.isOn) show(this.state, problem(error));
    }
  }

  show() {
    const shown = this.events.filter((each) => !this.only || !this.filter || each.result?.matches);
    if (this.isOn && this.received) {
      const skipped = this.skipped ? ` ${plural(this.skipped, "event")} came too fast to be shown.` : "";
      show(this.state, h("p", { class: "muted" }, `${plural(this.received, "event")} received.${skipped}`));
    }
    const open = new Set([...this.list.querySelectorAll("details[open]")].map((each) => each.dataset.key));
    show(this.list, shown.map((each) => eventRow(each, open)));
  }
}

function eventRow({ event, result }, open) {
  const name = `${event.source} ${event.id}`;
  const mark = !result ? "" : result.matches ? pill("match", "good") : pill("no match");
  const data = event.data ?? event.data_base64 ?? "";
  const why = result && !result.matches && result.text ? h("pre", {}, result.text) : null;
  return h(
    "details",
    { class: "event", "data-key": name, open: open.has(name) },
    h("summary", {}, h("span", {}, mark || pill("event")), h("span", {}, String(event.type)), h("span", { class: "data" }, oneLine(typeof data === "string" ? data : JSON.stringify(data)).slice(0, 300))),
    why,
    h("pre", {}, JSON.stringify(event, null, 2)),
  );
}

