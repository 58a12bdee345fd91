// Following a subscription: server-sent events, reconnecting; acks in batches.

import { ApiError, Connection, ConnectionFailed, FieldfareError } from "./requests.js";
import { defined, isTemporary, pause, pauseMs } from "./requests.js";

const SILENT_MS = 30_000; // The service sends a comment every ten seconds.
const POSITIONS_MAX = 10_000;
const ACK_AFTER_MS = 20;
const REPEATS_MAX = 5;

/** The subscription was deleted. */
export class SubscriptionDeleted extends FieldfareError {}

/** A message of a subscription: `event`, `position`, `attempt`. */
export class Message {
  #settling;

  constructor(settling, { event, position, attempt }) {
    this.#settling = settling;
    this.event = event;
    this.position = position;
    this.attempt = attempt;
  }

  /**
   * Settle the message for good; the promise is fulfilled once that is on the service's disk. It need not be
   * awaited: a message whose ack fails is delivered again.
   */
  ack() {
    return this.#settling.ack(this.position);
  }

  /** Have it delivered again, after `delayS` seconds or as the subscription's settings say. */
  nack(delayS) {
    return this.#settling.say("nack", this.position, { delay_s: delayS });
  }

  /** Restart its deadline. */
  extend(ackDeadlineS) {
    return this.#settling.say("extend", this.position, { ack_deadline_s: ackDeadlineS });
  }

  /** Give it up: it becomes a dead letter. */
  terminate(reason) {
    return this.#settling.say("terminate", this.position, { reason });
  }
}

/** Acks and the like for the messages of a subscription at one site, whose positions mean nothing elsewhere. */
export class Settling {
  #connection;
  #path;
  #acks = [];
  #sending = null;

  constructor(connection, path) {
    this.#connection = connection;
    this.#path = path;
  }

  /** Ack a position together with others. */
  ack(position) {
    const acked = new Promise((resolve, reject) => {
      this.#acks.push({ position, resolve, reject });
      this.#sending ??= this.#send();
    });
    acked.catch(() => {}); // It need not be awaited.
    return acked;
  }

  /** Say something about one position. */
  async say(verdict, position, more) {
    await this.#post(verdict, { positions: [position], ...defined(more) });
  }

  /** Wait until all acks are answered. */
  async flush() {
    while (this.#sending !== null) await this.#sending;
  }

  async #send() {
    await pause(ACK_AFTER_MS);
    try {
      while (this.#acks.length) {
        const batch = this.#acks.splice(0, POSITIONS_MAX);
        try {
          await this.#post("ack", { positions: batch.map(({ position }) => position) });
          for (const { resolve } of batch) resolve();
        } catch (error) {
          for (const { reject } of batch) reject(error);
        }
      }
    } finally {
      this.#sending = null;
    }
  }

  async #post(verdict, body) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        await this.#connection.call("POST", `${this.#path}/${verdict}`, { json: body });
        return;
      } catch (error) {
        // When a subscription has moved, all its messages here are settled.
        if (error instanceof ApiError && error.kind === "moved") return;
        if (!isTemporary(error) || attempt >= REPEATS_MAX) throw error;
        await pause(pauseMs(attempt, error));
      }
    }
  }
}

/** An async iterable of messages; it reconnects by itself, and follows a subscription that moves to another site. */
export class Subscriber {
  #connection;
  #path;
  #query;
  #settling;
  #abort = new AbortController();

  constructor(connection, path, { window = 1000, ackDeadlineS } = {}) {
    this.#connection = connection;
    this.#path = path;
    this.#settling = new Settling(connection, path);
    this.#query = `window=${window}` + (ackDeadlineS === undefined ? "" : `&ack_deadline_s=${ackDeadlineS}`);
  }

  /** End the iteration, after the acks that were asked for. */
  async close() {
    this.#abort.abort();
    await this.#settling.flush();
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (let failures = 0; !this.#abort.signal.aborted; ) {
        try {
          for await (const message of this.#stream()) {
            failures = 0;
            yield message;
          }
          await pause(pauseMs(failures++), this.#abort.signal);
        } catch (error) {
          if (this.#abort.signal.aborted) return;
          if (await this.#moved(error)) continue;
          if (!isTemporary(error)) throw error;
          await pause(pauseMs(failures++, error), this.#abort.signal);
        }
      }
    } finally {
      await this.close();
    }
  }

  /** Yield the messages of one connection, until it ends. */
  async *#stream() {
    const silence = new AbortController();
    const end = () => silence.abort();
    this.#abort.signal.addEventListener("abort", end);
    try {
      const headers = { Accept: "text/event-stream" };
      const path = `${this.#path}/stream?${this.#query}`;
      const timer = setTimeout(end, SILENT_MS);
      const opened = this.#connection.open("GET", path, { headers, signal: silence.signal });
      const response = await opened.finally(() => clearTimeout(timer));
      for await (const text of texts(response.body, end)) {
        const message = this.#read(text);
        if (message) yield message;
      }
    } catch (error) {
      throw error instanceof FieldfareError ? error : new ConnectionFailed("the stream broke off", { cause: error });
    } finally {
      this.#abort.signal.removeEventListener("abort", end);
      silence.abort();
    }
  }

  #read(text) {
    const fields = {};
    for (const line of text.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (fields.event === "deleted") throw new SubscriptionDeleted("the subscription was deleted");
    if (fields.event === "moved") throw new ApiError(410, { ...JSON.parse(fields.data), type: "moved" });
    if (fields.id === undefined || fields.data === undefined) return null;
    const event = JSON.parse(fields.data);
    return new Message(this.#settling, { event, position: fields.id, attempt: Number(fields.attempt ?? 1) });
  }

  /** Go on at the site to which the subscription has moved; return whether it has. */
  async #moved(error) {
    if (!(error instanceof ApiError && error.kind === "moved" && error.problem.url)) return false;
    await this.#settling.flush();
    const { key, fetch, timeoutS } = this.#connection;
    const { url, token } = error.problem;
    this.#connection = new Connection({ url, key: token ?? key, fetch, timeoutS });
    this.#settling = new Settling(this.#connection, this.#path);
    return true;
  }
}

/** Yield the events of a stream as texts without their empty line; `end` is called when it is silent for too long. */
async function* texts(body, end) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const timer = setTimeout(end, SILENT_MS); // It does not run while a message is being processed.
      const { done, value } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const parts = rest.split("\n\n");
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
