// Spaces: their sums, quotas and use; creating and deleting them.

import { get, post, put, remove, spacePath } from "../api.js";
import { ask, card, field, h, head, href, link, show, table, toast } from "../dom.js";
import { about, age, count, size } from "../words.js";

const PAGE = 25;

const QUOTAS = [
  ["events_per_s", "Events per second"],
  ["bytes_per_s", "Bytes per second"],
  ["matching_ms_per_s", "Matching, ms per second"],
  ["changes_per_s", "Changes per second"],
  ["delivered_bytes_per_s", "Delivered bytes per second"],
  ["subscriptions", "Subscriptions"],
  ["filter_cost", "Cost of all filters"],
  ["stored_event_bytes", "Stored bytes of events"],
  ["stored_match_bytes", "Stored bytes of matches"],
  ["connections", "Open streams and pulls"],
];

export async function open(root, context) {
  if (context.given.length) return openOne(root, context, context.given[0]);
  const { caller, signal } = context;
  const { spaces } = await get("/v1/spaces", { signal });
  const list = h("div", {});
  const search = h("input", { type: "search", oninput: () => draw(0) });
  let drawing = 0;
  const draw = async (start) => {
    const turn = ++drawing;
    const wanted = spaces.filter((each) => each.name.toLowerCase().includes(search.value.trim().toLowerCase()));
    const some = wanted.slice(start, start + PAGE);
    const rows = await Promise.all(some.map((space) => row(space, caller, signal)));
    if (turn !== drawing || signal.aborted) return;
    show(
      list,
      card("", spacesTable(rows, caller, () => reload())),
      h(
        "div",
        { class: "actions" },
        start ? h("button", { onclick: () => draw(start - PAGE) }, "Previous") : null,
        start + PAGE < wanted.length ? h("button", { onclick: () => draw(start + PAGE) }, "Next") : null,
        wanted.length > PAGE ? h("span", { class: "muted" }, `${start + 1}–${start + some.length} of ${count(wanted.length)}`) : null,
      ),
    );
  };
  const reload = () => open(root, context);
  const create = caller.isAdmin ? [h("button", { class: "first", onclick: () => askNew(reload) }, "New space")] : [];
  show(
    root,
    head("Spaces", { about: "Each space has its own events, subscriptions, keys and quotas.", actions: create }),
    spaces.length > 8 ? h("div", { class: "toolbar" }, h("div", { class: "grow" }, field("Name contains", search))) : null,
    list,
  );
  await draw(0);
}

async function row(space, caller, signal) {
  const may = caller.may("subscribe", space.name);
  const sums = may ? await get(spacePath(space.name, "backlog"), { signal }).catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  }) : null;
  return { ...space, may, sums };
}

function spacesTable(rows, caller, reload) {
  const sum = (of) => (row) => (row.sums ? of(row.sums) : "–");
  return table(
    "Spaces",
    [
      {
        title: "Space",
        cell: (row) => [caller.may("manage", row.name) || row.may ? link(["spaces", row.name], row.name) : row.name, row.encryption ? h("span", { class: "muted" }, " encrypted") : null],
      },
      { title: "Subscriptions", kind: "number", cell: sum((sums) => count(sums.subscriptions)) },
      { title: "Behind", kind: "number", cell: sum((sums) => count(sums.behind)) },
      { title: "Pending", kind: "number", cell: sum((sums) => about(sums.pending, sums.is_exact)) },
      { title: "Oldest", kind: "number", cell: sum((sums) => age(sums.oldest_s)) },
      { title: "Dead letters", kind: "number", cell: sum((sums) => count(sums.dead_letters)) },
      { title: "Stored", kind: "number", cell: sum((sums) => size(sums.stored_event_bytes + sums.stored_match_bytes)) },
    ],
    rows,
    "No space fits.",
  );
}

async function askNew(reload) {
  const name = h("input", { required: true, maxlength: 128, spellcheck: "false", autocomplete: "off" });
  const done = await ask({
    title: "New space",
    content: [field("Name", name, "1 to 128 of the letters a–z and A–Z, digits and _ . : @ ~ -; the first a letter, digit or _.")],
    confirm: "Create",
    ready: () => name.value.trim() !== "",
    act: () => post("/v1/spaces", { name: name.value.trim() }),
  });
  if (done) {
    toast(`The space ${name.value.trim()} was created.`);
    reload();
  }
}

