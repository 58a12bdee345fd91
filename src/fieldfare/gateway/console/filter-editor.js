// A filter's text and dialect, checked and explained by the service as one types.

import { post } from "./api.js";
import { Completion } from "./completion.js";
import { field, h, later, note, pill, problem, select, show } from "./dom.js";
import { count, plural } from "./words.js";

const DIALECTS = [
  ["sql", "sql"],
  ["cesql", "cesql (CloudEvents SQL)"],
  ["eventbridge", "eventbridge (JSON)"],
  ["subscriptions", "subscriptions (CloudEvents, JSON)"],
];

export class FilterEditor {
  /** `space` gives the sample of events; `onState(isValid)` is called after each check. */
  constructor({ space, filter = "", dialect = "sql", signal, onState = () => {} }) {
    this.space = space;
    this.signal = signal;
    this.onState = onState;
    this.turn = new AbortController();
    this.text = h("textarea", { class: "code", spellcheck: "false", autocapitalize: "off", autocomplete: "off", rows: 5, value: filter, placeholder: "data.price < 18.5 AND data.symbol = 'YHOO'" });
    this.dialect = select(DIALECTS, dialect);
    this.result = h("div", { role: "status", "aria-live": "polite" });
    const check = later(300, () => this.check());
    this.text.addEventListener("input", () => {
      this.onState(false);
      check();
    });
    this.dialect.addEventListener("change", () => this.check());
    signal.addEventListener("abort", () => this.turn.abort());
    const completion = new Completion({ box: this.text, space: () => this.space, dialect: () => this.dialect.value, signal });
    const typed = field("Filter", this.text, "Names of attributes are offered as you type; Ctrl+Space shows all.");
    this.text.after(completion.list, completion.said);
    typed.classList.add("completed");
    this.node = h("div", {}, typed, field("Language", this.dialect), this.result);
  }

  get value() {
    return { filter: this.text.value, dialect: this.dialect.value };
  }

  async check() {
    this.turn.abort();
    this.turn = new AbortController();
    const { signal } = this.turn;
    if (!this.text.value.trim()) {
      show(this.result, h("p", { class: "muted" }, "The service checks and explains the filter as you type, and tries it on the newest events of the space."));
      this.onState(false);
      return;
    }
    try {
      const found = await post("/v1/filters:explain", { ...this.value, space: this.space }, { signal });
      if (signal.aborted) return;
      show(this.result, explained(found));
      this.onState(true);
    } catch (error) {
      if (error.name === "AbortError") return;
      show(this.result, problem(error));
      this.onState(false);
    }
  }
}

function explained(found) {
  const { sample } = found;
  const share = sample?.events ? Math.round((1000 * sample.matches) / sample.events) / 10 : null;
  const sampled = !sample || !sample.events
    ? "The space has no events to try it on."
    : `${count(sample.matches)} of the newest ${plural(sample.events, "event")} match (${share} %).`;
  const always = { never: pill("never matches", "bad"), always: pill("matches every event", "warn"), sometimes: pill("valid", "good") };
  return [
    note("good", h("p", {}, always[found.matches] ?? "", " ", sampled, h("span", { class: "muted" }, ` Cost ${count(found.cost)}.`))),
    found.warnings.map((each) => note("warn", h("p", {}, each.detail), each.hint ? h("p", {}, `Hint: ${each.hint}`) : null)),
    h("details", { open: true }, h("summary", {}, "What it matches"), h("pre", {}, found.text)),
  ];
}
