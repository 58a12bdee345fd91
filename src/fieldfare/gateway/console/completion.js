// Names of attributes, offered while one types a filter: an editable combobox with a listbox below the text.

import { get, spacePath } from "./api.js";
import { h, show } from "./dom.js";
import { count, plural } from "./words.js";

const FRESH_MS = 15_000;
const EMPTY_FRESH_MS = 1_000; // the first events of a space are soon seen
const SHOWN_MAX = 50;
const NAME_MAX = 400; // characters; the time of NAME's search grows with their third power
// The name before the caret: steps with dots between, plain or in double quotes, the last one unfinished.
const NAME = /(?:[\p{L}_][\p{L}\p{N}_]*|"(?:[^"\n]|"")*"?)(?:\.(?:[\p{L}\p{N}_]+|"(?:[^"\n]|"")*"?)?)*$/u;
const PLAIN = /^[a-z0-9]+$/;
// Dialects that write names as the service lists them, and which names each can use.
const DIALECTS = { sql: () => true, cesql: (name) => PLAIN.test(name) };

let lists = 0;

export class Completion {
  /** `box` is the filter's textarea; `space()` and `dialect()` say whose names are offered, and how they are written. */
  constructor({ box, space, dialect, signal }) {
    this.box = box;
    this.space = space;
    this.dialect = dialect;
    this.signal = signal;
    this.names = { space: null };
    this.found = [];
    this.active = -1;
    this.list = h("ul", { id: `names-${++lists}`, class: "names", role: "listbox", "aria-label": "Attributes", hidden: true });
    this.said = h("div", { class: "hidden-label", role: "status" });
    for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-haspopup": "listbox", "aria-expanded": "false", "aria-controls": this.list.id })) box.setAttribute(name, value);
    box.addEventListener("input", () => (this.inserting ? this.close() : this.offer()));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("focus", () => this.read());
    box.addEventListener("blur", () => this.close());
    box.addEventListener("click", () => this.close());
    this.list.addEventListener("pointerdown", (event) => event.preventDefault()); // the text keeps the focus
  }

  get isOpen() {
    return !this.list.hidden;
  }

  /** Read the names of the space, at most every few seconds; without them nothing is offered. */
  read() {
    const space = this.space();
    if (this.names.space !== space) this.names = { space, list: [], events: 0, reading: null, until: 0 };
    const { names } = this;
    if (names.reading || Date.now() < names.until) return names.reading;
    names.reading = (async () => {
      try {
        const { attributes, events } = await get(spacePath(space, "attributes"), { signal: this.signal });
        Object.assign(names, { list: attributes, events });
      } catch {
        // Help only: a filter can be written without it.
      }
      names.until = Date.now() + (names.list.length ? FRESH_MS : EMPTY_FRESH_MS);
      names.reading = null;
    })();
    return names.reading;
  }

  /** The name before the caret, and where it begins; null in a text constant. */
  token() {
    const at = this.box.selectionStart;
    if (at !== this.box.selectionEnd) return null;
    const before = this.box.value.slice(0, at);
    if (before.split("'").length % 2 === 0) return null;
    const near = before.slice(-NAME_MAX);
    const found = NAME.exec(near);
    const isWhole = found && (found.index || near.length === at);
    const name = isWhole ? found[0] : "";
    return { name, from: at - name.length, to: at };
  }

  /** Open, change or close the list for the name before the caret; with `all` also for none. */
  async offer(all = false) {
    await this.read();
    const usable = DIALECTS[this.dialect()];
    const token = this.token();
    if (!usable || !token || (!token.name && !all) || document.activeElement !== this.box) return this.close();
    const names = this.names.list.filter(({ name }) => usable(name));
    this.found = matching(names, token.name).slice(0, SHOWN_MAX);
    if (!this.found.length || (this.found.length === 1 && this.found[0].name === token.name)) return this.close();
    this.active = -1;
    this.draw();
  }

  draw() {
    const options = this.found.map((each, at) =>
      h(
        "li",
        { id: `${this.list.id}-${at}`, role: "option", "aria-selected": String(at === this.active), onclick: () => this.take(at) },
        h("span", { class: "mono" }, each.name),
        h("span", { class: "muted" }, [each.type, share(each.events, this.names.events)].filter(Boolean).join(", ")),
      ),
    );
    if (this.list.hidden || this.list.children.length !== options.length) show(this.said, plural(options.length, "attribute"), " offered. Down arrow to choose.");
    show(this.list, options);
    this.list.hidden = false;
    this.box.setAttribute("aria-expanded", "true");
    if (this.active < 0) this.box.removeAttribute("aria-activedescendant");
    else {
      this.box.setAttribute("aria-activedescendant", options[this.active].id);
      options[this.active].scrollIntoView({ block: "nearest" });
    }
  }

  close() {
    this.list.hidden = true;
    this.active = -1;
    this.box.setAttribute("aria-expanded", "false");
    this.box.removeAttribute("aria-activedescendant");
    show(this.said);
  }

  key(event) {
    if (event.isComposing) return;
    const { key } = event;
    if (!this.isOpen) {
      if ((key === " " && event.ctrlKey) || (key === "ArrowDown" && event.altKey)) {
        event.preventDefault();
        this.offer(true);
      }
      return;
    }
    const last = this.found.length - 1;
    if (key === "ArrowDown") this.move(event, this.active < last ? this.active + 1 : 0);
    else if (key === "ArrowUp") this.move(event, this.active > 0 ? this.active - 1 : last);
    else if (key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.close();
    } else if ((key === "Enter" || key === "Tab") && this.active >= 0) {
      event.preventDefault();
      this.take(this.active);
    } else if (["ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown"].includes(key)) this.close();
  }

  move(event, at) {
    event.preventDefault();
    this.active = at;
    this.draw();
  }

  /** Write a name in place of what was typed of it. */
  take(at) {
    const token = this.token();
    const name = this.found[at]?.name;
    this.close();
    if (!token || name === undefined) return;
    this.box.focus();
    this.box.setSelectionRange(token.from, token.to);
    this.inserting = true;
    try {
      // As if typed, so that it can be undone; the second is for browsers without the first.
      if (!document.execCommand("insertText", false, name)) {
        this.box.setRangeText(name, token.from, token.to, "end");
        this.box.dispatchEvent(new Event("input", { bubbles: true }));
      }
    } finally {
      this.inserting = false;
    }
  }
}

/** Names with a text in them: those that begin with it, then those with a step that does, then others; frequent ones first. */
function matching(names, typed) {
  const wanted = typed.toLowerCase();
  const ranked = names.map((each) => {
    const name = each.name.toLowerCase();
    const at = name.indexOf(wanted);
    const rank = at < 0 ? -1 : at === 0 ? 0 : '."'.includes(name[at - 1]) ? 1 : 2;
    return { each, rank };
  });
  const found = ranked.filter(({ rank }) => rank >= 0);
  return found.sort((a, b) => a.rank - b.rank || b.each.events - a.each.events).map(({ each }) => each);
}

const share = (part, whole) => (whole ? `in ${part === whole ? "all" : count(part)} of ${plural(whole, "event")}` : "");
