// The pipeline: what it does now, the processes, the index, costly spaces, slices, quarantined records.

import { get, path, post } from "../api.js";
import { Chart } from "../chart.js";
import { bar, card, every, facts, h, head, link, note, pill, problem, redraw, show, table, tile, toast } from "../dom.js";
import { age, count, milliseconds, percent, plural, rate, size, time } from "../words.js";
import { remember } from "./overview.js";
import { TraceForm } from "./trace.js";

const EVERY_S = 2;
const QUARANTINE_EVERY = 5;
const SHOWN_DECISIONS = 10;

// The charts live as long as the tab, as those of the overview do.
const charts = {
  time: new Chart("Processor time of matching", ["All spaces"], perSecond),
  lag: new Chart("Age of the oldest event that is not matched", ["Oldest"], lagText),
};

function perSecond(value) {
  return value === null || value === undefined ? "–" : `${rate(value)} ms/s`;
}

function lagText(seconds) {
  return seconds !== null && seconds < 10 ? milliseconds(1000 * seconds) : age(seconds);
}

export async function open(root, { caller, signal }) {
  const error = h("div", {});
  const state = h("div", { "aria-live": "polite" });
  const activity = h("div", {});
  const tiles = h("dl", { class: "tiles eight" });
  const processes = h("div", {});
  const figures = h("div", { class: "grid" });
  const scaling = h("div", {});
  const aside = h("div", {});
  const trace = new TraceForm(caller, signal);
  show(
    root,
    head("Pipeline", { about: "Refreshed every two seconds while this tab is visible." }),
    error,
    state,
    activity,
    tiles,
    processes,
    h("div", { class: "grid charts" }, charts.time.node, charts.lag.node),
    figures,
    scaling,
    aside,
    trace.node,
  );
  let round = 0;
  const look = async () => {
    const [pipeline, stats] = await Promise.all([get("/v1/pipeline", { signal }), get("/v1/stats", { signal })]);
    if (signal.aborted) return;
    remember(stats);
    charts.time.add(pipeline.matching_ms_per_s);
    charts.lag.add(stats.lag_s);
    const troubled = pipeline.processes.filter((each) => each.ready !== "ready");
    redraw(state, troubled.map((each) => [each.name, each.ready]), () => (troubled.length ? trouble(troubled) : null));
    redraw(activity, [troubled.length, pipeline.activity], () => (troubled.length ? null : doing(pipeline.activity)));
    show(tiles, tilesOf(pipeline, stats));
    redraw(processes, [pipeline.processes.map((each) => ({ ...each, heartbeat_ms: 0 })), pipeline.supervisor], () => processCard(pipeline));
    redraw(figures, [pipeline.spaces, pipeline.index, pipeline.durable], () => [spaceCard(pipeline), indexCard(pipeline)]);
    redraw(scaling, [pipeline.slices, pipeline.elastic], () => [sliceCard(pipeline.slices), pipeline.elastic ? elasticCards(pipeline.elastic) : null]);
    if (round++ % QUARANTINE_EVERY === 0) await lookAside(stats.quarantined_records);
  };
  const lookAside = async (number) => {
    const { quarantine } = await get("/v1/quarantine", { signal });
    if (signal.aborted) return;
    const retry = async (record, button) => {
      button.disabled = true;
      try {
        await post(path("quarantine", record.position, "retry"), undefined, { signal });
        toast(`The ${plural(record.events, "event")} of record ${record.position} were published again.`);
      } catch (caught) {
        if (signal.aborted) return;
        show(error, problem(caught));
      }
      await lookAside((await get("/v1/stats", { signal })).quarantined_records);
    };
    redraw(aside, [quarantine, number], () => quarantineCard(quarantine, number, retry));
  };
  await every(EVERY_S, signal, look, (caught) => show(error, caught ? problem(caught) : null));
}

function trouble(processes) {
  const rows = processes.map((each) => h("li", {}, h("span", {}, each.name), h("span", {}, pill("not ready", "bad"), " ", each.ready)));
  return note("bad", h("p", { class: "title" }, "Not ready"), h("ul", { class: "list checks" }, rows));
}

function doing(activity) {
  if (!activity) return note("good", h("p", {}, h("strong", {}, "The pipeline runs.")));
  const tasks = plural(activity.tasks, "task");
  const said = {
    follows: ["follows the log", `with ${tasks}: each record is matched as soon as it is there`],
    matches: ["matches a batch", `of ${plural(activity.records, "record")} with ${tasks}`],
    waits: ["waits", "for events, or for the index to cover them"],
  }[activity.kind] ?? [activity.kind, ""];
  return note("good", h("p", {}, "The pipeline ", h("strong", {}, said[0]), ` ${said[1]}.`));
}

