// One subscription: backlog, filter, owner and labels, delivery settings, dead letters; pausing, seeking, deleting.

import { get, patch, post, put, remove, subscriptionPath } from "../api.js";
import { deliveryForm } from "../delivery-form.js";
import { ask, card, every, facts, field, h, head, href, link, note, problem, select, show, table, tile, toast } from "../dom.js";
import { FilterEditor } from "../filter-editor.js";
import { labelButtons, labelsForm } from "../labels.js";
import { about, age, count, oneLine, plural, time } from "../words.js";

const EVERY_S = 3;
const LETTERS = 20;
const UNKNOWN = { pending: null, is_exact: true, in_flight: null, redeliveries: null, oldest_s: null, dead_letters: null, readers: null, cursor: "–" };

export async function open(root, { given, signal }) {
  const [space, id] = given;
  const at = (...parts) => subscriptionPath(space, id, ...parts);
  let known = await get(at(), { signal });
  const title = h("div", {});
  const error = h("div", {});
  const tiles = h("dl", { class: "tiles" }, backlogTiles(UNKNOWN));
  const state = h("div", {});
  const filter = h("div", {});
  const delivery = h("div", {});
  const labels = h("div", {});
  const letters = h("div", {});
  const lettersPage = new Letters(letters, at, signal);

  const drawTitle = () => {
    const paused = known.delivery?.paused;
    const pause = async (event) => {
      event.target.disabled = true;
      try {
        known = await patch(at(), { delivery: { paused: !paused } });
        toast(paused ? `${id} is delivered again.` : `${id} is paused: its matches are kept.`);
        draw();
      } catch (caught) {
        show(error, problem(caught));
        event.target.disabled = false;
      }
    };
    show(
      title,
      head(id, {
        crumbs: [link(["subscriptions", space], "Subscriptions"), space],
        actions: [
          h("button", { onclick: pause }, paused ? "Resume" : "Pause"),
          h("button", { onclick: () => askSeek(id, at, look) }, "Seek"),
          h("button", { class: "danger", onclick: () => askDelete(space, id, at) }, "Delete"),
        ],
      }),
    );
  };
  const draw = () => {
    drawTitle();
    show(state, stateOf(known));
    show(filter, filterCard(known, { space, id, at, signal, saved: (next) => { known = next; draw(); } }));
    show(delivery, deliveryCard(known, { id, at, saved: (next) => { known = next; draw(); } }));
    show(labels, labelsCard(known, { space, id, at, saved: (next) => { known = next; draw(); } }));
  };
  let lettersCount = null;
  const look = async () => {
    const found = await get(at("backlog"), { signal });
    if (signal.aborted) return;
    show(tiles, backlogTiles(found));
    if (found.dead_letters !== lettersCount) {
      lettersCount = found.dead_letters;
      await lettersPage.read();
    }
  };
  show(root, title, error, state, tiles, h("div", { class: "grid wide-first" }, filter, h("div", { class: "stack" }, labels, delivery)), letters);
  draw();
  await every(EVERY_S, signal, look, (caught) => show(error, caught ? problem(caught) : null));
}

function backlogTiles(found) {
  return [
    tile("Pending", about(found.pending, found.is_exact), found.is_exact ? "counted" : "estimated"),
    tile("In flight", count(found.in_flight), `${count(found.redeliveries)} to redeliver`),
    tile("Oldest", age(found.oldest_s), found.oldest_s === null ? "nothing waits" : "since it was published"),
    tile("Dead letters", count(found.dead_letters)),
    tile("Readers", count(found.readers), "streams and pulls"),
    tile("Cursor", h("span", { class: "mono" }, found.cursor), "all before it is settled"),
  ];
}

function stateOf(known) {
  const said = [];
  if (known.delivery?.paused) said.push(note("warn", h("p", {}, h("strong", {}, "Paused. "), known.paused_because ?? "Matches are kept and delivered once it is resumed.")));
  if (known.given_up_events) said.push(note("warn", h("p", {}, `${plural(known.given_up_events, "event")} could not be matched since the start of the gateway: the filter takes too much work for them.`)));
  if (known.past && !known.past.is_matched) said.push(note("", h("p", {}, `Earlier events are being matched: from ${known.past.kept_from}, up to ${known.past.matched_to} of ${known.past.to} so far.`)));
  if (known.push) {
    const kind = { working: "good", trying: "warn", broken: "bad", paused: "warn", off: "warn" }[known.push.state] ?? "";
    const next = known.push.next_try_s === undefined ? "" : ` Next try in ${age(known.push.next_try_s)}.`;
    said.push(note(kind, h("p", {}, h("strong", {}, `Webhook: ${known.push.state}. `), known.push.last ?? "", next)));
  }
  return said;
}