async function openOne(root, { caller, signal }, name) {
  const [sums, quotas] = await Promise.all([
    caller.may("subscribe", name) ? get(spacePath(name, "backlog"), { signal }) : null,
    caller.may("manage", name) ? get(spacePath(name, "quotas"), { signal }) : null,
  ]);
  const quotaCard = h("div", {});
  const actions = [
    caller.may("subscribe", name) ? h("a", { class: "button", href: href("subscriptions", name) }, "Its subscriptions") : null,
    caller.may("subscribe", name) ? h("a", { class: "button", href: href("tail", name) }, "Its events") : null,
    caller.isAdmin && name !== "default" ? h("button", { class: "danger", onclick: () => askDelete(name) }, "Delete space") : null,
  ].filter(Boolean);
  show(root, head(name, { crumbs: [link(["spaces"], "Spaces")], actions }), sums ? sumsCard(sums) : null, quotaCard);
  const draw = (found) => show(quotaCard, quotasCard(name, found, caller, draw));
  if (quotas) draw(quotas);
}

function sumsCard(sums) {
  const tile = (title, value, more = "") => h("div", { class: "tile" }, h("dt", {}, title), h("dd", {}, h("div", { class: "value" }, value), h("div", { class: "more" }, more)));
  return h(
    "dl",
    { class: "tiles" },
    tile("Subscriptions", count(sums.subscriptions), `${count(sums.behind)} behind`),
    tile("Pending", about(sums.pending, sums.is_exact), sums.oldest_s === null ? "" : `oldest ${age(sums.oldest_s)}`),
    tile("In flight", count(sums.in_flight)),
    tile("Dead letters", count(sums.dead_letters)),
    tile("Events on disk", size(sums.stored_event_bytes)),
    tile("Matches on disk", size(sums.stored_match_bytes)),
  );
}

function quotasCard(name, quotas, caller, draw) {
  const isBytes = (quota) => quota.includes("bytes");
  const shown = (quota, value) => (isBytes(quota) ? size(value) : count(value));
  const change = async () => {
    const inputs = Object.fromEntries(QUOTAS.map(([quota]) => [quota, h("input", { type: "number", min: 0, step: "any", value: quotas.set[quota] ?? "" })]));
    let changed;
    const done = await ask({
      title: `Quotas of ${name}`,
      content: [
        h("p", { class: "muted" }, "Empty: the default of all spaces. 0: no limit."),
        h("div", { class: "fields" }, QUOTAS.map(([quota, title]) => field(title, inputs[quota]))),
      ],
      confirm: "Save quotas",
      act: async () => {
        const body = Object.fromEntries(QUOTAS.map(([quota]) => [quota, inputs[quota].value === "" ? null : Number(inputs[quota].value)]));
        changed = await put(spacePath(name, "quotas"), body);
      },
    });
    if (done) {
      toast("The quotas were saved.");
      draw(changed);
    }
  };
  return card(
    "Quotas",
    table(
      "Quotas",
      [
        { title: "Quota", cell: ([, title]) => title },
        { title: "Used", kind: "number", cell: ([quota]) => (quota in quotas.used ? shown(quota, quotas.used[quota]) : "") },
        { title: "Limit", kind: "number", cell: ([quota]) => (quotas.limits[quota] === null ? "none" : shown(quota, quotas.limits[quota])) },
        { title: "Set here", cell: ([quota]) => (quota in quotas.set ? "yes" : "") },
      ],
      QUOTAS,
    ),
    caller.isAdmin ? h("div", { class: "more-row" }, h("button", { onclick: change }, "Change quotas")) : null,
  );
}

async function askDelete(name) {
  const typed = h("input", { autocomplete: "off", spellcheck: "false" });
  const done = await ask({
    title: `Delete the space ${name}?`,
    content: [
      h("p", {}, "Its subscriptions, their messages and dead letters, its keys and quotas are deleted, and its streams end. This cannot be undone."),
      field("Type the name of the space to confirm", typed),
    ],
    confirm: "Delete space",
    danger: true,
    ready: () => typed.value === name,
    act: () => remove(spacePath(name)),
  });
  if (done) {
    toast(`The space ${name} was deleted.`);
    location.hash = href("spaces");
  }
}

