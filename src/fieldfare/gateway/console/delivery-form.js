// The delivery settings of a subscription as a form. Empty fields mean the default.

import { field, h, select } from "./dom.js";

const NUMBERS = [
  ["ack_deadline_s", "Ack deadline, seconds", "Time until a message without an ack is delivered again."],
  ["max_attempts", "Delivery attempts", "Then a message becomes a dead letter. Empty: no maximum."],
  ["max_in_flight", "Messages in flight", "For all readers together."],
  ["max_in_flight_bytes", "Bytes in flight", "For all readers together."],
  ["max_age_s", "Age of events, seconds", "Older events are not delivered."],
  ["expires_unused_s", "Expires unused, seconds", "Without use for this time, the subscription is removed."],
];

/** A form of the settings that differ from the defaults; `changes()` returns what a request needs to say. */
export function deliveryForm(known) {
  const numbers = NUMBERS.map(([name, title, help]) => {
    const input = h("input", { type: "number", min: 0, step: "any", value: known[name] ?? "" });
    return { name, input, node: field(title, input, help) };
  });
  const delays = h("input", { value: (known.retry_delays_s ?? []).join(", "), placeholder: "1, 10, 60", spellcheck: "false" });
  const order = h("input", { value: known.order_by ?? "", placeholder: "data.account", spellcheck: "false" });
  const letters = h("input", { type: "checkbox", checked: known.dead_letter ?? true });
  const url = h("input", { type: "url", value: known.push?.url ?? "", placeholder: "https://example.com/hook", spellcheck: "false" });
  const mode = select([["structured"], ["binary"], ["batch"]], known.push?.mode ?? "structured");

  const changes = () => {
    const found = {};
    const say = (name, value) => {
      const before = known[name] ?? (name === "dead_letter" ? true : name === "retry_delays_s" ? [] : null);
      if (JSON.stringify(before) !== JSON.stringify(value)) found[name] = value;
    };
    for (const { name, input } of numbers) say(name, input.value === "" ? null : Number(input.value));
    say("retry_delays_s", delays.value.split(",").map((each) => each.trim()).filter(Boolean).map((each) => (Number.isNaN(Number(each)) ? each : Number(each))));
    say("order_by", order.value.trim() || null);
    say("dead_letter", letters.checked);
    const address = url.value.trim();
    if (!address && known.push) found.push = null;
    else if (address && (address !== known.push?.url || mode.value !== known.push?.mode)) found.push = { url: address, mode: mode.value };
    return found;
  };
  const node = h(
    "div",
    {},
    h("div", { class: "fields" }, numbers.map((each) => each.node), field("Delays of redeliveries, seconds", delays, "After the first failed attempt, the second, and so on. Empty: at once."), field("Ordered by attribute", order, "Events with the same value are delivered one at a time.")),
    h("label", { class: "check field" }, letters, h("span", {}, "Keep dead letters in a list")),
    h("div", { class: "fields" }, field("Webhook", url, "Messages are sent there, in place of readers that fetch them."), field("Webhook mode", mode)),
  );
  return { node, changes };
}
