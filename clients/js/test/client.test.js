// Against a real gateway at FIELDFARE_URL, whose pipeline matches continuously.

import assert from "node:assert/strict";
import http from "node:http";
import test from "node:test";

import { ApiError, Client, ConnectionFailed, EventRefused, QueueFull, SubscriptionDeleted } from "../fieldfare.js";
import { pause, pauseMs } from "../requests.js";

const url = process.env.FIELDFARE_URL;
let spaces = 0;

/** A client for a space of its own. */
async function ownSpace(settings = {}) {
  const space = `js-${process.pid}-${(spaces += 1)}`;
  const made = await fetch(`${url}/v1/spaces`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ name: space }),
  });
  assert.equal(made.status, 201);
  return new Client({ url, space, ...settings });
}

const quote = (n, more = {}) => ({ source: "/quotes", type: "quote", id: String(n), data: { n, ...more } });

async function take(client, id, count) {
  const found = [];
  while (found.length < count) {
    const messages = await client.pull(id, { max: 1000, waitS: 5 });
    await Promise.all(messages.map((message) => message.ack()));
    found.push(...messages);
  }
  return found;
}

/** A proxy that hands each request to `decide`, which returns "pass", "lose the answer", or a status to answer with. */
async function proxy(decide) {
  const requests = [];
  const server = http.createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    requests.push({ path: request.url, headers: request.headers, body: Buffer.concat(pieces).toString() });
    const decision = decide(requests.at(-1), requests.length);
    if (typeof decision === "number") {
      response.writeHead(decision, { "Retry-After": "0" }).end('{"detail": "later"}');
      return;
    }
    const target = new URL(url);
    const onward = http.request(
      { host: target.hostname, port: target.port, method: request.method, path: request.url, headers: request.headers },
      (answer) => {
        if (decision === "lose the answer") {
          answer.resume().on("end", () => response.destroy());
          return;
        }
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
        response.on("close", () => onward.destroy());
      },
    );
    onward.on("error", () => response.destroy());
    onward.end(Buffer.concat(pieces));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve)));
  return { url: `http://127.0.0.1:${server.address().port}`, requests, close, server };
}

test("events are published in order, in few requests, and pulled by a filter", async () => {
  const client = await ownSpace();
  await client.putSubscription("even", "data.n % 2 = 0");
  const positions = await Promise.all(Array.from({ length: 500 }, (_, n) => client.publish(quote(n))));
  assert.equal(new Set(positions).size, 500);
  assert.ok(new Set(positions.map((each) => each.split("-")[1])).size <= 3, "they share requests");
  const found = await take(client, "even", 250);
  assert.deepEqual(found.map(({ event }) => event.data.n), Array.from({ length: 250 }, (_, n) => 2 * n));
  assert.equal(found[1].position, positions[2]);
  assert.equal(found[0].attempt, 1);
  await client.close();
});

test("what is missing in an event is set, and a value that is no event is refused", async () => {
  const client = await ownSpace();
  await client.putSubscription("all", "type = 't'");
  await client.publish({ source: "/a", type: "t" });
  const [{ event }] = await take(client, "all", 1);
  assert.equal(event.specversion, "1.0");
  assert.match(event.id, /^[0-9a-f-]{36}$/);
  for (const bad of [null, 7, "text", []]) await assert.rejects(client.publish(bad), TypeError);
  await assert.rejects(client.publish({ source: "/a", type: "t", data: 1n }), TypeError);
});

test("a lost answer and a busy service double and lose nothing", async () => {
  const direct = await ownSpace();
  await direct.putSubscription("all", "data.n >= 0");
  const decisions = ["lose the answer", 503, 429, "lose the answer", "pass"];
  const between = await proxy(() => decisions.shift() ?? "pass");
  const client = new Client({ url: between.url, space: direct.space });
  await Promise.all([1, 2, 3].map((n) => client.publish(quote(n))));
  await client.publish(quote(4));
  await client.close();
  const sequences = between.requests.map(({ headers }) => headers["fieldfare-sequence"]);
  assert.deepEqual(sequences, ["0", "0", "0", "0", "0", "1"]);
  const found = await take(direct, "all", 4);
  assert.deepEqual(found.map(({ event }) => event.data.n), [1, 2, 3, 4]);
  assert.deepEqual(await direct.pull("all"), []);
  await between.close();
});

test("an event that is refused rejects its own promise only", async () => {
  const client = await ownSpace();
  const results = await Promise.allSettled([
    client.publish(quote(1)),
    client.publish({ source: "/a" }),
    client.publish(quote(3)),
  ]);
  assert.deepEqual(results.map(({ status }) => status), ["fulfilled", "rejected", "fulfilled"]);
  assert.ok(results[1].reason instanceof EventRefused);
  await assert.rejects(client.publish({ source: "/a" }), { name: "EventRefused", message: /type is missing/ });
  const all = await Promise.allSettled([client.publish({ source: "/a" }), client.publish({ type: "t" })]);
  assert.ok(all.every(({ reason }) => reason instanceof EventRefused));
  assert.match(all[1].reason.message, /source is missing/);
  assert.match(results[1].reason.message, /type/);
});

