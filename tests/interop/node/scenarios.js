// What node-nats-streaming sees of a server: `node scenarios.js MODULES URL CLUSTER SCENARIO`, the result as JSON on stdout.
"use strict";
const [modules, url, cluster, scenario] = process.argv.slice(2);
const stan = require(`${modules}/node-nats-streaming`);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function connect(id, options = {}) {
  return new Promise((resolve, reject) => {
    const sc = stan.connect(cluster, id, { url, connectTimeout: 5000, ...options });
    sc.once("connect", () => resolve(sc));
    sc.once("error", (error) => reject(error));
  });
}

function close(sc) {
  return new Promise((resolve) => {
    sc.once("close", resolve);
    sc.close();
  });
}

function publish(sc, channel, data) {
  return new Promise((resolve, reject) =>
    sc.publish(channel, data, (error, guid) => (error ? reject(new Error(String(error))) : resolve(guid))));
}

async function publishAll(sc, channel, texts) {
  for (const text of texts) await publish(sc, channel, text);
}

// Subscribes; resolves when the server has answered. `until(n)` waits for n messages.
function subscribe(sc, channel, options = {}, queue = null) {
  return new Promise((resolve, reject) => {
    const wanted = sc.subscriptionOptions();
    if (options.first) wanted.setDeliverAllAvailable();
    if (options.last) wanted.setStartWithLastReceived();
    if (options.sequence) wanted.setStartAtSequence(options.sequence);
    if (options.delta) wanted.setStartAtTimeDelta(options.delta);
    if (options.durable) wanted.setDurableName(options.durable);
    if (options.manual) wanted.setManualAckMode(true);
    if (options.ackWait) wanted.setAckWait(options.ackWait);
    if (options.maxInFlight) wanted.setMaxInFlight(options.maxInFlight);
    const sub = queue ? sc.subscribe(channel, queue, wanted) : sc.subscribe(channel, wanted);
    const seen = [];
    sub.on("message", (message) => {
      seen.push(message);
      if (options.onMessage) options.onMessage(message);
    });
    const until = async (count, timeout = 15000) => {
      const deadline = Date.now() + timeout;
      while (seen.length < count) {
        if (Date.now() > deadline) throw new Error(`${seen.length} of ${count} messages came`);
        await sleep(5);
      }
    };
    sub.once("error", (error) => reject(new Error(String(error))));
    sub.once("ready", () =>
      resolve({
        sub, seen, until,
        sequences: () => seen.map((m) => m.getSequence()),
        texts: () => seen.map((m) => m.getData()),
        end: (how) => new Promise((done) => {
          sub.once(how === "close" ? "closed" : "unsubscribed", done);
          sub[how]();
        }),
      }));
  });
}