function filterCard(known, { space, id, at, signal, saved }) {
  const place = h("div", {});
  const shown = () =>
    show(
      place,
      h("pre", {}, known.filter),
      h("p", { class: "muted" }, `${known.dialect}, for events from ${known.valid_from} on`),
      h("div", { class: "actions" }, h("button", { onclick: edit }, "Change filter"), link(["tail", space, id], "Try on live events")),
    );
  const edit = async () => {
    const save = h("button", { class: "first", type: "submit" }, "Save filter");
    const said = h("div", {});
    save.disabled = true;
    const editor = new FilterEditor({ space, filter: known.filter, dialect: known.dialect, signal, onState: (isValid) => { save.disabled = !isValid; } });
    show(
      place,
      h(
        "form",
        {
          onsubmit: async (event) => {
            event.preventDefault();
            save.disabled = true;
            try {
              await put(at(), editor.value);
              toast("The filter was replaced; it is for events from now on.");
              saved(await get(at(), { signal }));
            } catch (error) {
              show(said, problem(error));
              save.disabled = false;
            }
          },
        },
        editor.node,
        said,
        h("div", { class: "actions" }, save, h("button", { type: "button", onclick: shown }, "Cancel")),
      ),
    );
    editor.text.focus();
    await editor.check();
  };
  shown();
  return card("Filter", place);
}

function deliveryCard(known, { id, at, saved }) {
  const settings = { ...known.delivery };
  const change = async () => {
    const form = deliveryForm(settings);
    const done = await ask({
      title: `Delivery of ${id}`,
      content: [form.node],
      confirm: "Save settings",
      act: async () => {
        await patch(at(), { delivery: form.changes() });
        saved(await get(at()));
      },
    });
    if (done) toast("The settings were saved.");
  };
  const shown = (value) => {
    if (value === true) return "yes";
    if (value === false) return "no";
    if (Array.isArray(value)) return value.join(", ");
    if (typeof value === "object") return Object.entries(value).map(([name, each]) => `${name.replaceAll("_", " ")} ${each}`).join(", ");
    return String(value);
  };
  const pairs = Object.entries(settings).map(([name, value]) => [name.replace(/_s$/, ", seconds").replaceAll("_", " "), shown(value)]);
  return card(
    "Delivery",
    pairs.length ? facts(pairs) : h("p", { class: "muted" }, "All settings have their defaults."),
    h("div", { class: "more-row" }, h("button", { onclick: change }, "Change settings")),
  );
}

function labelsCard(known, { space, id, at, saved }) {
  const change = async () => {
    const form = labelsForm(known);
    const done = await ask({
      title: `Owner and labels of ${id}`,
      content: [form.node],
      confirm: "Save",
      act: async () => {
        const changes = form.changes();
        if (Object.keys(changes).length) saved(await patch(at(), changes));
      },
    });
    if (done) toast("Owner and labels were saved.");
  };
  const pick = ({ owner, label }) => {
    location.hash = href("subscriptions", space, owner === undefined ? "label" : "owner", owner ?? label);
  };
  const { owner, labels = {} } = known;
  const buttons = (of) => h("div", { class: "chips" }, labelButtons(of, pick));
  const pairs = [owner ? ["owner", buttons({ owner })] : null, Object.keys(labels).length ? ["labels", buttons({ labels })] : null];
  return card(
    "Owner and labels",
    pairs.some(Boolean) ? facts(pairs) : h("p", { class: "muted" }, "It has no owner and no labels."),
    h("div", { class: "more-row" }, h("button", { onclick: change }, "Change owner and labels")),
  );
}