test("a request that is too large is halved", async () => {
  const direct = await ownSpace();
  await direct.putSubscription("all", "data.n >= 0");
  const between = await proxy(({ body }) => (body.length > 1000 ? 413 : "pass"));
  const client = new Client({ url: between.url, space: direct.space });
  await Promise.all(Array.from({ length: 40 }, (_, n) => client.publish(quote(n))));
  const found = await take(direct, "all", 40);
  assert.deepEqual(found.map(({ event }) => event.data.n), Array.from({ length: 40 }, (_, n) => n));
  await between.close();
});

test("a queue that is full refuses, and a service that is away is an error after a while", async () => {
  const gone = new Client({ url: "http://127.0.0.1:9" });
  const publisher = gone.publisher({ queueMax: 2, retryForS: 0.05 });
  const first = [publisher.publish(quote(1)), publisher.publish(quote(2))];
  await assert.rejects(publisher.publish(quote(3)), QueueFull);
  for (const each of first) await assert.rejects(each, { name: "NotAcknowledged" });
  await assert.rejects(gone.getSubscription("a"), ConnectionFailed);
  await publisher.close();
  await assert.rejects(publisher.publish(quote(4)), /closed/);
});

test("a subscription is followed, acked in batches, and ended by break", async () => {
  const client = await ownSpace();
  await client.putSubscription("all", "data.n >= 0");
  const between = await proxy(() => "pass");
  const reader = new Client({ url: between.url, space: client.space });
  await Promise.all(Array.from({ length: 300 }, (_, n) => client.publish(quote(n, { text: "é😀\u2028" }))));
  const found = [];
  for await (const message of reader.subscribe("all")) {
    found.push(message.event.data.n);
    assert.equal(message.event.data.text, "é😀\u2028");
    message.ack();
    if (found.length === 300) break;
  }
  assert.deepEqual(found, Array.from({ length: 300 }, (_, n) => n));
  const acks = between.requests.filter(({ path }) => path.endsWith("/ack"));
  assert.ok(acks.length >= 1 && acks.length < 100, `${acks.length} requests with acks`);
  assert.deepEqual(await client.pull("all"), [], "all are settled when the loop has ended");
  await between.close();
});

test("a broken stream is opened again, and nothing that was acked comes twice", async () => {
  const client = await ownSpace();
  await client.putSubscription("all", "data.n >= 0");
  const between = await proxy(() => "pass");
  const reader = new Client({ url: between.url, space: client.space });
  const acked = new Set();
  await client.publish(quote(0));
  for await (const message of reader.subscribe("all")) {
    const { n } = message.event.data;
    assert.ok(!acked.has(n), `${n} came again`);
    await message.ack();
    acked.add(n);
    if (n === 5) break;
    between.server.closeAllConnections();
    await client.publish(quote(n + 1));
  }
  assert.equal(acked.size, 6);
  assert.ok(between.requests.filter(({ path }) => path.includes("/stream")).length > 1);
  await between.close();
});

test("nack, extend and terminate do what they say", async () => {
  const client = await ownSpace();
  await client.createSubscription("data.n >= 0", { id: "all", delivery: { max_attempts: 5 } });
  await client.publish(quote(1));
  const attempts = [];
  for await (const message of client.subscribe("all", { ackDeadlineS: 30 })) {
    attempts.push(message.attempt);
    if (message.attempt < 3) await message.nack(0);
    else {
      await message.extend(60);
      await message.terminate("seen enough");
      break;
    }
  }
  assert.deepEqual(attempts, [1, 2, 3]);
  assert.deepEqual(await client.pull("all"), []);
});

