// A new subscription: id, filter, where it begins, owner and labels, delivery settings.

import { post, spacePath } from "../api.js";
import { card, field, h, head, href, link, problem, select, show, toast } from "../dom.js";
import { FilterEditor } from "../filter-editor.js";
import { deliveryForm } from "../delivery-form.js";
import { labelsForm } from "../labels.js";

export async function open(root, { given, signal }) {
  const [space] = given;
  const id = h("input", { maxlength: 128, spellcheck: "false", autocomplete: "off" });
  const start = select([["", "now: events published from now on"], ["earliest", "the oldest event in the log"]], "");
  const create = h("button", { class: "first", type: "submit" }, "Create subscription");
  const editor = new FilterEditor({ space, signal, onState: (isValid) => { create.disabled = !isValid; } });
  const settings = deliveryForm({});
  const labels = labelsForm({});
  const said = h("div", {});
  create.disabled = true;
  const form = h(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        create.disabled = true;
        try {
          const delivery = settings.changes();
          const body = { ...editor.value, delivery, ...labels.changes(), ...(start.value ? { start: start.value } : {}) };
          const named = id.value.trim();
          const made = await post(spacePath(space, "subscriptions"), { ...body, ...(named ? { id: named } : {}) });
          toast(`The subscription ${made.id} was created.`);
          location.hash = href("subscription", space, made.id);
        } catch (error) {
          show(said, problem(error));
          create.disabled = false;
        }
      },
    },
    card("Filter", field("Id", id, "Empty: the service chooses one."), editor.node, field("Begins with", start)),
    card("Owner and labels", labels.node),
    card("Delivery", settings.node),
    said,
    h("div", { class: "actions" }, create, h("a", { class: "button", href: href("subscriptions", space) }, "Cancel")),
  );
  show(root, head("New subscription", { crumbs: [link(["subscriptions", space], "Subscriptions"), space] }), form);
  await editor.check();
}

