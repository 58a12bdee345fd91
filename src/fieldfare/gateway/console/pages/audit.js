// The last changes, by key.

import { get } from "../api.js";
import { card, field, h, head, pill, show, table } from "../dom.js";
import { count, time } from "../words.js";

const MOST = 1000;
const SHOWN = 200;

export async function open(root, { signal }) {
  const list = h("div", { "aria-live": "polite" });
  const search = h("input", { type: "search", spellcheck: "false", oninput: () => draw() });
  let rows = [];
  const draw = () => {
    const text = search.value.trim().toLowerCase();
    const found = rows.filter((row) => [row.key, row.method, row.path, row.status, row.made, row.because, row.request].join(" ").toLowerCase().includes(text));
    show(list, card("", changes(found.slice(0, SHOWN)), h("p", { class: "muted more-row" }, `${count(Math.min(found.length, SHOWN))} of the last ${count(rows.length)} changes`)));
  };
  const read = async () => {
    rows = (await get(`/v1/audit?limit=${MOST}`, { signal })).audit;
    draw();
  };
  show(
    root,
    head("Audit", { about: "Requests that changed more than events and acks, refused ones included.", actions: [h("button", { onclick: read }, "Refresh")] }),
    h("div", { class: "toolbar" }, h("div", { class: "grow" }, field("Search", search))),
    list,
  );
  await read();
}

function changes(rows) {
  return table(
    "Changes",
    [
      { title: "Time", cell: (row) => time(row.time_ms) },
      { title: "Key", cell: (row) => (row.key ? h("span", { class: "mono" }, row.key) : h("span", { class: "muted" }, row.because ? "the service" : "none")) },
      { title: "Request", kind: "text", cell: (row) => h("span", { class: "mono" }, `${row.method} ${row.path}`) },
      { title: "Status", cell: (row) => pill(String(row.status), row.status < 400 ? "good" : "bad") },
      { title: "Note", kind: "text", cell: (row) => row.because ?? (row.made ? `made ${row.made}` : "") },
    ],
    rows,
    "No change fits.",
  );
}
