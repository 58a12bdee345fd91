// Requests to a service: credentials, errors, waiting before a repetition.

/** The base of all errors of this package. */
export class FieldfareError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = this.constructor.name;
  }
}

/** The service refused a request; `problem` is its problem+json document. */
export class ApiError extends FieldfareError {
  constructor(status, problem, retryAfterS, requestId) {
    const place = problem.pointer ?? (problem.index === undefined ? "" : `item ${problem.index}`);
    const hint = problem.hint ? `\nhint: ${problem.hint}` : "";
    const title = problem.title ?? `HTTP status ${status}`;
    const found = status >= 500 && requestId ? ` (request ${requestId})` : "";
    super(`${title}${place && ` (at ${place})`}: ${problem.detail ?? ""}${found}${hint}`);
    this.status = status;
    this.kind = String(problem.type ?? "").replace("urn:fieldfare:problem:", "");
    this.problem = problem;
    this.retryAfterS = retryAfterS;
    this.requestId = requestId;
  }
}

/** No answer came: the network or the service is down, or the connection broke. */
export class ConnectionFailed extends FieldfareError {}

const TEMPORARY = new Set([408, 429, 500, 502, 503, 504]);
const PAUSE_MIN_MS = 100;
const PAUSE_MAX_MS = 15_000;
const TIMER_MAX_MS = 2 ** 31 - 1; // A timer of more fires at once.

/** Whether the same request may succeed later. */
export function isTemporary(error) {
  return error instanceof ConnectionFailed || (error instanceof ApiError && TEMPORARY.has(error.status));
}

/** The pause before attempt `attempt` + 1, in ms: what the service asks for, and a random time, which doubles. */
export function pauseMs(attempt, error) {
  const asked = error instanceof ApiError ? (error.retryAfterS ?? 0) : 0;
  const most = Math.min(PAUSE_MAX_MS, PAUSE_MIN_MS * 2 ** Math.min(attempt, 16));
  return 1000 * asked + most / 2 + (Math.random() * most) / 2;
}

/** Wait, or until a signal is aborted. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const timer = setTimeout(done, Math.min(ms, TIMER_MAX_MS));
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    }
    signal?.addEventListener("abort", done);
  });
}

/** A service's address, with a key for it. */
export class Connection {
  constructor({ url, key, fetch: ownFetch, timeoutS = 30 }) {
    this.url = String(url).replace(/\/+$/, "");
    if (!/^https?:\/\/[^/]/i.test(this.url)) throw new TypeError(`url: ${url} is not an http or https address`);
    this.key = key;
    this.timeoutS = timeoutS;
    this.fetch = ownFetch ?? ((...given) => globalThis.fetch(...given));
  }

  /** Send a request and return the response, whose status is below 400; throw ApiError or ConnectionFailed. */
  async open(method, path, { body, headers = {}, signal } = {}) {
    const key = typeof this.key === "function" ? await this.key() : this.key;
    const all = { ...headers };
    if (key) all.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await this.fetch(this.url + path, { method, body, headers: all, signal, redirect: "error" });
      if (response.status < 400) return response;
      throw await readError(response);
    } catch (error) {
      if (error instanceof ApiError) throw error;
      throw new ConnectionFailed(`${method} ${this.url}${path}: no answer`, { cause: error });
    }
  }

  /** Send a request, and return the JSON document that answers it; undefined for an empty answer. */
  async call(method, path, { json, body, headers = {}, waitS = 0 } = {}) {
    const timeout = AbortSignal.timeout(1000 * (this.timeoutS + waitS));
    const own = json === undefined ? { body, headers } : asJson(json, headers);
    const response = await this.open(method, path, { ...own, signal: timeout });
    try {
      const text = await response.text();
      return text ? JSON.parse(text) : undefined;
    } catch (error) {
      throw new ConnectionFailed(`${method} ${this.url}${path}: the answer broke off`, { cause: error });
    }
  }
}

function asJson(value, headers) {
  return { body: JSON.stringify(value), headers: { "Content-Type": "application/json", ...headers } };
}

async function readError(response) {
  const text = await response.text();
  let problem;
  try {
    problem = JSON.parse(text);
  } catch {
    problem = { detail: text.slice(0, 200) };
  }
  if (problem === null || typeof problem !== "object") problem = { detail: text.slice(0, 200) };
  const after = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  const id = response.headers.get("X-Request-Id") ?? "";
  return new ApiError(response.status, problem, after >= 0 ? after : undefined, id);
}

/** The members of an object that have a value. */
export function defined(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));
}

/** A name as a segment of a path. "." and ".." would be resolved: what is meant for a subscription, done to its space. */
export function segment(name) {
  if (name === "." || name === "..") throw new TypeError(`${name} is no name or id`);
  return encodeURIComponent(name);
}

/** A random id; pages without TLS have no `crypto.randomUUID`. */
export function randomId() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
