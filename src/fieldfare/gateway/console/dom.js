// Elements from values. Text is always set as text: nothing here, and nothing that uses it, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Make an element: `h("a", { href, onclick }, "text", child)`. */
export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

export function show(node, ...children) {
  node.replaceChildren();
  fill(node, {}, children);
}

/** Show what `draw` returns if `value` has changed since the last call; a focused control keeps the focus. */
export function redraw(node, value, draw) {
  const said = JSON.stringify(value);
  if (node.drawn === said) return;
  node.drawn = said;
  const focused = node.contains(document.activeElement) ? sign(document.activeElement) : null;
  show(node, draw());
  if (focused !== null) [...node.querySelectorAll("a, button, input, select")].find((each) => sign(each) === focused)?.focus({ preventScroll: true });
}

const sign = (each) => each.getAttribute("href") ?? each.ariaLabel ?? each.textContent;

/** A horizontal bar from one share of the width on; a figure beside it says the same in words. */
export const bar = (begin, length) =>
  svg(
    "svg",
    { class: "bar-chart", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "rail", x: 0, y: 0, width: 100, height: 10 }),
    svg("rect", { class: "part", x: (100 * Math.min(begin, 0.995)).toFixed(2), y: 0, width: Math.max(length > 0 ? 0.5 : 0, Math.min(100 * length, 100)).toFixed(2), height: 10 }),
  );

/** A link to a page of the console. */
export const link = (to, ...children) => h("a", { href: href(...to) }, ...children);
export const href = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");

let numbered = 0;

/** A labelled input, select or textarea. */
export function field(label, control, help) {
  control.id ||= `control-${++numbered}`;
  const about = help ? h("p", { class: "help", id: `${control.id}-help` }, help) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, about);
}

export function select(options, value) {
  const found = h("select", {}, options.map(([name, text]) => h("option", { value: name }, text ?? name)));
  found.value = value;
  return found;
}

/** A table. Columns are `{ title, cell(row), kind }`; the first is the row's header. */
export function table(caption, columns, rows, empty = "Nothing to show.") {
  if (!rows.length) return h("p", { class: "muted" }, empty);
  const head = columns.map((column) => h("th", { scope: "col", class: column.kind }, column.title));
  const cells = (row) =>
    columns.map((column, at) =>
      at
        ? h("td", { class: column.kind, "data-label": column.title || undefined }, h("div", {}, column.cell(row)))
        : h("th", { scope: "row" }, column.cell(row)),
    );
  return h(
    "div",
    { class: "table" },
    h(
      "table",
      {},
      h("caption", { class: "hidden-label" }, caption),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.map((row) => h("tr", {}, cells(row)))),
    ),
  );
}

export const card = (title, ...children) => h("section", { class: "card" }, title ? h("h2", {}, title) : null, ...children);
export const pill = (text, kind = "") => h("span", { class: `pill ${kind}` }, text);
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
export const tile = (name, value, more) =>
  h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, h("div", { class: "value" }, value), h("div", { class: "more" }, more ?? "")));
export const note = (kind, ...children) => h("div", { class: `note ${kind}` }, ...children);

/** The title, actions and introduction of a page; the title takes the focus when the page opens. */
export function head(title, { crumbs, about, actions } = {}) {
  const trail = crumbs?.length ? h("nav", { class: "crumbs", "aria-label": "Where you are" }, crumbs.flatMap((each, at) => (at ? [" / ", each] : [each]))) : null;
  return h(
    "div",
    { class: "head" },
    h("div", {}, trail, h("h1", { tabindex: "-1" }, title), about ? h("p", { class: "muted" }, about) : null),
    actions?.length ? h("div", { class: "actions" }, actions) : null,
  );
}

/** An error as its title and detail, with the place in a filter where it names one. */
export function problem(error) {
  const [first, ...lines] = (error.display ?? "").split("\n");
  const place = lines.filter((line) => !line.trimStart().startsWith("hint:")).join("\n");
  return h(
    "div",
    { class: "note bad", role: "alert" },
    h("p", { class: "title" }, error.title ?? "Error"),
    h("p", {}, first || error.detail || error.message),
    place ? h("pre", {}, place) : null,
    error.hint ? h("p", {}, `Hint: ${error.hint}`) : null,
  );
}

export function toast(text) {
  const shown = h("div", { class: "toast" }, text);
  const toasts = document.getElementById("toasts");
  if (toasts.children.length > 1) toasts.firstChild.remove();
  toasts.append(shown);
  setTimeout(() => shown.remove(), 6000);
}

/** Ask in a dialog; `act` runs on confirmation and its error stays in the dialog. Resolves to whether it was done. */
export function ask({ title, content = [], confirm, danger = false, act, ready = () => true }) {
  return new Promise((resolve) => {
    const error = h("div", {});
    const yes = h("button", { class: danger ? "danger" : "first", type: "submit" }, confirm);
    const heading = h("h2", { id: `dialog-${++numbered}` }, title);
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: async (event) => {
          event.preventDefault();
          if (!ready()) return;
          yes.disabled = true;
          try {
            await act();
            dialog.returnValue = "done";
            dialog.close("done");
          } catch (caught) {
            show(error, problem(caught));
          } finally {
            yes.disabled = !ready();
          }
        },
        oninput: () => {
          yes.disabled = !ready();
        },
      },
      heading,
      content,
      error,
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"), yes),
    );
    const dialog = h("dialog", { "aria-labelledby": heading.id, onclose: () => { dialog.remove(); resolve(dialog.returnValue === "done"); } }, form);
    yes.disabled = !ready();
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Call `work` now and every few seconds while the page is open and visible; errors go to `onError`. */
export function every(seconds, signal, work, onError) {
  let timer;
  const turn = async () => {
    if (signal.aborted) return;
    if (!document.hidden) {
      try {
        await work();
        if (!signal.aborted) onError(null);
      } catch (error) {
        if (!signal.aborted && error.name !== "AbortError") onError(error);
      }
    }
    if (!signal.aborted) timer = setTimeout(turn, seconds * 1000);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  return turn();
}

/** A function that runs once calls have paused for some milliseconds. */
export function later(milliseconds, work) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}
