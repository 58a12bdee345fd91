// Requests to the gateway's documented routes. The key stays in sessionStorage: it ends with the tab.

const KEY = "fieldfare-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/** An error of the API as its problem says it, or of the connection. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `The service answered with status ${status}.`);
    this.status = status;
    this.title = document.title || "Error";
    this.detail = document.detail || "";
    this.hint = document.hint || "";
    this.display = document.display || "";
    this.type = String(document.type || "").split(":").pop();
  }
}

function headers(body) {
  const found = {};
  if (key.get()) found.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) found["Content-Type"] = "application/json";
  return found;
}

async function open(method, path, { body, signal } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headers(body),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "No connection", detail: "The service cannot be reached. Trying again helps if it is restarting." });
  }
  return response;
}

async function problemOf(response) {
  try {
    return new Problem(response.status, await response.json());
  } catch {
    return new Problem(response.status, {});
  }
}

/** Send a request and return its JSON; throw a Problem for an error. `accepts` names further statuses. */
export async function request(method, path, { body, signal, accepts = [] } = {}) {
  const response = await open(method, path, { body, signal });
  if (!response.ok && !accepts.includes(response.status)) throw await problemOf(response);
  return response.status === 204 ? null : response.json();
}

export const get = (path, options) => request("GET", path, options);
export const post = (path, body, options) => request("POST", path, { ...options, body });
export const put = (path, body, options) => request("PUT", path, { ...options, body });
export const patch = (path, body, options) => request("PATCH", path, { ...options, body });
export const remove = (path, options) => request("DELETE", path, options);

/** A path of the API, with each part encoded. */
export function path(...parts) {
  return "/v1/" + parts.map((part) => encodeURIComponent(part).replaceAll("%3A", ":")).join("/");
}

export const spacePath = (space, ...parts) => path("spaces", space, ...parts);
export const subscriptionPath = (space, id, ...parts) => path("spaces", space, "subscriptions", id, ...parts);

/** Follow a stream of server-sent events: call `onEvent(name, data)` for each until it ends. */
export async function follow(target, onEvent, signal) {
  const response = await open("GET", target, { signal });
  if (!response.ok) throw await problemOf(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      if (data.length) onEvent(name, data.join("\n"));
    }
  }
}
