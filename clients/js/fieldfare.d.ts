/** A CloudEvent; `specversion` and `id` are set where they are missing. */
export interface Event {
  source: string;
  type: string;
  specversion?: string;
  id?: string;
  data?: unknown;
  [attribute: string]: unknown;
}

/** A filter text, or a filter of CloudEvents' Subscriptions API or of EventBridge as an object. */
export type Filter = string | object;

export interface DeliverySettings {
  ack_deadline_s?: number | null;
  max_attempts?: number | null;
  retry_delays_s?: number[] | null;
  max_in_flight?: number | null;
  max_in_flight_bytes?: number | null;
  dead_letter?: boolean | null;
  paused?: boolean | null;
  order_by?: string | null;
  push?: object | null;
  max_age_s?: number | null;
  expires_unused_s?: number | null;
}

export interface Subscription {
  id: string;
  space: string;
  filter: string;
  dialect: string;
  revision: number;
  valid_from: string;
  /** The responsible team or person. */
  owner?: string;
  labels?: Record<string, string>;
  delivery?: DeliverySettings;
  warnings?: { detail: string; hint?: string }[];
}

/** An owner and labels; those that are missing stay as they are. */
export interface Tags {
  owner?: string | null;
  /** Of an existing subscription, `putSubscription` replaces all labels; `configureSubscription` changes those named. */
  labels?: Record<string, string | null> | null;
}

/** The subscriptions of a list: those that meet all of this. */
export interface Criteria {
  /** A text in id, filter, owner or labels. */
  search?: string;
  owner?: string;
  /** Labels by key; null stands for any value. */
  labels?: Record<string, string | null>;
}

export interface ClientSettings {
  /** Default: http://127.0.0.1:7737. */
  url?: string | URL;
  /** Default: "default". */
  space?: string;
  /** An API key or a token, or a function that returns the one to use for a request. */
  key?: string | (() => string | Promise<string>);
  /** Seconds to wait for an answer; default: 30. */
  timeoutS?: number;
  fetch?: typeof fetch;
}

export interface PublisherSettings {
  /** Maximum events of a request; default: 1,000. */
  maxEvents?: number;
  /** Bytes after which a request ends; default: 1 MiB. */
  maxBytes?: number;
  /** Maximum events that wait in memory; default: 100,000. */
  queueMax?: number;
  /** Seconds for which a request is repeated; default: 120. */
  retryForS?: number;
}

export interface SubscriberSettings {
  /** Maximum messages that are not settled; default: 1,000. */
  window?: number;
  /** Seconds until an unsettled message is delivered again; default: the subscription's. */
  ackDeadlineS?: number;
}

export class Client {
  constructor(settings?: ClientSettings);
  space: string;
  publish(event: Event): Promise<string>;
  publisher(settings?: PublisherSettings): Publisher;
  close(): Promise<void>;
  createSubscription(
    filter: Filter,
    settings?: { id?: string; dialect?: string; delivery?: DeliverySettings; start?: string } & Tags,
  ): Promise<Subscription>;
  putSubscription(
    id: string,
    filter: Filter,
    settings?: { dialect?: string; delivery?: DeliverySettings } & Tags,
  ): Promise<Subscription>;
  getSubscription(id: string): Promise<Subscription>;
  listSubscriptions(criteria?: Criteria): AsyncGenerator<Subscription>;
  configureSubscription(id: string, delivery?: DeliverySettings, tags?: Tags): Promise<Subscription>;
  deleteSubscription(id: string): Promise<void>;
  backlog(id: string): Promise<Record<string, unknown>>;
  ticket(id: string, validS?: number): Promise<string>;
  checkFilter(filter: Filter, settings?: { dialect?: string }): Promise<Record<string, unknown>>;
  pull(id: string, settings?: { max?: number; waitS?: number; ackDeadlineS?: number }): Promise<Message[]>;
  subscribe(id: string, settings?: SubscriberSettings): Subscriber;
}

export class Publisher {
  publish(event: Event): Promise<string>;
  flush(): Promise<void>;
  close(): Promise<void>;
}

export class Subscriber implements AsyncIterable<Message> {
  [Symbol.asyncIterator](): AsyncGenerator<Message>;
  close(): Promise<void>;
}

export class Message {
  readonly event: Event & { specversion: string; id: string };
  readonly position: string;
  readonly attempt: number;
  ack(): Promise<void>;
  nack(delayS?: number): Promise<void>;
  extend(ackDeadlineS?: number): Promise<void>;
  terminate(reason?: string): Promise<void>;
}

export class FieldfareError extends Error {}
export class ConnectionFailed extends FieldfareError {}
export class SubscriptionDeleted extends FieldfareError {}
export class QueueFull extends FieldfareError {}
export class NotAcknowledged extends FieldfareError {}

export class EventRefused extends FieldfareError {
  readonly refusal: { index: number; detail: string; pointer?: string; hint?: string };
}

export class ApiError extends FieldfareError {
  readonly status: number;
  /** The kind of problem, as in the table of docs/http-api.md. */
  readonly kind: string;
  readonly problem: Record<string, unknown>;
  readonly retryAfterS?: number;
  readonly requestId: string;
}
