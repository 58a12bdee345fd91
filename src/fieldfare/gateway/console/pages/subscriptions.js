// The subscriptions of a space by id or by backlog: all, or those with an owner, labels or a text.

import { get, spacePath } from "../api.js";
import { card, field, h, head, href, later, link, pill, problem, select, show, table } from "../dom.js";
import { labelButtons } from "../labels.js";
import { about, age, count, oneLine } from "../words.js";

const PAGE = 50;

/** The spaces in which the caller may subscribe. */
export async function subscribable(caller, signal) {
  const { spaces } = await get("/v1/spaces", { signal });
  return spaces.map((each) => each.name).filter((name) => caller.may("subscribe", name));
}

/** Choose a space; the page opens again with another one. */
export function spaceChoice(page, spaces, space) {
  const choice = select(spaces.map((name) => [name]), space);
  choice.addEventListener("change", () => {
    location.hash = href(page, choice.value);
  });
  return field("Space", choice);
}

export async function open(root, { caller, given, signal }) {
  const spaces = await subscribable(caller, signal);
  const space = given[0] ?? (spaces.includes("default") ? "default" : spaces[0]);
  if (!spaces.includes(space)) {
    show(root, head("Subscriptions"), problem({ title: "Not found", detail: `The space ${space ?? ""} does not exist, or this key may not subscribe in it.` }));
    return;
  }
  const list = h("div", { "aria-live": "polite", "aria-busy": "false" });
  let sort = "backlog";
  let owner = given[1] === "owner" ? given[2] : null;
  let labels = given[1] === "label" ? [given[2]] : [];
  const search = h("input", { type: "search", placeholder: "Text in id, filter, owner or labels", spellcheck: "false", oninput: later(250, () => begin()) });
  const wanted = h("div", { class: "chips", role: "group", "aria-label": "Only those with" });
  const drop = (shown, work) => h("button", { type: "button", class: "pill", "aria-label": `Remove ${shown}`, onclick: () => { work(); begin(); } }, shown, h("span", { "aria-hidden": "true" }, " ×"));
  const pick = (picked) => {
    if (picked.owner !== undefined) owner = picked.owner;
    else if (!labels.includes(picked.label)) labels = [...labels, picked.label];
    begin();
  };
  const only = h("input", { placeholder: "env=prod, or env for any value", spellcheck: "false", autocomplete: "off", autocapitalize: "off" });
  const kind = select([["label", "label"], ["owner", "owner"]], "label");
  kind.addEventListener("change", () => { only.placeholder = kind.value === "label" ? "env=prod, or env for any value" : "a team or a person"; });
  const add = (event) => {
    event.preventDefault();
    const value = only.value.trim();
    only.value = "";
    if (value) pick({ [kind.value]: value });
  };
  const orders = [["backlog", "Backlog"], ["id", "Id"]].map(([name, title]) =>
    h("button", { type: "button", "data-sort": name, onclick: () => { sort = name; begin(); } }, title),
  );
  let turn = new AbortController();
  signal.addEventListener("abort", () => turn.abort());

  const begin = async () => {
    turn.abort();
    turn = new AbortController();
    const text = search.value.trim();
    show(
      wanted,
      owner === null ? null : drop(`owner ${owner}`, () => { owner = null; }),
      labels.map((each) => drop(each, () => { labels = labels.filter((other) => other !== each); })),
    );
    for (const button of orders) {
      button.setAttribute("aria-pressed", String(button.dataset.sort === sort && !text));
      button.disabled = Boolean(text);
    }
    const rows = [];
    list.setAttribute("aria-busy", "true");
    try {
      await more(rows, null, text, turn.signal);
    } catch (error) {
      if (error.name !== "AbortError") show(list, problem(error));
    }
    list.setAttribute("aria-busy", "false");
  };

  const more = async (rows, after, text, turned) => {
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (text) query.set("search", text);
    else if (sort === "backlog") query.set("sort", "backlog");
    if (owner !== null) query.set("owner", owner);
    for (const each of labels) query.append("label", each);
    const isPart = Boolean(text || owner !== null || labels.length);
    if (after !== null) query.set("after", after);
    const page = await get(`${spacePath(space, "subscriptions")}?${query}`, { signal: turned });
    if (turned.aborted) return;
    rows.push(...page.subscriptions);
    const next = page.next === null ? null : h("button", { onclick: (event) => { event.target.disabled = true; more(rows, page.next, text, turned).catch((error) => error.name !== "AbortError" && list.append(problem(error))); } }, isPart ? "Search on" : "Show more");
    const nothing = labels.length || owner !== null ? "No subscription has all of this." : "No subscription has this text.";
    const empty = isPart ? (page.next === null ? nothing : "None found so far.") : "There are no subscriptions yet.";
    show(
      list,
      card("", subscriptionsTable(rows, space, sort === "backlog" && !text, empty, pick), h("div", { class: "more-row actions" }, next, h("span", { class: "muted" }, rows.length ? `${count(rows.length)} shown` : ""))),
    );
  };

  show(
    root,
    head("Subscriptions", { actions: [h("a", { class: "button first", href: href("new", space) }, "New subscription")] }),
    h(
      "div",
      { class: "toolbar" },
      spaceChoice("subscriptions", spaces, space),
      h("div", { class: "grow" }, field("Search", search)),
      h("fieldset", { class: "field" }, h("legend", {}, "Order"), h("div", { class: "segments" }, orders)),
    ),
    h("form", { class: "toolbar", onsubmit: add }, field("Only with", kind), h("div", { class: "grow" }, field("Label or owner", only)), h("button", { type: "submit" }, "Add"), wanted),
    list,
  );
  await begin();
}

function subscriptionsTable(rows, space, withBacklog, empty, pick) {
  const state = (row) => [row.delivery?.paused ? pill("paused", "warn") : null, row.delivery?.push ? pill("push") : null];
  const backlog = [
    { title: "Pending", kind: "number", cell: (row) => about(row.backlog.pending, row.backlog.is_exact) },
    { title: "In flight", kind: "number", cell: (row) => count(row.backlog.in_flight) },
    { title: "Oldest", kind: "number", cell: (row) => age(row.backlog.oldest_s) },
    { title: "Dead letters", kind: "number", cell: (row) => count(row.backlog.dead_letters) },
    { title: "Readers", kind: "number", cell: (row) => count(row.backlog.readers) },
  ];
  return table(
    `Subscriptions of ${space}`,
    [
      { title: "Id", cell: (row) => [link(["subscription", space, row.id], row.id), " ", state(row)] },
      ...(withBacklog ? backlog : [{ title: "Dialect", cell: (row) => row.dialect }]),
      { title: "Filter, owner and labels", kind: "text", cell: (row) => [h("code", { class: "clip" }, oneLine(row.filter).slice(0, 400)), row.owner || row.labels ? h("div", { class: "chips" }, labelButtons(row, pick)) : null] },
    ],
    rows,
    empty,
  );
}