function tilesOf(pipeline, stats) {
  const { index, cores, executors, matchers } = pipeline;
  const busy = cores ? `${percent(pipeline.matching_ms_per_s / 1000 / cores)} of ${plural(cores, "core")}` : "";
  const behind = index.revision === null ? null : Math.max(0, index.registry_revision - index.revision);
  const covering = { true: "covers all", false: "behind", null: "–" }[index.is_covering];
  return [
    tile("Matched records", count(stats.matched_end), `of ${count(stats.log_end)} in the log`),
    tile("Lag", plural(stats.lag_events, "event"), stats.lag_events ? `oldest ${lagText(stats.lag_s)}` : "all are matched"),
    tile("Events", `${rate(stats.events_per_s)}/s`, `${rate(stats.matches_per_s)} matches/s`),
    tile("Latency, median", milliseconds(stats.match_latency_ms.p50), `99th percentile ${milliseconds(stats.match_latency_ms.p99)}`),
    tile("Processor time", perSecond(pipeline.matching_ms_per_s), busy),
    tile("Tasks at a time", count(cores), cores === null ? "" : executors === null ? "on this machine" : `on ${plural(executors, "executor")}`),
    tile("Index", covering, behind ? `${plural(behind, "change")} to come` : `${index.manifest === null ? "" : `manifest ${count(index.manifest)}`}${matchers > 1 ? `, ${count(matchers)} matchers` : ""}`),
    tile("Quarantined", count(stats.quarantined_records), stats.quarantined_records ? "records, see below" : "no record"),
  ];
}

function processCard({ processes, supervisor }) {
  return card(
    "Processes",
    table(
      "Processes of the service",
      [
        { title: "Process", cell: (row) => h("span", { class: "whole" }, row.name) },
        { title: "State", cell: (row) => (row.ready === "ready" ? pill("ready", "good") : pill("not ready", "bad")) },
        { title: "Says", kind: "text", cell: (row) => (row.ready === "ready" ? row.state : row.ready) },
        { title: "Started", cell: (row) => (row.started_ms === null ? "–" : h("span", { class: "whole" }, time(row.started_ms))) },
        { title: "Process id", kind: "number", cell: (row) => row.pid ?? "–" },
      ],
      processes,
    ),
    supervisor
      ? h(
          "p",
          { class: "muted more-row" },
          supervisor.state === "running"
            ? `The supervisor (process ${supervisor.pid}) has restarted the whole service ${plural(supervisor.restarts, "time")}; `
              + `last change of its state: ${time(supervisor.changed_ms)}.`
            : `The service is being restarted: the supervisor is ${supervisor.state}.`,
        )
      : null,
  );
}

function spaceCard({ spaces, matching_ms_per_s: total }) {
  const most = Math.max(...spaces.map((each) => each.matching_ms_per_s), 0);
  return card(
    "Costliest spaces, last minute",
    table(
      "Matching time and matches by space",
      [
        { title: "Space", cell: (row) => link(["subscriptions", row.space], row.space) },
        { title: "", kind: "share-bar", cell: (row) => bar(0, most ? row.matching_ms_per_s / most : 0) },
        { title: "Time", kind: "number", cell: (row) => perSecond(row.matching_ms_per_s) },
        { title: "Share", kind: "number", cell: (row) => (total ? percent(row.matching_ms_per_s / total) : "–") },
        { title: "Matches", kind: "number", cell: (row) => `${rate(row.matches_per_s)}/s` },
      ],
      spaces,
      "Nothing was matched in the last minute.",
    ),
  );
}

function indexCard({ index, durable, matchers }) {
  return card(
    "Index and log",
    facts([
      ["Covers the log", { true: pill("all records", "good"), false: pill("not yet", "warn"), null: "–" }[index.is_covering]],
      ["Index revision", `${count(index.revision)} of ${count(index.registry_revision)} in the registry`],
      ["Snapshots", `revision ${count(index.snapshot_revision)}`],
      ["Manifest", count(index.manifest)],
      ["Matchers", count(matchers)],
      ["Durable matches", durable.length > 1 ? durable.map((each, at) => h("div", {}, `partition ${at}: ${count(each)}`)) : `up to record ${count(durable[0])}`],
    ]),
  );
}

