// API keys: listing, creating and revoking them.

import { get, path, post, remove } from "../api.js";
import { ask, card, field, h, head, note, pill, select, show, table, toast } from "../dom.js";
import { time } from "../words.js";

const OF_SPACE = ["publish", "subscribe", "manage"];
const OF_SERVICE = ["watch", "admin", "broker"];

export async function open(root, { caller, signal }) {
  const [{ keys }, { spaces }] = await Promise.all([get("/v1/keys", { signal }), get("/v1/spaces", { signal })]);
  const made = h("div", { "aria-live": "polite" });
  const list = h("div", {});
  const read = async () => draw((await get("/v1/keys", { signal })).keys);
  const revoke = async (row) => {
    const done = await ask({
      title: `Revoke the key ${row.id}?`,
      content: [row.note ? h("p", {}, row.note) : null, h("p", {}, "Requests with it are refused from then on, and its open streams end. This cannot be undone.")],
      confirm: "Revoke key",
      danger: true,
      act: () => remove(path("keys", row.id)),
    });
    if (done) {
      toast(`The key ${row.id} was revoked.`);
      await read();
    }
  };
  const draw = (rows) =>
    show(
      list,
      card(
        "",
        table(
          "API keys",
          [
            { title: "Id", cell: (row) => [h("span", { class: "mono whole" }, row.id), row.id === caller.id ? [" ", pill("this one")] : null] },
            { title: "Space", cell: (row) => row.space ?? "the service" },
            { title: "Rights", cell: (row) => row.rights.join(", ") },
            { title: "Note", kind: "text", cell: (row) => row.note },
            { title: "Created", cell: (row) => time(row.created_ms) },
            { title: "", kind: "actions-cell", cell: (row) => h("button", { class: "danger", "aria-label": `Revoke ${row.id}`, onclick: () => revoke(row) }, "Revoke") },
          ],
          rows,
          "There are no keys.",
        ),
      ),
    );
  const create = async () => {
    const key = await askNew(caller, spaces.map((each) => each.name).filter((name) => caller.may("manage", name)));
    if (!key) return;
    show(made, newKey(key, () => show(made)));
    await read();
  };
  show(root, head("Keys", { about: "The secret of a key is shown once, when it is created.", actions: [h("button", { class: "first", onclick: create }, "New key")] }), made, list);
  draw(keys);
}

function newKey(key, hide) {
  const secret = h("input", { class: "mono", readonly: true, value: key.key, onfocus: (event) => event.target.select() });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(key.key);
      toast("The key was copied.");
    } catch {
      secret.select();
    }
  };
  return note("good", h("p", { class: "title" }, `The key ${key.id} was created. Keep it now: it is not shown again.`), field("Key", secret), h("div", { class: "actions" }, h("button", { onclick: copy }, "Copy"), h("button", { onclick: hide }, "Hide")));
}

async function askNew(caller, spaces) {
  const where = select([...(caller.isAdmin ? [["", "the service"]] : []), ...spaces.map((name) => [`/${name}`, `the space ${name}`])], spaces.length ? `/${spaces[0]}` : "");
  const rights = h("fieldset", {});
  const boxes = () => [...rights.querySelectorAll("input:checked")].map((each) => each.value);
  const drawRights = () =>
    show(
      rights,
      h("legend", {}, "Rights"),
      (where.value ? OF_SPACE : OF_SERVICE).map((right) => h("label", { class: "check" }, h("input", { type: "checkbox", value: right }), right)),
    );
  where.addEventListener("change", drawRights);
  drawRights();
  const about = h("input", { maxlength: 200, autocomplete: "off" });
  let made = null;
  await ask({
    title: "New key",
    content: [field("For", where), rights, field("Note", about, "What it is for.")],
    confirm: "Create key",
    ready: () => boxes().length > 0,
    act: async () => {
      made = await post("/v1/keys", { space: where.value ? where.value.slice(1) : null, rights: boxes(), note: about.value });
    },
  });
  return made;
}
