// Links to other sites, what was exchanged with each, and their loads.

import { get } from "../api.js";
import { card, every, facts, h, head, note, pill, problem, show, table } from "../dom.js";
import { age, count, size } from "../words.js";

const EVERY_S = 5;

export async function open(root, { signal }) {
  const error = h("div", {});
  const place = h("div", {});
  show(root, head("Sites", { about: "The brokers that this service is linked with." }), error, place);
  const look = async () => {
    const [state, balance] = await Promise.all([
      get("/v1/brokers", { signal }),
      get("/v1/balance", { signal }).catch((caught) => {
        if (caught.name === "AbortError") throw caught;
        return null;
      }),
    ]);
    if (!signal.aborted) show(place, cards(state, balance));
  };
  await every(EVERY_S, signal, look, (caught) => show(error, caught ? problem(caught) : null));
}

function cards(state, balance) {
  const troubled = state.links.filter((each) => each.trouble);
  const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`);
  return [
    troubled.map((each) => note("warn", h("p", {}, h("strong", {}, `${each.peer}: `), each.trouble))),
    card(
      `Links of ${state.broker}`,
      facts([
        ["Routing", state.routing],
        state.clusters.length ? ["Clusters", state.clusters.join(", ")] : null,
        ["Inbox", size(state.inbox_bytes)],
        ["Dropped events", count(state.dropped_events)],
        ["Refused filters", count(state.refused_filters)],
        Object.keys(state.moves).length ? ["Moves", Object.entries(state.moves).map(([name, number]) => `${number} ${name}`).join(", ")] : null,
      ]),
      table(
        "Links",
        [
          { title: "Neighbour", cell: (row) => row.peer },
          { title: "State", cell: (row) => (row.is_up ? pill("up", "good") : pill("down", "bad")) },
          { title: "Address", kind: "text", cell: (row) => row.url },
          { title: "Waiting", kind: "number", cell: (row) => `${count(row.outbox_entries)} (${size(row.outbox_bytes)})` },
          { title: "Sent", kind: "number", cell: (row) => count(row.sent_entries) },
          { title: "Withheld", kind: "number", cell: (row) => count(row.withheld_events) },
        ],
        state.links,
        "There are no links.",
      ),
    ),
    card(
      "Brokers",
      table(
        "Brokers",
        [
          { title: "Broker", cell: (row) => [row.name, " ", row.is_removed ? pill("removed", "warn") : null] },
          { title: "Next hop", cell: (row) => row.next_hop ?? "–" },
          { title: "Filters", kind: "number", cell: (row) => count(row.filters) },
          { title: "Events sent", kind: "number", cell: (row) => count(row.events_sent) },
          { title: "Events received", kind: "number", cell: (row) => count(row.events_received) },
          { title: "Sent twice", kind: "number", cell: (row) => count(row.sent_twice) },
        ],
        state.brokers,
      ),
    ),
    balance
      ? card(
          "Loads",
          table(
            "Loads",
            [
              { title: "Broker", cell: (row) => row.name },
              { title: "State", cell: (row) => pill(row.state === "N/A" ? "overloaded" : row.state, row.state === "OK" ? "good" : "warn") },
              { title: "Input", kind: "number", cell: (row) => share(row.input) },
              { title: "Output", kind: "number", cell: (row) => share(row.output) },
              { title: "Processors", kind: "number", cell: (row) => share(row.cpu) },
              { title: "Memory", kind: "number", cell: (row) => share(row.memory) },
              { title: "Queue", kind: "number", cell: (row) => age(row.queue_s) },
              { title: "Subscriptions", kind: "number", cell: (row) => count(row.subscriptions) },
            ],
            balance.brokers,
          ),
          balance.moves.length ? h("p", { class: "more-row" }, `${count(balance.moves.length)} subscriptions would move to balance the load: fieldfare balance --apply begins that.`) : null,
        )
      : null,
  ];
}
