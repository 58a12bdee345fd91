// Where the time goes: events published in the next seconds, and how long each step to their delivery took.

import { get } from "../api.js";
import { bar, card, field, h, problem, select, show, table } from "../dom.js";
import { milliseconds, plural } from "../words.js";

const STEPS = {
  decoded: "the request was read, and its events checked",
  appended: "the events are durable in the event log",
  seen: "a matching task has seen them",
  matched: "their matches were found",
  noticed: "the gateway has read the matches",
  fetched: "the first subscriber's message was composed",
  sent: "it was handed to the connection",
};
const SECONDS = [2, 5, 10, 30, 60];

/** A card with a button that traces for some seconds, and shows the steps as bars one after the other. */
export class TraceForm {
  constructor(caller, signal) {
    this.signal = signal;
    this.seconds = select(SECONDS.map((each) => [String(each), `${each} s`]), "5");
    this.space = h("input", { type: "text", spellcheck: "false", autocomplete: "off", placeholder: "all spaces" });
    this.button = h("button", { class: "first", type: "submit" }, "Start trace");
    this.state = h("div", { role: "status" });
    this.found = h("div", {});
    this.node = card(
      "Where the time goes",
      h("p", { class: "muted" }, "Samples the events that are published meanwhile, and shows the time of each step from their request to their first delivery. It publishes nothing."),
      h(
        "form",
        {
          class: "toolbar",
          onsubmit: (event) => {
            event.preventDefault();
            this.run();
          },
        },
        field("For", this.seconds),
        field("Space", this.space),
        this.button,
      ),
      this.state,
      this.found,
    );
  }

  async run() {
    this.button.disabled = true;
    const { value: seconds } = this.seconds;
    const space = this.space.value.trim();
    show(this.found);
    show(this.state, h("p", {}, `Tracing for ${seconds} s …`));
    try {
      const more = space ? `&space=${encodeURIComponent(space)}` : "";
      const { records } = await get(`/v1/trace?seconds=${seconds}${more}`, { signal: this.signal });
      if (this.signal.aborted) return;
      const delivered = records.filter((each) => "sent" in each.steps).length;
      show(this.state, h("p", {}, `${plural(records.length, "record")} published in ${seconds} s and traced, ${delivered} delivered.`));
      show(this.found, records.length ? steps(records) : h("p", { class: "muted" }, "Publish something meanwhile: a trace only watches."));
    } catch (error) {
      if (this.signal.aborted) return;
      show(this.state);
      show(this.found, problem(error));
    } finally {
      this.button.disabled = false;
    }
  }
}

function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

/** The duration of each step in milliseconds: it begins with the previous step that is known of the record. */
function durations(records) {
  const found = Object.fromEntries(Object.keys(STEPS).map((name) => [name, []]));
  for (const record of records) {
    let before = 0;
    for (const name of Object.keys(STEPS)) {
      const at = record.steps[name];
      if (at === undefined) continue;
      found[name].push(Math.max(0, at - before));
      before = Math.max(before, at);
    }
  }
  return found;
}

function steps(records) {
  let begin = 0;
  const rows = Object.entries(durations(records)).filter(([, values]) => values.length).map(([name, values]) => {
    const median = quantile(values, 0.5);
    const row = { name, values, median, begin };
    begin += median;
    return row;
  });
  return [
    table(
      "Time of each step",
      [
        { title: "Step", cell: (row) => [row.name, h("div", { class: "muted step" }, STEPS[row.name])] },
        { title: "", kind: "share-bar", cell: (row) => bar(row.begin / begin, row.median / begin) },
        { title: "Median", kind: "number", cell: (row) => milliseconds(row.median) },
        { title: "90 %", kind: "number", cell: (row) => milliseconds(quantile(row.values, 0.9)) },
        { title: "99 %", kind: "number", cell: (row) => milliseconds(quantile(row.values, 0.99)) },
        { title: "Records", kind: "number", cell: (row) => row.values.length },
      ],
      rows,
    ),
    h("p", { class: "muted more-row" }, `The bars are the medians, one after the other: ${milliseconds(begin)} in all. A step ends when what is below its name has happened.`),
  ];
}
