// The console: who the caller is, which pages the rights allow, and which page is shown.

import { get, key, Problem } from "./api.js";
import { h, href, problem, show } from "./dom.js";
import * as audit from "./pages/audit.js";
import * as brokers from "./pages/brokers.js";
import * as editor from "./pages/editor.js";
import * as keys from "./pages/keys.js";
import * as overview from "./pages/overview.js";
import * as pipeline from "./pages/pipeline.js";
import * as spaces from "./pages/spaces.js";
import * as subscription from "./pages/subscription.js";
import * as subscriptions from "./pages/subscriptions.js";
import * as tail from "./pages/tail.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const account = document.getElementById("account");

/** The caller's rights, as `/v1/caller` tells them. */
class Caller {
  constructor(document) {
    this.id = document.id;
    this.needsKeys = document.needs_keys;
    this.service = document.service;
    this.spaces = document.spaces;
    this.isAdmin = this.service.includes("admin");
  }

  may(right, space) {
    const rights = space === undefined ? this.service : this.spaces[space] ?? [];
    return this.isAdmin || rights.includes(right);
  }

  mayAnywhere(right) {
    return this.isAdmin || Object.values(this.spaces).some((rights) => rights.includes(right));
  }
}

let context = null;
let leaving = new AbortController();

const PAGES = [
  { path: "overview", title: "Overview", page: overview, when: () => true },
  { path: "pipeline", title: "Pipeline", page: pipeline, when: ({ caller }) => caller.may("watch") },
  { path: "spaces", title: "Spaces", page: spaces, when: () => true },
  { path: "subscriptions", title: "Subscriptions", page: subscriptions, when: ({ caller }) => caller.mayAnywhere("subscribe") },
  { path: "tail", title: "Event tail", page: tail, when: ({ caller }) => caller.mayAnywhere("subscribe") },
  { path: "brokers", title: "Sites", page: brokers, when: ({ hasBrokers }) => hasBrokers },
  { path: "keys", title: "Keys", page: keys, when: ({ caller }) => caller.needsKeys && caller.mayAnywhere("manage") },
  { path: "audit", title: "Audit", page: audit, when: ({ caller }) => caller.isAdmin },
  { path: "subscription", under: "subscriptions", page: subscription, when: () => true },
  { path: "new", under: "subscriptions", page: editor, when: () => true },
];

function login(message) {
  context = null;
  leaving.abort();
  show(nav);
  show(account);
  document.title = "Sign in – fieldfare";
  const input = h("input", { id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const said = h("div", {});
  const form = h(
    "form",
    {
      class: "card login",
      onsubmit: async (event) => {
        event.preventDefault();
        key.set(input.value.trim());
        await start();
      },
    },
    h("h1", {}, "Sign in"),
    h("p", { class: "muted" }, "This service needs an API key or a token. It stays in this tab and is forgotten when the tab closes."),
    h("div", { class: "field" }, h("label", { for: "key" }, "Key"), input),
    said,
    h("button", { class: "first", type: "submit" }, "Sign in"),
  );
  if (message) show(said, problem(message));
  show(main, form);
  input.focus();
}

function leave() {
  key.forget();
  location.hash = "#/";
  login();
}

function drawNav(active) {
  const items = PAGES.filter((each) => each.title && each.when(context)).map((each) =>
    h("li", {}, h("a", { href: href(each.path), "aria-current": each.path === active ? "page" : null }, each.title)),
  );
  show(nav, h("ul", {}, items));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const { caller } = context;
  if (caller.needsKeys) {
    show(account, h("span", { class: "muted who" }, "Signed in as ", h("code", {}, caller.id)), h("button", { onclick: leave }, "Sign out"));
  } else {
    show(account, h("span", { class: "muted who" }, "No keys are required: everyone who reaches this service may do everything."));
  }
}

function parts() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return [];
  }
}

let isFirst = true;

async function route() {
  if (!context) return;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [name = "overview", ...given] = parts();
  const found = PAGES.find((each) => each.path === name && each.when(context)) ?? PAGES[0];
  drawNav(found.under ?? found.path);
  const root = h("div", {});
  show(main, root);
  window.scrollTo(0, 0);
  try {
    await found.page.open(root, { ...context, given, signal });
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    if (error instanceof Problem && error.status === 401) {
      key.forget();
      login(error);
      return;
    }
    show(root, problem(error));
  }
  if (signal.aborted) return;
  const title = root.querySelector("h1");
  document.title = `${title?.textContent ?? "Console"} – fieldfare`;
  if (title && !isFirst) title.focus({ preventScroll: true });
  isFirst = false;
}

async function start() {
  let caller;
  try {
    caller = new Caller(await get("/v1/caller"));
  } catch (error) {
    const tried = Boolean(key.get());
    if (error.status === 401) {
      key.forget();
      login(tried ? error : null);
    } else {
      show(main, problem(error), h("button", { onclick: start }, "Try again"));
    }
    return;
  }
  context = { caller, hasBrokers: false };
  const asked = caller.may("watch") ? get("/v1/brokers").then(() => true, () => false) : false;
  await route();
  context.hasBrokers = await asked;
  if (context.hasBrokers) {
    if (parts()[0] === "brokers") await route();
    else drawNav(PAGES.find((each) => each.path === parts()[0])?.under ?? parts()[0] ?? "overview");
  }
}

addEventListener("hashchange", route);
start();