function sliceCard(slices) {
  if (!slices.length) return null;
  return card(
    "Slices",
    table(
      "Slices of spaces that have several",
      [
        { title: "Space", cell: (row) => link(["subscriptions", row.space], row.space) },
        { title: "Slice", kind: "number", cell: (row) => row.slice },
        { title: "Matcher", kind: "number", cell: (row) => row.matcher },
        { title: "Filters", kind: "number", cell: (row) => count(row.filters) },
        { title: "Events received", kind: "number", cell: (row) => (row.arrivals_per_s === null ? "–" : `${rate(row.arrivals_per_s)}/s`) },
        { title: "Capacity", kind: "number", cell: (row) => (row.matched_per_s ? `${rate(row.matched_per_s)}/s` : "–") },
      ],
      slices,
    ),
  );
}

function elasticCards({ loads, is_running: isRunning, configuration, decisions }) {
  const slices = isRunning ? loads.slices : Object.entries(configuration.places).map(([slice, place]) => ({ slice, host: place.host, cpu: null, memory_bytes: null }));
  const hosts = isRunning ? loads.hosts : configuration.hosts.map((host) => ({ host }));
  const homeless = slices.filter((each) => !each.host).map((each) => each.slice);
  const onHost = (name) => slices.filter((each) => each.host === name);
  return [
    card(
      "Hosts",
      isRunning
        ? h("p", { class: "muted" }, `${plural(hosts.length, "host")}, ${loads.least} to ${loads.most} allowed.`,
            loads.dry_run ? " Dry run: decisions are not carried out." : "",
            loads.asked ? ` ${percent(loads.granted / loads.asked)} of ${plural(loads.asked, "task")} ran on their preferred host.` : "")
        : note("warn", h("p", {}, "The elastic service is not running. This is its last state.")),
      table(
        "Hosts of the elastic service",
        [
          { title: "Host", cell: (row) => row.host },
          { title: "Load", kind: "share-bar", cell: (row) => (isRunning ? bar(0, row.cpu) : "") },
          { title: "CPU", kind: "number", cell: (row) => (isRunning ? percent(row.cpu) : "–") },
          { title: "Executor", cell: (row) => (!row.executor ? "–" : [`${row.executor}, ${plural(row.cores, "core")} `, row.is_warm ? null : pill("not warm yet", "warn")]) },
          {
            title: "Slices",
            kind: "text",
            cell: (row) => onHost(row.host).map((each) => h("div", {}, isRunning ? `${each.slice}: ${percent(each.cpu)}, ${size(each.memory_bytes)}` : each.slice)),
          },
        ],
        hosts,
      ),
      homeless.length ? h("p", { class: "muted more-row" }, `Anywhere: ${homeless.join(", ")}`) : null,
    ),
    card(
      "Decisions",
      table(
        "Decisions of the elastic service, newest first",
        [
          { title: "Time", cell: (row) => h("span", { class: "whole" }, time(row.time_ms)) },
          { title: "Reason", kind: "text", cell: (row) => row.reason },
          { title: "Decision", kind: "text", cell: (row) => [decision(row), row.is_done ? null : [" ", pill("not done", "warn")]] },
        ],
        decisions.slice(-SHOWN_DECISIONS).reverse(),
        "No decision was made.",
      ),
    ),
  ];
}

function decision({ moves, new_hosts: added, released }) {
  const said = moves.map((each) => `${each.slice} to ${typeof each.to === "number" ? `new host ${each.to + 1}` : each.to}`);
  if (added) said.push(`add ${plural(added, "host")}`);
  return [...said, ...released.map((each) => `release ${each}`)].join(", ");
}

function quarantineCard(quarantine, number, retry) {
  const empty = number ? `${plural(number, "record")} set aside, in spaces that this key does not manage.` : "No record was set aside.";
  return card(
    "Quarantined records",
    h("p", { class: "muted" }, "Records that could not be matched; none of their events was delivered. Retry one when the cause is fixed: its events are published again."),
    table(
      "Quarantined records, oldest first",
      [
        { title: "Position", cell: (row) => h("code", {}, row.position) },
        { title: "Space", cell: (row) => row.space },
        { title: "Events", kind: "number", cell: (row) => count(row.events) },
        { title: "Set aside", cell: (row) => h("span", { class: "whole" }, time(row.set_aside_ms)) },
        { title: "Reason", kind: "text", cell: (row) => row.error },
        {
          title: "",
          kind: "actions-cell",
          cell: (row) => h("button", { "aria-label": `Retry ${row.position}`, onclick: (event) => retry(row, event.currentTarget) }, "Retry"),
        },
      ],
      quarantine,
      empty,
    ),
  );
}
