// The subscriptions of a space: by id, by backlog, or with a text in id or filter.

import { get, spacePath } from "../api.js";
import { card, field, h, head, href, later, link, pill, problem, select, show, table } from "../dom.js";
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
  const search = h("input", { type: "search", placeholder: "Text in id or filter", spellcheck: "false", oninput: later(250, () => begin()) });
  const orders = [["backlog", "Backlog"], ["id", "Id"]].map(([name, title]) =>
    h("button", { type: "button", "data-sort": name, onclick: () => { sort = name; begin(); } }, title),
  );
  let turn = new AbortController();
  signal.addEventListener("abort", () => turn.abort());

  const begin = async () => {
    turn.abort();
    turn = new AbortController();
    const text = search.value.trim();
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
    if (after !== null) query.set("after", after);
    const page = await get(`${spacePath(space, "subscriptions")}?${query}`, { signal: turned });
    if (turned.aborted) return;
    rows.push(...page.subscriptions);
    const next = page.next === null ? null : h("button", { onclick: (event) => { event.target.disabled = true; more(rows, page.next, text, turned).catch((error) => error.name !== "AbortError" && list.append(problem(error))); } }, text ? "Search on" : "Show more");
    const empty = text ? (page.next === null ? "No subscription has this text." : "None found so far.") : "There are no subscriptions yet.";
    show(
      list,
      card("", subscriptionsTable(rows, space, sort === "backlog" && !text, empty), h("div", { class: "more-row actions" }, next, h("span", { class: "muted" }, rows.length ? `${count(rows.length)} shown` : ""))),
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
    list,
  );
  await begin();
}

function subscriptionsTable(rows, space, withBacklog, empty) {
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
      { title: "Filter", kind: "text", cell: (row) => h("code", { class: "clip" }, oneLine(row.filter).slice(0, 400)) },
    ],
    rows,
    empty,
  );
}
