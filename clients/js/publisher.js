// Publishing in batches: each request has a number, so that repeating it after a lost answer doubles nothing.

import { ApiError, FieldfareError, isTemporary, pause, pauseMs, randomId, segment } from "./requests.js";

const encoder = new TextEncoder();

/** The service refused an event; `refusal` says why and where. */
export class EventRefused extends FieldfareError {
  constructor(refusal) {
    super(refusal.detail + (refusal.pointer ? ` (at ${refusal.pointer})` : ""));
    this.refusal = refusal;
  }
}

/** More events wait than the publisher's `queueMax`. */
export class QueueFull extends FieldfareError {}

/** An event was not answered for longer than `retryForS`; it may be stored or not. */
export class NotAcknowledged extends FieldfareError {}

/** Sends events one request after the other, in the order of the calls; a request takes all that wait. */
export class Publisher {
  #connection;
  #path;
  #settings;
  #producer = randomId();
  #sequence = 0;
  #waiting = [];
  #sending = null;
  #isClosed = false;

  constructor(connection, space, settings = {}) {
    this.#connection = connection;
    this.#path = `/v1/spaces/${segment(space)}/events`;
    this.#settings = { maxEvents: 1000, maxBytes: 1 << 20, queueMax: 100_000, retryForS: 120, ...settings };
  }

  /**
   * Publish an event; the promise becomes its position once it is on the service's disk. `specversion` and `id`
   * are set where they are missing.
   */
  publish(event) {
    if (this.#isClosed) return Promise.reject(new FieldfareError("this publisher is closed"));
    if (this.#waiting.length >= this.#settings.queueMax) {
      return Promise.reject(new QueueFull(`${this.#settings.queueMax} events wait: await earlier ones`));
    }
    let line;
    try {
      line = encoder.encode(JSON.stringify(complete(event)));
    } catch (error) {
      return Promise.reject(error);
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ line, resolve, reject });
      this.#sending ??= this.#send();
    });
  }

  /** Wait until every event published so far is answered. */
  async flush() {
    while (this.#sending !== null) await this.#sending;
  }

  /** Wait for all answers, and accept no more events. */
  async close() {
    this.#isClosed = true;
    await this.flush();
  }

  async #send() {
    await undefined; // Events of one turn of the event loop go into one request.
    try {
      while (this.#waiting.length) await this.#sendBatch(this.#take());
    } finally {
      this.#sending = null;
    }
  }

  #take() {
    let bytes = 0;
    let count = 0;
    for (const { line } of this.#waiting) {
      bytes += line.length + 1;
      if (count && (count >= this.#settings.maxEvents || bytes > this.#settings.maxBytes)) break;
      count += 1;
    }
    return this.#waiting.splice(0, count);
  }

  async #sendBatch(batch) {
    const headers = {
      "Content-Type": "application/x-ndjson",
      "Fieldfare-Producer": this.#producer,
      "Fieldfare-Sequence": String(this.#sequence++),
    };
    const body = joined(batch);
    const until = performance.now() + 1000 * this.#settings.retryForS;
    for (let attempt = 0; ; attempt += 1) {
      try {
        settle(batch, await this.#connection.call("POST", this.#path, { body, headers }));
        return;
      } catch (error) {
        if (error instanceof ApiError && error.status === 413 && batch.length > 1) {
          // Nothing of it is stored: the halves are requests of their own.
          const half = batch.length >> 1;
          await this.#sendBatch(batch.slice(0, half));
          await this.#sendBatch(batch.slice(half));
          return;
        }
        if (error instanceof ApiError && error.problem.refused) return refuse(batch, error.problem.refused);
        const waitMs = pauseMs(attempt, error);
        if (!isTemporary(error)) return rejectAll(batch, error);
        if (performance.now() + waitMs > until) {
          const reason = `not acknowledged within ${this.#settings.retryForS} s`;
          return rejectAll(batch, new NotAcknowledged(reason, { cause: error }));
        }
        await pause(waitMs);
      }
    }
  }
}

function complete(event) {
  if (event === null || typeof event !== "object" || Array.isArray(event)) {
    throw new TypeError("an event is an object with source and type");
  }
  return { specversion: "1.0", id: randomId(), ...event };
}

function joined(batch) {
  const body = new Uint8Array(batch.reduce((sum, { line }) => sum + line.length + 1, 0));
  let at = 0;
  for (const { line } of batch) {
    body.set(line, at);
    at += line.length;
    body[at++] = 10;
  }
  return body;
}

function settle(batch, answer) {
  if (answer.accepted === undefined) {
    batch.forEach(({ resolve }, index) => resolve(`${answer.partition}-${answer.offset}-${index}`));
    return;
  }
  for (const { index, position } of answer.accepted) batch[index].resolve(position);
  refuse(batch, answer.refused);
}

function refuse(batch, refused) {
  for (const refusal of refused) batch[refusal.index].reject(new EventRefused(refusal));
}

function rejectAll(batch, error) {
  for (const { reject } of batch) reject(error);
}