test("subscriptions are listed, configured, counted and deleted; a stream of a deleted one ends", async () => {
  const client = await ownSpace();
  for (const id of ["a", "b", "c"]) await client.putSubscription(id, "data.n = 1");
  const ids = [];
  for await (const each of client.listSubscriptions()) ids.push(each.id);
  assert.deepEqual(ids, ["a", "b", "c"]);
  assert.equal((await client.configureSubscription("a", { max_attempts: 3 })).delivery.max_attempts, 3);
  assert.equal(typeof (await client.backlog("a")), "object");
  assert.match(await client.ticket("a", 60), /^ft_/);
  const following = (async () => {
    for await (const message of client.subscribe("b")) message.ack();
  })();
  const ended = assert.rejects(following, SubscriptionDeleted);
  await client.publish(quote(1));
  while ((await client.backlog("b")).readers === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  await client.deleteSubscription("b");
  await ended;
  await assert.rejects(client.getSubscription("b"), (error) => error instanceof ApiError && error.status === 404);
});

test("errors name their place, their kind and the request", async () => {
  const client = await ownSpace();
  await assert.rejects(client.putSubscription("a", "data.n =>"), (error) => {
    assert.ok(error instanceof ApiError);
    assert.deepEqual([error.status, error.kind], [400, "bad-filter"]);
    assert.match(error.message, /hint: /);
    assert.ok(error.requestId);
    return true;
  });
  assert.throws(() => new Client({ url: "localhost:7737" }), TypeError);
});

test("a subscription that moves is followed, and acks for its old site never reach the new one", async () => {
  const client = await ownSpace();
  await client.putSubscription("all", "data.n >= 0");
  const old = await proxy(() => "pass");
  const answers = (request, response) => {
    const body = JSON.stringify({ type: "urn:fieldfare:problem:moved", status: 410, detail: "it moved", url, token: "" });
    request.resume().on("end", () => response.writeHead(410, { "Content-Type": "application/problem+json" }).end(body));
  };
  await client.publish(quote(1));
  const reader = new Client({ url: old.url, space: client.space });
  const found = [];
  for await (const message of reader.subscribe("all")) {
    found.push([message.event.data.n, message]);
    if (found.length === 1) {
      // From here on the old site says that the subscription is elsewhere.
      old.server.removeAllListeners("request").on("request", answers);
      old.server.closeAllConnections();
      await found[0][1].ack();
      await client.publish(quote(2));
      continue;
    }
    if (message.event.data.n === 2) {
      await message.ack();
      break;
    }
  }
  assert.deepEqual(found.map(([n]) => n), [1, 1, 2], "the first is not acked at the new site");
  await old.close();
});

test("subscriptions are found by owner and labels", async () => {
  const client = await ownSpace();
  const made = await client.createSubscription("true", { id: "a", owner: "ann", labels: { team: "pay", env: "prod" } });
  assert.deepEqual([made.owner, made.labels], ["ann", { env: "prod", team: "pay" }]);
  await client.putSubscription("b", "true", { owner: "ann", labels: { env: "test" } });
  await client.putSubscription("c", "true");
  const ids = async (criteria) => {
    const found = [];
    for await (const { id } of client.listSubscriptions(criteria)) found.push(id);
    return found;
  };
  assert.deepEqual(await ids(), ["a", "b", "c"]);
  assert.deepEqual(await ids({ owner: "ann", labels: { env: null } }), ["a", "b"]);
  assert.deepEqual(await ids({ labels: { env: "prod", team: "pay" } }), ["a"]);
  assert.deepEqual(await ids({ search: "ENV=TEST" }), ["b"]);
  const changed = await client.configureSubscription("a", undefined, { owner: null, labels: { team: null } });
  assert.deepEqual([changed.owner, changed.labels, changed.revision], [undefined, { env: "prod" }, made.revision]);
  await client.configureSubscription("a", { max_attempts: 2 });
  assert.deepEqual((await client.getSubscription("a")).labels, { env: "prod" });
  await client.close();
});

test("a name that a path would resolve is refused: what is meant for a subscription is not done to its space", async () => {
  const client = await ownSpace();
  for (const name of [".", ".."]) {
    await assert.rejects(async () => client.deleteSubscription(name), TypeError);
    await assert.rejects(async () => client.backlog(name), TypeError);
    assert.throws(() => new Client({ url, space: name }).publisher(), TypeError);
  }
});

test("a service that asks for no pause, or one for ever, is not asked again at once", async (context) => {
  assert.ok(pauseMs(3, new ApiError(503, {}, 0)) > 300);
  assert.ok(pauseMs(0, new ApiError(503, {}, 7)) > 7000);
  context.mock.timers.enable({ apis: ["setTimeout"] });
  let isOver = false;
  pause(Infinity).then(() => (isOver = true));
  context.mock.timers.tick(1_000_000_000);
  await undefined;
  assert.ok(!isOver);
});

test("a stream whose request is never answered is asked for again", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  let asked = 0;
  const never = (_, { signal }) => {
    asked += 1;
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  };
  const subscriber = new Client({ url: "http://127.0.0.1:9", fetch: never }).subscribe("a");
  const read = subscriber[Symbol.asyncIterator]().next();
  for (let steps = 0; asked < 2 && steps < 100; steps += 1) {
    await new Promise(setImmediate);
    context.mock.timers.tick(1000);
  }
  assert.equal(asked, 2);
  await subscriber.close();
  assert.deepEqual(await read, { done: true, value: undefined });
});