const scenarios = {
  async basic() {
    const sc = await connect("node-basic");
    await publishAll(sc, "basic", ["one", "two", "three"]);
    const all = await subscribe(sc, "basic", { first: true });
    await all.until(3);
    await publish(sc, "basic", "four");
    await all.until(4);
    await all.end("unsubscribe");
    await close(sc);
    return { sequences: all.sequences(), texts: all.texts() };
  },

  async publish_async() {
    const sc = await connect("node-async");
    const acks = await Promise.all(Array.from({ length: 500 }, (_, n) => publish(sc, "async-node", String(n))));
    const all = await subscribe(sc, "async-node", { first: true });
    await all.until(500);
    await close(sc);
    return {
      errors: [], guids: new Set(acks).size,
      in_order: JSON.stringify(all.texts()) === JSON.stringify(Array.from({ length: 500 }, (_, n) => String(n))),
    };
  },

  async starts() {
    const sc = await connect("node-starts");
    await publishAll(sc, "starts", ["1", "2", "3", "4", "5"]);
    const result = {};
    for (const [name, options, count] of [
      ["first", { first: true }, 5], ["last", { last: true }, 1], ["sequence", { sequence: 3 }, 3], ["time", { delta: 3600000 }, 5],
    ]) {
      const some = await subscribe(sc, "starts", options);
      await some.until(count);
      result[name] = some.sequences();
      await some.end("unsubscribe");
    }
    const fresh = await subscribe(sc, "starts");
    await publish(sc, "starts", "6");
    await fresh.until(1);
    result.new = fresh.sequences();
    await close(sc);
    return result;
  },

  async redelivery() {
    const sc = await connect("node-redelivery");
    await publishAll(sc, "redelivery", ["a", "b", "c"]);
    const some = await subscribe(sc, "redelivery", { first: true, manual: true, ackWait: 1000, maxInFlight: 2 });
    await some.until(4);
    const first = some.seen.slice(0, 4).map((m) => [m.getSequence(), m.isRedelivered()]);
    some.seen[0].ack();
    await some.until(5);
    const after = some.sequences()[4];
    await close(sc);
    return { first, after };
  },

  async durable() {
    const result = {};
    let sc = await connect("node-durable");
    await publishAll(sc, "durable", ["a", "b"]);
    const one = await subscribe(sc, "durable", { first: true, durable: "d" });
    await one.until(2);
    await sleep(100);
    await one.end("close");
    await publishAll(sc, "durable", ["c", "d"]);
    result.before = one.sequences();
    await close(sc);
    sc = await connect("node-durable");
    const two = await subscribe(sc, "durable", { first: true, durable: "d" });
    await two.until(2);
    result.resumed = two.sequences();
    await sleep(100);
    await two.end("unsubscribe");
    const three = await subscribe(sc, "durable", { first: true, durable: "d" });
    await three.until(4);
    result.anew = three.sequences();
    await close(sc);
    return result;
  },

  async queue() {
    const [one, two] = [await connect("node-queue-1"), await connect("node-queue-2")];
    const left = await subscribe(one, "queue", {}, "workers");
    const right = await subscribe(two, "queue", {}, "workers");
    await publishAll(one, "queue", Array.from({ length: 20 }, (_, n) => String(n)));
    const deadline = Date.now() + 10000;
    while (left.seen.length + right.seen.length < 20 && Date.now() < deadline) await sleep(5);
    await close(one);
    await close(two);
    return { left: left.sequences(), right: right.sequences() };
  },

  async durable_queue() {
    const one = await connect("node-dq-1");
    await publishAll(one, "dq", ["a", "b", "c"]);
    const first = await subscribe(one, "dq", { first: true, durable: "d" }, "workers");
    await first.until(3);
    await sleep(100);
    await close(one);
    const two = await connect("node-dq-2");
    await publishAll(two, "dq", ["d"]);
    const second = await subscribe(two, "dq", { first: true, durable: "d" }, "workers");
    await second.until(1);
    await close(two);
    return { first: first.sequences(), second: second.sequences() };
  },

  async duplicate() {
    const sc = await connect("node-twin");
    let error = null;
    try {
      await connect("node-twin");
    } catch (problem) {
      error = String(problem.message || problem);
    }
    await close(sc);
    return { error };
  },

  async refused() {
    const sc = await connect("node-refused");
    const result = {};
    try { await publish(sc, "foo/bar", "x"); } catch (problem) { result.publish = problem.message.replace(/^Error: /, ""); }
    try { await subscribe(sc, "a.*"); } catch (problem) { result.subscribe = problem.message.replace(/^Error: /, ""); }
    try { await connect("not allowed"); } catch (problem) { result.connect = String(problem.message || problem); }
    await close(sc);
    return result;
  },

  async large() {
    const sc = await connect("node-large");
    const data = Buffer.alloc(900000, "x");
    await publish(sc, "large", data);
    const all = await subscribe(sc, "large", { first: true });
    await all.until(1);
    await close(sc);
    return { size: all.seen[0].getRawData().length };
  },

  // Says when it is connected, and goes on over a restart of the server with a file store.
  async restart() {
    const sc = await connect("node-restart", { reconnectTimeWait: 100, maxReconnectAttempts: 200 });
    const all = await subscribe(sc, "restart", { first: true, manual: true, onMessage: (m) => m.ack() });
    await publish(sc, "restart", "before");
    await all.until(1);
    console.log("connected");
    await new Promise((resolve) => sc.nc.once("reconnect", resolve));
    await publish(sc, "restart", "after");
    await all.until(2);
    const result = { sequences: all.sequences(), texts: all.texts() };
    await close(sc);
    return result;
  },

  // The same if it is the NATS server that is restarted: the broker may come back later than this client.
  async nats_restart() {
    const options = { reconnectTimeWait: 100, maxReconnectAttempts: 200, ackTimeout: 1000 };
    const sc = await connect("node-nats-restart", options);
    const all = await subscribe(sc, "nats-restart", { first: true });
    await publish(sc, "nats-restart", "before");
    await all.until(1);
    console.log("connected");
    await new Promise((resolve) => sc.nc.once("reconnect", resolve));
    for (let stored = false; !stored; ) {
      stored = await publish(sc, "nats-restart", "after").then(() => true, () => false);
    }
    await all.until(2);
    const result = { sequences: all.sequences(), texts: all.texts() };
    await close(sc);
    return result;
  },

  // Publishes as long as its input is open, whoever serves it meanwhile, and waits for what was acknowledged.
  async takeover() {
    const sc = await connect("node-takeover", { ackTimeout: 1000 });
    const options = { durable: "d", manual: true, ackWait: 1000, onMessage: (message) => message.ack() };
    const all = await subscribe(sc, "takeover", options);
    let ended = false;
    process.stdin.on("end", () => { ended = true; }).resume();
    const acked = [];
    let tries = 0;
    while (!ended) {
      const text = String(++tries);
      if (await publish(sc, "takeover", text).then(() => true, () => false)) acked.push(text);
      if (acked.length === 1 && tries === 1) console.log("connected");
    }
    while (!acked.every((text) => all.texts().includes(text))) await sleep(50);
    const texts = all.texts();
    const first = new Map(all.sequences().map((sequence, at) => [sequence, texts[at]]));
    await close(sc);
    return { acked, first: [...first], tries };
  },

  async lost() {
    const sc = await connect("node-lost", { stanPingInterval: 1000, stanMaxPingOut: 20, reconnectTimeWait: 100, maxReconnectAttempts: 200 });
    console.log("connected");
    const error = await new Promise((resolve) => sc.once("connection_lost", resolve));
    return { error: String(error.message || error) };
  },
};

scenarios[scenario]()
  .then((result) => { console.log(JSON.stringify(result)); process.exit(0); })
  .catch((problem) => { console.error(problem); process.exit(1); });
setTimeout(() => { console.error("took too long"); process.exit(2); }, 60000).unref();