async function askSeek(id, at, look) {
  const place = select([["earliest", "the oldest event in the log"], ["latest", "the end: drop what is pending"], ["time", "a time of publishing"], ["position", "a position"]], "earliest");
  const when = h("input", { type: "datetime-local", step: 1 });
  const position = h("input", { placeholder: "0-812-0", spellcheck: "false", autocomplete: "off" });
  const timeField = field("Time (of this computer's zone)", when);
  const positionField = field("Position", position);
  const draw = () => {
    timeField.hidden = place.value !== "time";
    positionField.hidden = place.value !== "position";
  };
  place.addEventListener("change", draw);
  draw();
  const target = () => {
    if (place.value === "time") return when.value ? new Date(when.value).toISOString() : "";
    return place.value === "position" ? position.value.trim() : place.value;
  };
  let cursor = "";
  const done = await ask({
    title: `Move the cursor of ${id}`,
    content: [
      h("p", {}, "Messages before the new place count as settled. Those from it on are delivered, also if they were acked."),
      field("Move to", place),
      timeField,
      positionField,
    ],
    confirm: "Move cursor",
    ready: () => target() !== "",
    act: async () => {
      cursor = (await post(at("seek"), { to: target() })).cursor;
    },
  });
  if (done) {
    toast(`The cursor is at ${cursor}.`);
    await look();
  }
}

async function askDelete(space, id, at) {
  const done = await ask({
    title: `Delete the subscription ${id}?`,
    content: [h("p", {}, "Its pending messages and dead letters are dropped, and its streams end. This cannot be undone.")],
    confirm: "Delete subscription",
    danger: true,
    act: () => remove(at()),
  });
  if (done) {
    toast(`The subscription ${id} was deleted.`);
    location.hash = href("subscriptions", space);
  }
}

class Letters {
  constructor(node, at, signal) {
    this.node = node;
    this.at = at;
    this.signal = signal;
  }

  async read(after = null, rows = []) {
    const query = new URLSearchParams({ limit: String(LETTERS) });
    if (after !== null) query.set("after", after);
    const page = await get(`${this.at("dead-letters")}?${query}`, { signal: this.signal });
    if (this.signal.aborted) return;
    this.draw([...rows, ...page.dead_letters], page.next, page.total);
  }

  draw(rows, next, total) {
    const said = h("div", {});
    const trying = async (button, work) => {
      button.disabled = true;
      try {
        await work();
        await this.read();
      } catch (error) {
        if (error.name !== "AbortError") show(said, problem(error));
        button.disabled = false;
      }
    };
    const retry = (positions) => async () => {
      const found = await post(this.at("dead-letters", "retry"), positions ? { positions } : {});
      const gone = found.gone ? ` ${plural(found.gone, "event is", "events are")} gone: retention has removed them.` : "";
      toast(`${plural(found.retried, "message")} will be delivered again.${gone}`);
    };
    const clear = async () => {
      const done = await ask({
        title: "Delete all dead letters?",
        content: [h("p", {}, `${plural(total, "message")} cannot be delivered any more afterwards.`)],
        confirm: "Delete dead letters",
        danger: true,
        act: () => remove(this.at("dead-letters")),
      });
      if (done) await this.read();
    };
    const event = (row) => (row.event === null ? h("span", { class: "muted" }, "The event is gone: retention has removed it.") : h("details", {}, h("summary", {}, oneLine(`${row.event.type ?? ""} from ${row.event.source ?? ""}`).slice(0, 120)), h("pre", {}, JSON.stringify(row.event, null, 2))));
    show(
      this.node,
      card(
        `Dead letters${total ? ` (${count(total)})` : ""}`,
        table(
          "Dead letters",
          [
            { title: "Position", cell: (row) => h("span", { class: "mono whole" }, row.position) },
            { title: "Reason", kind: "text", cell: (row) => row.reason },
            { title: "Attempts", kind: "number", cell: (row) => count(row.attempts) },
            { title: "Given up", cell: (row) => time(row.dead_ms) },
            { title: "Event", kind: "text", cell: event },
            { title: "", kind: "actions-cell", cell: (row) => (row.event === null ? "" : h("button", { "aria-label": `Retry ${row.position}`, onclick: (clicked) => trying(clicked.target, retry([row.position])) }, "Retry")) },
          ],
          rows,
          "No message was given up.",
        ),
        said,
        rows.length
          ? h(
              "div",
              { class: "actions more-row" },
              next === null ? null : h("button", { onclick: (clicked) => trying(clicked.target, () => this.read(next, rows)) }, "Show more"),
              h("button", { onclick: (clicked) => trying(clicked.target, retry(null)) }, "Retry all"),
              h("button", { class: "danger", onclick: clear }, "Delete all"),
            )
          : null,
      ),
    );
  }
}

