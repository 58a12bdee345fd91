// Client for fieldfare: publish CloudEvents, subscribe with filters over any of their fields.

import { Publisher } from "./publisher.js";
import { Connection, defined, segment } from "./requests.js";
import { Message, Settling, Subscriber } from "./subscriber.js";

export { EventRefused, NotAcknowledged, Publisher, QueueFull } from "./publisher.js";
export { ApiError, ConnectionFailed, FieldfareError } from "./requests.js";
export { Message, Subscriber, SubscriptionDeleted } from "./subscriber.js";

/** A connection to a service, for one space. */
export class Client {
  #connection;
  #publisher = null;

  constructor({ url = "http://127.0.0.1:7737", space = "default", key, timeoutS, fetch } = {}) {
    this.#connection = new Connection({ url, key, timeoutS, fetch });
    this.space = space;
  }

  /** Publish an event, in a batch with others; the promise becomes its position once it is on disk. */
  publish(event) {
    this.#publisher ??= this.publisher();
    return this.#publisher.publish(event);
  }

  /** Make a publisher with settings of its own. */
  publisher(settings) {
    return new Publisher(this.#connection, this.space, settings);
  }

  /** Wait until all events of `publish` are answered. */
  async close() {
    await this.#publisher?.close();
  }

  /** Create a subscription; one with this id and another filter is an error (409). */
  createSubscription(filter, { id, dialect, delivery, start, owner, labels } = {}) {
    const asked = defined({ id, filter, dialect, delivery, start, owner, labels });
    return this.#call("POST", this.#subscriptions(), asked);
  }

  /** Create or replace a subscription. */
  putSubscription(id, filter, { dialect, delivery, owner, labels } = {}) {
    return this.#call("PUT", this.#subscription(id), defined({ filter, dialect, delivery, owner, labels }));
  }

  getSubscription(id) {
    return this.#call("GET", this.#subscription(id));
  }

  /** Yield the subscriptions of the space, by id: all, or those with a text, an owner, or all of some labels. */
  async *listSubscriptions({ search, owner, labels = {} } = {}) {
    const query = new URLSearchParams(defined({ limit: "1000", search, owner }));
    for (const [key, value] of Object.entries(labels)) query.append("label", value === null ? key : `${key}=${value}`);
    let after = null;
    do {
      if (after !== null) query.set("after", after);
      const page = await this.#call("GET", `${this.#subscriptions()}?${query}`);
      yield* page.subscriptions;
      after = page.next;
    } while (after !== null);
  }

  /** Change delivery settings; null restores a default. Change owner and labels; null removes one. */
  configureSubscription(id, delivery, { owner, labels } = {}) {
    return this.#call("PATCH", this.#subscription(id), defined({ delivery, owner, labels }));
  }

  deleteSubscription(id) {
    return this.#call("DELETE", this.#subscription(id));
  }

  /** Count a subscription's pending messages. */
  backlog(id) {
    return this.#call("GET", `${this.#subscription(id)}/backlog`);
  }

  /** Make a ticket with which a browser's EventSource or WebSocket opens the subscription. */
  async ticket(id, validS) {
    return (await this.#call("POST", `${this.#subscription(id)}/ticket`, defined({ valid_s: validS }))).ticket;
  }

  /** Report all errors and warnings of a filter. */
  checkFilter(filter, { dialect } = {}) {
    return this.#call("POST", "/v1/filters:check", defined({ filter, dialect }));
  }

  /** Take up to `max` messages, and wait up to `waitS` seconds for the first. */
  async pull(id, { max = 100, waitS = 0, ackDeadlineS } = {}) {
    const path = this.#subscription(id);
    const asked = defined({ max, wait_s: waitS, ack_deadline_s: ackDeadlineS });
    const answer = await this.#connection.call("POST", `${path}/pull`, { json: asked, waitS });
    const settling = new Settling(this.#connection, path);
    return answer.messages.map((message) => new Message(settling, message));
  }

  /** Follow a subscription: `for await (const message of client.subscribe(id)) { ...; message.ack(); }` */
  subscribe(id, settings) {
    return new Subscriber(this.#connection, this.#subscription(id), settings);
  }

  #call(method, path, json) {
    return this.#connection.call(method, path, { json });
  }

  #subscriptions() {
    return `/v1/spaces/${segment(this.space)}/subscriptions`;
  }

  #subscription(id) {
    return `${this.#subscriptions()}/${segment(id)}`;
  }
}
