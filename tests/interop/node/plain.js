// Plain NATS with node's client 1.4: `node plain.js MODULES URL SCENARIO [OPTIONS as JSON]`, the result as JSON on stdout.
"use strict";
const [modules, url, scenario, more] = process.argv.slice(2);
const nats = require(`${modules}/nats`);
const nkeys = require(`${modules}/ts-nkeys`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const given = JSON.parse(more || "{}");

function connect(options = {}) {
  return new Promise((resolve, reject) => {
    const nc = nats.connect({ url, reconnectTimeWait: 50, maxReconnectAttempts: 400, ...options });
    nc.once("connect", () => resolve(nc));
    nc.once("error", reject);
  });
}

const flush = (nc) => new Promise((resolve) => nc.flush(resolve));
const request = (nc, subject, data) => new Promise((resolve) => nc.request(subject, data, { max: 1, timeout: 5000 }, resolve));

async function until(condition) {
  const deadline = Date.now() + 15000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error("it did not come to that");
    await sleep(5);
  }
}

const scenarios = {
  async work() {
    const one = await connect(), two = await connect();
    const seen = { star: [], rest: [], left: 0, right: 0, few: 0, all: 0 };
    one.subscribe("js.*.x", (text, reply, subject) => seen.star.push([subject, text]));
    one.subscribe("js.>", (text) => seen.rest.push(text));
    one.subscribe("js-service", (text, reply) => one.publish(reply, `re: ${text}`));
    one.subscribe("js-work", { queue: "g" }, () => seen.left++);
    one.subscribe("js-work", { queue: "g" }, () => seen.right++);
    const few = one.subscribe("js-few", () => seen.few++);
    one.unsubscribe(few, 3);
    const drained = one.subscribe("js-all", () => seen.all++);
    await flush(one);
    two.publish("js.a.x", "1");
    two.publish("js.a.b.c", "2");
    for (let n = 0; n < 10; n++) two.publish("js-few", "x");
    for (let n = 0; n < 1000; n++) two.publish("js-work", "x");
    for (let n = 0; n < 1000; n++) two.publish("js-all", "x");
    const replies = [];
    for (let n = 0; n < 5; n++) replies.push(await request(two, "js-service", String(n)));
    await flush(two);
    await new Promise((resolve) => one.drainSubscription(drained, resolve));
    await until(() => seen.left + seen.right === 1000);
    const both = seen.left > 0 && seen.right > 0;
    const nobody = await new Promise((resolve) => two.request("js-nobody", "", { max: 1, timeout: 500 }, (got) => resolve(got.code || got)));
    await new Promise((resolve) => one.drain(resolve));
    two.close();
    return { star: seen.star, rest: seen.rest, few: seen.few, all: seen.all, both, replies, nobody: String(nobody) };
  },

  // Says when it is connected, and goes on after the restart. (What it publishes meanwhile it may forget by itself.)
  async reconnect() {
    const nc = await connect();
    const seen = [];
    nc.subscribe("js-again", (text) => seen.push(text));
    nc.publish("js-again", "before");
    await until(() => seen.length === 1);
    console.log("connected");
    await new Promise((resolve) => nc.once("reconnect", resolve));
    nc.publish("js-again", "after");
    await until(() => seen.length === 2);
    nc.close();
    return { seen };
  },

  async nkey() {
    const pair = nkeys.fromSeed(Buffer.from(given.seed));
    const sign = (key) => (nonce) => key.sign(nonce);
    const nc = await connect({ nkey: given.nkey, nonceSigner: sign(pair) });
    await flush(nc);
    nc.close();
    const other = nkeys.createUser();
    const problem = await connect({ nkey: given.nkey, nonceSigner: sign(other), reconnect: false }).catch((error) => error);
    return { problem: problem.code };
  },

  async wrong() {
    const problems = [];
    for (const options of [{}, { user: "u", pass: "wrong" }, { token: "t" }]) {
      const problem = await connect({ ...options, reconnect: false }).catch((error) => error);
      problems.push([problem.code, problem.message]);
    }
    return { problems };
  },

  async payload() {
    const nc = await connect({ reconnect: false });
    const problem = new Promise((resolve) => nc.once("error", resolve));
    nc.publish("js-large", Buffer.alloc(nc.info.max_payload + 1));
    return { problem: String(await problem), limit: nc.info.max_payload };
  },
};

scenarios[scenario]()
  .then((result) => { console.log(JSON.stringify(result)); process.exit(0); })
  .catch((problem) => { console.error(problem); process.exit(1); });
setTimeout(() => { console.error("took too long"); process.exit(2); }, 60000).unref();
