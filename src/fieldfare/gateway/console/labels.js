// Owner and labels of a subscription: as a form, and as buttons that find others with the same.

import { field, h } from "./dom.js";

/** Labels as text, a line `key=value` each. */
const text = (labels) => Object.entries(labels).map(([key, value]) => `${key}=${value}`).join("\n");

function read(lines) {
  const pairs = lines.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.indexOf("=");
    return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
  return Object.fromEntries(pairs);
}

/** A form of owner and labels; `changes()` returns what a request needs to say. */
export function labelsForm({ owner = "", labels = {} }) {
  const name = h("input", { value: owner, maxlength: 255, spellcheck: "false", autocomplete: "off", autocapitalize: "off" });
  const lines = h("textarea", { class: "code few", value: text(labels), rows: 3, spellcheck: "false", autocomplete: "off", autocapitalize: "off", placeholder: "team=payments\nenv=prod" });
  const changes = () => {
    const found = {};
    const next = read(lines.value);
    const said = Object.entries(next).filter(([key, value]) => !Object.hasOwn(labels, key) || labels[key] !== value);
    const gone = Object.keys(labels).filter((key) => !Object.hasOwn(next, key)).map((key) => [key, null]);
    if (name.value.trim() !== owner) found.owner = name.value.trim() || null;
    if (said.length || gone.length) found.labels = Object.fromEntries([...said, ...gone]);
    return found;
  };
  const node = h(
    "div",
    { class: "fields" },
    field("Owner", name, "The responsible team or person."),
    field("Labels", lines, "One on each line: key=value."),
  );
  return { node, changes };
}

/** Buttons of a subscription's owner and labels; `pick({ owner })` or `pick({ label })` is called for one. */
export function labelButtons({ owner, labels = {} }, pick) {
  const button = (shown, kind, picked, about) =>
    h("button", { type: "button", class: `pill ${kind}`, "aria-label": `Only ${about} ${shown}`, title: `Only ${about} ${shown}`, onclick: () => pick(picked) }, shown);
  return [
    owner ? button(owner, "owner", { owner }, "with the owner") : null,
    Object.entries(labels).map(([key, value]) => button(`${key}=${value}`, "", { label: `${key}=${value}` }, "with the label")),
  ];
}
