// The state of the service: what is ready, live rates, lag, latency, disk, and the greatest backlogs.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { card, every, h, head, link, note, pill, problem, redraw, show, table, tile } from "../dom.js";
import { about, age, count, milliseconds, plural, rate, size } from "../words.js";

const EVERY_S = 2;
const UNKNOWN = { match_latency_ms: {} };

// The charts live as long as the tab, and also the page of the pipeline adds to them.
const charts = {
  rates: new Chart("Events and matches", ["Events", "Matches"], (value) => perSecond(value)),
  lag: new Chart("Lag", ["Not matched yet"], (value) => (value === null || value === undefined ? "–" : plural(value, "event"))),
  latency: new Chart("Time from publishing to match", ["Median", "99th percentile"], milliseconds),
};

/** Add figures to the charts. */
export function remember(stats) {
  charts.rates.add(stats.events_per_s, stats.matches_per_s);
  charts.lag.add(stats.lag_events);
  charts.latency.add(stats.match_latency_ms.p50, stats.match_latency_ms.p99);
}

function perSecond(value) {
  return value === null || value === undefined ? "–" : `${rate(value)}/s`;
}

export async function open(root, { caller, signal }) {
  if (!caller.may("watch")) {
    show(root, head("Overview"), withoutRights(caller));
    return;
  }
  const error = h("div", {});
  const state = h("div", { "aria-live": "polite" });
  const tiles = h("dl", { class: "tiles eight" }, figures(UNKNOWN, null));
  const worst = h("div", { class: "grid" });
  show(
    root,
    head("Overview", { about: "Refreshed every two seconds while this tab is visible." }),
    error,
    state,
    tiles,
    h("div", { class: "grid charts" }, charts.rates.node, charts.lag.node, charts.latency.node),
    worst,
  );
  let lastState = "";
  let round = 0;
  const look = async () => {
    const [stats, ready] = await Promise.all([
      get("/v1/stats", { signal }),
      get("/readyz", { signal, accepts: [503] }),
    ]);
    if (signal.aborted) return;
    const said = JSON.stringify(ready);
    if (said !== lastState) {
      lastState = said;
      show(state, readiness(ready));
    }
    remember(stats);
    let backlogs = null;
    try {
      backlogs = await get("/v1/backlogs?limit=8", { signal });
    } catch (caught) {
      if (caught.name === "AbortError") throw caught;
      if (round === 0) show(worst, card("Backlogs", problem(caught)));
    }
    if (signal.aborted) return;
    show(tiles, figures(stats, backlogs));
    if (backlogs) redraw(worst, backlogs, () => backlogCards(backlogs, caller));
    round += 1;
  };
  await every(EVERY_S, signal, look, (caught) => show(error, caught ? problem(caught) : null));
}

function figures(stats, backlogs) {
  const total = backlogs?.total;
  return [
    tile("Events", perSecond(stats.events_per_s), `${count(stats.events_total)} since the start`),
    tile("Matches", perSecond(stats.matches_per_s), `${count(stats.matches_total)} since the start`),
    tile("Lag", plural(stats.lag_events, "event"), stats.lag_events ? `oldest ${age(stats.lag_s)}` : "all are matched"),
    tile("Latency, median", milliseconds(stats.match_latency_ms.p50), `99th percentile ${milliseconds(stats.match_latency_ms.p99)}`),
    tile("Subscriptions", count(stats.subscriptions), plural(stats.connected, "open stream")),
    tile("Pending", total ? about(total.pending, total.is_exact) : "–", total?.oldest_s != null ? `oldest ${age(total.oldest_s)}` : ""),
    tile("Delivered", count(stats.delivered_total), "messages since the start"),
    tile("Free disk", size(stats.disk_free_bytes), `log ${size(stats.log_bytes)}`),
  ];
}

function readiness(ready) {
  const checks = Object.entries(ready.checks ?? {});
  const notices = (ready.notices ?? []).map((text) => note("warn", h("p", {}, text)));
  if (ready.status === "ready") {
    return [note("good", h("p", {}, h("strong", {}, "Ready. "), `Events are accepted and matched: ${checks.map(([name]) => name).join(", ")}.`)), notices];
  }
  const rows = checks.map(([name, said]) =>
    h("li", {}, h("span", {}, name), said === "ready" ? h("span", {}, pill("ready", "good")) : h("span", {}, pill("not ready", "bad"), " ", said)),
  );
  return [note("bad", h("p", { class: "title" }, "Not ready"), h("ul", { class: "list checks" }, rows)), notices];
}

function backlogCards(backlogs, caller) {
  const name = (row) => (caller.may("subscribe", row.space) ? link(["subscription", row.space, row.id], row.id) : row.id);
  return [
    card(
      "Subscriptions with the most pending messages",
      table(
        "Subscriptions with the most pending messages",
        [
          { title: "Subscription", cell: (row) => [name(row), h("span", { class: "muted" }, ` in ${row.space}`)] },
          { title: "Pending", kind: "number", cell: (row) => about(row.pending, row.is_exact) },
          { title: "Oldest", kind: "number", cell: (row) => age(row.oldest_s) },
          { title: "Dead letters", kind: "number", cell: (row) => count(row.dead_letters) },
        ],
        backlogs.subscriptions,
        "No subscription has pending messages.",
      ),
    ),
    card(
      "Spaces",
      table(
        "Spaces with the most pending messages",
        [
          { title: "Space", cell: (row) => link(["subscriptions", row.space], row.space) },
          { title: "Behind", kind: "number", cell: (row) => `${count(row.behind)} of ${count(row.subscriptions)}` },
          { title: "Pending", kind: "number", cell: (row) => about(row.pending, row.is_exact) },
          { title: "Stored", kind: "number", cell: (row) => size(row.stored_event_bytes + row.stored_match_bytes) },
        ],
        backlogs.spaces,
        "No space has subscriptions.",
      ),
    ),
  ];
}

function withoutRights(caller) {
  const spaces = Object.entries(caller.spaces);
  return [
    note("", h("p", {}, "The figures of the service need a key with the right ", h("code", {}, "watch"), ".")),
    card(
      "Rights of this key",
      table(
        "Rights of this key",
        [
          { title: "Space", cell: ([space]) => space },
          { title: "Rights", cell: ([, rights]) => rights.join(", ") },
          { title: "", kind: "actions-cell", cell: ([space, rights]) => (rights.includes("subscribe") ? link(["subscriptions", space], "Subscriptions") : "") },
        ],
        spaces,
        caller.service.length ? `In the service: ${caller.service.join(", ")}.` : "None.",
      ),
    ),
  ];
}
