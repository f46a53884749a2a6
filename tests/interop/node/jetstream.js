// JetStream with nats.js: `node jetstream.js MODULES URL [SCENARIO...]`, what came of each as JSON on stdout.
"use strict";
const [modules, url, ...wanted] = process.argv.slice(2);
const load = require("module").createRequire(`${modules}/`);
const { connect, headers, nanos } = load("@nats-io/transport-node");
const { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } = load("@nats-io/jetstream");
const { Kvm } = load("@nats-io/kv");
const { Objm } = load("@nats-io/obj");

const text = (data) => new TextDecoder().decode(data);
// What an error says, without what is the client's own.
const failure = (promise) => promise.then((value) => `no error: ${JSON.stringify(value)}`, (e) => [e.code, e.status, e.message]);
const state = ({ messages, first_seq, last_seq, num_subjects, num_deleted }) => ({ messages, first_seq, last_seq, num_subjects, num_deleted });
const position = (info) => [info.delivered.consumer_seq, info.delivered.stream_seq, info.ack_floor.consumer_seq,
  info.ack_floor.stream_seq, info.num_ack_pending, info.num_redelivered, info.num_pending];
const all = async (lister) => { const found = []; for await (const each of lister) found.push(each); return found; };
const seen = (message) => [message.subject, message.seq, message.info.deliveryCount, message.info.pending, text(message.data)];

async function take(messages, count, handle = (message) => message.ack()) {
  const found = [];
  if (count === 0) return found;
  for await (const message of messages) {
    found.push(seen(message));
    await handle(message);
    if (found.length === count) break;
  }
  return found;
}

async function until(condition) {
  const deadline = Date.now() + 30000;
  while (!await condition()) {
    if (Date.now() > deadline) throw new Error("it did not come to that");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function fill(js, subject, count) {
  for (let i = 0; i < count; i++) await js.publish(`${subject}.${"abc"[i % 3]}`, String(i));
}

const scenarios = {
  async streams({ js, jsm }) {
    const made = await jsm.streams.add({ name: "S", subjects: ["s.>"], max_msgs_per_subject: 3, allow_direct: true,
      metadata: { owner: "me" }, description: "what for" });
    const found = { config: made.config, again: (await jsm.streams.add({ name: "S", subjects: ["s.>"],
      max_msgs_per_subject: 3, allow_direct: true, metadata: { owner: "me" }, description: "what for" })).created === made.created };
    delete found.config.metadata;
    found.other = await failure(jsm.streams.add({ name: "S", subjects: ["s.>", "t"] }));
    found.overlap = await failure(jsm.streams.add({ name: "T", subjects: ["s.x"] }));
    found.missing = await failure(jsm.streams.info("missing"));
    await fill(js, "s", 10);
    found.names = await all(jsm.streams.names());
    found.selected = await all(jsm.streams.names("s.*"));
    found.listed = (await all(jsm.streams.list())).map((each) => [each.config.name, state(each.state)]);
    found.where = await jsm.streams.find("s.a");
    found.nowhere = await failure(jsm.streams.find("nowhere"));
    const info = await jsm.streams.info("S", { subjects_filter: ">", deleted_details: true });
    found.info = [state(info.state), info.state.subjects, info.state.deleted];
    const got = [];
    for (const query of [{ seq: 3 }, { last_by_subj: "s.b" }, { seq: 3, next_by_subj: "s.a" }, { seq: 99 }, { last_by_subj: "none" }]) {
      for (const where of [jsm.streams, jsm.direct]) {
        const message = await where.getMessage("S", query);
        got.push(message ? [message.subject, message.seq, text(message.data)] : null);
      }
    }
    found.got = got;
    found.last = (await all(await jsm.direct.getLastMessagesFor("S", { multi_last: ["s.a", "s.c"] }))).map((each) => [each.subject, each.seq]);
    found.batch = (await all(await jsm.direct.getBatch("S", { seq: 2, batch: 4 }))).map((each) => [each.subject, each.seq]);
    found.deleted = [await jsm.streams.deleteMessage("S", 5), await jsm.streams.deleteMessage("S", 6, false),
      await failure(jsm.streams.deleteMessage("S", 5))];
    found.purged = [await jsm.streams.purge("S", { filter: "s.a", keep: 1 }), await jsm.streams.purge("S", { seq: 4 })];
    found.after = state((await jsm.streams.info("S")).state);
    const changed = await jsm.streams.update("S", { subjects: ["s.>", "more"], max_msgs: 2 });
    found.updated = [changed.config.subjects, changed.config.max_msgs, state(changed.state)];
    found.refused = await failure(jsm.streams.update("S", { storage: "memory" }));
    found.account = await jsm.getAccountInfo().then((each) => [each.streams, each.consumers, each.limits.max_streams]);
    found.gone = [await jsm.streams.delete("S"), await failure(jsm.streams.delete("S")), await failure(js.publish("s.x", "", { retries: 0 }))];
    return found;
  },

  async publishing({ js, jsm }) {
    await jsm.streams.add({ name: "P", subjects: ["p.>"], allow_rollup_hdrs: true, allow_msg_ttl: true });
    const found = {};
    const publish = (subject, options) => js.publish(subject, "x", options).then((ack) => [ack.stream, ack.seq, ack.duplicate]);
    found.ids = [await publish("p.a", { msgID: "one" }), await publish("p.b", { msgID: "one" }), await publish("p.a", { msgID: "two" })];
    const expect = { lastMsgID: ["two", "three"], streamName: ["P", "Q"], lastSequence: [4, 99], lastSubjectSequence: [5, 7] };
    for (const [name, [right, wrong]] of Object.entries(expect)) {
      found[name] = [await publish("p.c", { expect: { [name]: right } }).catch((e) => e.message),
        await failure(publish("p.c", { expect: { [name]: wrong } }))];
    }
    found.wide = await publish("p.d.x", { expect: { lastSubjectSequence: 2, lastSubjectSequenceSubject: "p.a" } });
    const rollup = headers();
    rollup.set("Nats-Rollup", "sub");
    found.rollup = await publish("p.a", { headers: rollup });
    found.ttl = [await publish("p.t", { ttl: "1h" }), await failure(publish("p.t", { ttl: "soon" }))];
    found.state = state((await jsm.streams.info("P")).state);
    await jsm.streams.add({ name: "N", subjects: ["n"], max_msgs: 2, discard: "new", max_msg_size: 10 });
    found.full = [await publish("n"), await publish("n"), await failure(publish("n"))];
    found.large = await failure(js.publish("n", "x".repeat(11)));
    return found;
  },

  async pulling({ js, jsm }) {
    await jsm.streams.add({ name: "L", subjects: ["l.>"] });
    await fill(js, "l", 11);
    const made = await jsm.consumers.add("L", { durable_name: "d", ack_policy: AckPolicy.Explicit, filter_subjects: ["l.a", "l.b"],
      max_ack_pending: 5, ack_wait: nanos(60000), metadata: { owner: "me" } });
    const found = { config: { ...made.config, metadata: undefined } };
    found.other = await failure(jsm.consumers.add("L", { durable_name: "d", ack_policy: AckPolicy.Explicit }));
    const consumer = await js.consumers.get("L", "d");
    found.fetched = await take(await consumer.fetch({ max_messages: 3, expires: 2000 }), 3);
    found.next = seen(await consumer.next({ expires: 2000 }));
    const four = [];
    for await (const message of await consumer.fetch({ max_messages: 4, expires: 1000 })) four.push(message);
    found.four = four.map(seen);
    await four[0].ackAck();
    four[1].nak();
    four[2].term("because");
    four[3].working();
    found.more = await take(await consumer.fetch({ max_messages: 1, expires: 2000 }), 1);
    await jsm.consumers.update("L", "d", { filter_subjects: ["l.c"], max_ack_pending: 100 });
    found.changed = position(await consumer.info());
    await fill(js, "l", 12);
    const consumed = await take(await consumer.consume({ max_messages: 2 }), 4);
    found.consumed = consumed.map(([subject, seq, count, , data]) => [subject, seq, count, data]);  // nats-server may count one pending too few
    await jsm.consumers.add("L", { durable_name: "bytes", ack_policy: AckPolicy.None });
    found.bytes = await take(await (await js.consumers.get("L", "bytes")).fetch({ max_bytes: 200, expires: 1000 }), 2, () => {});
    found.paused = (await jsm.consumers.pause("L", "d", new Date(Date.now() + 3600000))).paused;
    found.none = await consumer.next({ expires: 1000 });
    found.resumed = (await jsm.consumers.resume("L", "d")).paused;
    const consuming = await consumer.consume({ abort_on_missing_resource: true });
    const ended = Promise.all([take(consuming, 1), consuming.closed()].map(failure));
    await until(async () => (await jsm.consumers.info("L", "d")).num_waiting > 0);
    found.deleted = [await jsm.consumers.delete("L", "d"), await ended];
    found.listed = (await all(jsm.consumers.list("L"))).map((each) => each.name);
    found.missing = await failure(js.consumers.get("L", "d"));
    return found;
  },

  async redelivering({ js, jsm }) {
    await jsm.streams.add({ name: "R", subjects: ["r.>"], retention: "workqueue" });
    await fill(js, "r", 3);
    await jsm.consumers.add("R", { durable_name: "d", ack_policy: AckPolicy.Explicit, max_deliver: 2, ack_wait: nanos(300) });
    const consumer = await js.consumers.get("R", "d");
    const found = { first: await take(await consumer.fetch({ max_messages: 3, expires: 5000 }), 3, (message) => message.seq === 2 ? message.ack() : undefined) };
    found.again = await take(await consumer.fetch({ max_messages: 2, expires: 5000 }), 2, (message) => message.seq === 1 ? message.ack() : undefined);
    found.given_up = await take(await consumer.fetch({ max_messages: 1, expires: 1000 }), 1);
    found.left = [position(await consumer.info()), state((await jsm.streams.info("R")).state)];
    await js.publish("r.a", "new");
    found.delayed = [await take(await consumer.fetch({ max_messages: 1, expires: 5000 }), 1, (message) => message.nak(200)),
      await take(await consumer.fetch({ max_messages: 1, expires: 5000 }), 1, (message) => message.ackAck())];
    return found;
  },

  async pushing({ nc, js, jsm }) {
    await jsm.streams.add({ name: "U", subjects: ["u.>"] });
    await fill(js, "u", 6);
    await jsm.consumers.add("U", { durable_name: "d", deliver_subject: "deliver.u", ack_policy: AckPolicy.Explicit,
      idle_heartbeat: nanos(5000), flow_control: true });
    const consumer = await js.consumers.getPushConsumer("U", "d");
    const messages = await consumer.consume();
    const found = { six: await take(messages, 6) };
    await messages.close();
    await until(async () => !(await jsm.consumers.info("U", "d")).push_bound);
    const again = await (await js.consumers.getPushConsumer("U", "d")).consume();
    await js.publish("u.x", "late");
    found.again = await take(again, 1);
    found.headers = [];
    await jsm.consumers.add("U", { durable_name: "h", deliver_subject: "deliver.h", headers_only: true, deliver_policy: DeliverPolicy.Last });
    const heads = await (await js.consumers.getPushConsumer("U", "h")).consume();
    for await (const message of heads) { found.headers.push([message.headers.get("Nats-Msg-Size"), message.data.length]); break; }
    return found;
  },

  async ordered({ js, jsm }) {
    await jsm.streams.add({ name: "O", subjects: ["o.>"] });
    await fill(js, "o", 30);
    const found = {};
    const consumer = await js.consumers.get("O", { filter_subjects: ["o.a", "o.b"] });
    found.fetched = await take(await consumer.fetch({ max_messages: 7, expires: 2000 }), 7, () => {});
    found.next = seen(await consumer.next({ expires: 2000 }));
    const whole = await js.consumers.get("O", { deliver_policy: DeliverPolicy.StartSequence, opt_start_seq: 11 });
    const consuming = await whole.consume({ max_messages: 4, expires: 2000, idle_heartbeat: 500 });
    found.sequences = [];
    // A consumer that goes is made again, behind what was seen.
    for await (const message of consuming) {
      found.sequences.push(message.seq);
      if (message.seq === 20) await jsm.consumers.delete("O", message.info.consumer);
      if (message.seq === 30) break;
    }
    const last = await js.consumers.get("O", { deliver_policy: DeliverPolicy.LastPerSubject, filter_subjects: ["o.*"] });
    found.last = await take(await last.fetch({ max_messages: 3, expires: 2000 }), 3, () => {});
    return found;
  },

  async copies({ js, jsm }) {
    await jsm.streams.add({ name: "A", subjects: ["a.>"] });
    await jsm.streams.add({ name: "B", subjects: ["b.>"] });
    await fill(js, "a", 6);
    await jsm.streams.deleteMessage("A", 2);
    await jsm.streams.add({ name: "M", mirror: { name: "A" }, allow_direct: true, mirror_direct: true });
    await jsm.streams.add({ name: "G", subjects: ["g.>"], sources: [{ name: "A", filter_subject: "a.a" },
      { name: "B", subject_transforms: [{ src: "b.*", dest: "g.from.$1" }] }] });
    await js.publish("b.x", "from b");
    await until(async () => (await jsm.streams.info("M")).state.last_seq === 6 && (await jsm.streams.info("G")).state.messages === 3);
    const found = {};
    const mirror = await jsm.streams.info("M", { deleted_details: true });
    found.mirror = [state(mirror.state), mirror.state.deleted, mirror.mirror.name, mirror.mirror.lag];
    const gathered = await jsm.streams.info("G", { subjects_filter: ">" });
    found.gathered = [gathered.state.subjects, gathered.sources.map((each) => [each.name, each.lag]).sort()];
    found.refused = [await failure(js.publish("M", "x", { retries: 0 })), await failure(jsm.streams.add({ name: "X", subjects: ["x"], mirror: { name: "A" } }))];
    const consumer = await js.consumers.get("M");
    found.read = await take(await consumer.fetch({ max_messages: 5, expires: 2000 }), 5, () => {});
    return found;
  },

  async groups({ js, jsm }) {
    await jsm.streams.add({ name: "W", subjects: ["w.>"] });
    const found = {};
    const shared = { ack_policy: AckPolicy.Explicit, priority_groups: ["A"] };
    await jsm.consumers.add("W", { ...shared, durable_name: "overflow", priority_policy: "overflow" });
    await jsm.consumers.add("W", { ...shared, durable_name: "pinned", priority_policy: "pinned_client",
      priority_timeout: nanos(60000) });
    await fill(js, "w", 6);
    const overflow = await js.consumers.get("W", "overflow");
    found.few = await take(await overflow.fetch({ max_messages: 1, expires: 1000, group: "A", min_pending: 7 }), 1);
    found.many = await take(await overflow.fetch({ max_messages: 1, expires: 1000, group: "A", min_pending: 6 }), 1);
    found.other = await failure(overflow.fetch({ max_messages: 1, expires: 1000, group: "B" }).then((each) => take(each, 1)));
    // Of two that consume, one gets everything until it is unpinned.
    const got = [[], []];
    const told = [[], []];
    const consuming = await Promise.all([0, 1].map(() => js.consumers.get("W", "pinned").then((each) => each.consume({ group: "A", max_messages: 2 }))));
    consuming.forEach((messages, i) => {
      (async () => { for await (const each of messages.status()) if (each.type.includes("pinned")) told[i].push(each.type); })();
      (async () => { for await (const message of messages) { got[i].push(message.seq); message.ack(); } })();
    });
    await until(() => got[0].length + got[1].length === 6);
    const first = got[0].length ? 0 : 1;
    found.alone = got[first].join();
    await jsm.consumers.unpin("W", "pinned", "A");
    await fill(js, "w", 6);
    await until(() => got[0].length + got[1].length === 12);
    found.all = [...got[0], ...got[1]].sort((a, b) => a - b).join();
    found.pinned = (await jsm.consumers.info("W", "pinned")).priority_groups.map((each) => [each.group, each.pinned_client_id.length]);
    found.told = told[first][0];
    consuming.forEach((messages) => messages.stop());
    return found;
  },

  async buckets({ nc }) {
    const kvm = new Kvm(nc);
    const kv = await kvm.create("kv", { history: 4, ttl: 3600000, description: "a bucket" });
    const shown = (entry) => entry && [entry.key, entry.revision, entry.operation, entry.string(), entry.delta];
    const found = { put: [await kv.put("a", "1"), await kv.put("b.c", "2"), await kv.create("d", "3"), await kv.put("a", "4")] };
    found.taken = await failure(kv.create("d", "x"));
    found.updated = [await kv.update("d", "5", 3), await failure(kv.update("d", "6", 3))];
    found.got = [shown(await kv.get("a")), shown(await kv.get("a", { revision: 1 })), shown(await kv.get("none")), shown(await kv.get("a", { revision: 2 }))];
    const watched = [];
    const watch = await kv.watch({ key: ["a", "b.>"] });
    const watching = (async () => { for await (const entry of watch) { watched.push([...shown(entry).slice(0, 4), entry.isUpdate ? 0 : entry.delta, entry.isUpdate]); if (watched.length === 4) break; } })();
    await until(() => watched.length === 2);
    await kv.delete("a");
    await kv.put("b.c", "7");
    await watching;
    found.watched = watched;
    found.history = (await take_all(await kv.history({ key: "a" }))).map(shown);
    found.keys = [await take_all(await kv.keys()), await take_all(await kv.keys("b.*"))].map((keys) => keys.sort());
    found.recreated = await kv.create("a", "8");
    await kv.purge("a");
    found.gone = shown(await kv.get("a"));
    found.purged = (await take_all(await kv.history({ key: "a" }))).map(shown);
    const status = await kv.status();
    found.status = [status.bucket, status.values, status.history, status.ttl, status.description, status.storage];
    // Markers that are younger stay.
    await kv.purgeDeletes();
    found.rest = (await kv.status()).values;
    const copy = await kvm.create("copy", { history: 4, mirror: { name: "kv" } });
    await until(async () => (await copy.status()).values === found.rest);
    found.copy = shown(await copy.get("d"));
    const marked = await kvm.create("marked", { markerTTL: 2000 });
    found.marked = [await marked.create("k", "v", "1s"), (await marked.status()).markerTTL];
    found.listed = (await all(kvm.list())).map((each) => each.bucket);
    found.destroyed = [await copy.destroy(), await failure(kvm.open("copy").then((each) => each.status()))];
    return found;
  },

  async objects({ nc }) {
    const objm = new Objm(nc);
    const store = await objm.create("objects", { description: "things" });
    const shown = (info) => info && [info.name, info.size, info.chunks, info.digest, info.deleted, info.description];
    const data = Uint8Array.from({ length: 300000 }, (_, i) => i % 251);
    const watched = [];
    const watch = await store.watch();
    const found = { put: shown(await store.putBlob({ name: "one", description: "first" }, data)) };
    const got = await store.getBlob("one");
    found.same = Buffer.compare(Buffer.from(got), Buffer.from(data));
    const small = await store.putBlob({ name: "two", options: { max_chunk_size: 1000 } }, data.slice(0, 4500));
    found.small = shown(small);
    await store.putBlob({ name: "one" }, data.slice(0, 10));
    found.replaced = [shown(await store.info("one")), (await store.getBlob("one")).length];
    found.missing = [await store.info("none"), await store.getBlob("none")];
    await store.link("link", small);
    found.linked = (await store.getBlob("link")).length;
    await store.update("two", { name: "three", description: "renamed" });
    found.listed = (await store.list()).map(shown);
    const purged = await store.delete("one");
    found.deleted = [purged.success, purged.purged, shown(await store.info("one"))];
    for await (const info of watch) { if (info) watched.push([info.name, info.deleted]); if (info && info.deleted && info.name === "one") break; }
    found.watched = watched;
    const status = await store.status();
    found.status = [status.bucket, status.sealed, status.description, status.storage];
    found.sealed = [(await store.seal()).sealed, await failure(store.putBlob({ name: "four" }, data.slice(0, 10)))];
    found.stores = (await all(objm.list())).map((each) => each.bucket);
    found.destroyed = await store.destroy();
    return found;
  },
};

const take_all = async (iterator) => { const found = []; for await (const each of iterator) found.push(each); return found; };

(async () => {
  const nc = await connect({ servers: url, timeout: 30000 });
  const jsm = await jetstreamManager(nc), js = jetstream(nc);
  const results = {};
  for (const [name, play] of Object.entries(scenarios)) {
    if (wanted.length && !wanted.includes(name)) continue;
    try {
      const late = new Promise((_, reject) => setTimeout(() => reject(new Error("it does not end")), 30000).unref());
      results[name] = await Promise.race([play({ nc, js, jsm }), late]);
    } catch (error) {
      results[name] = `failed: ${error.stack}`;
    }
  }
  console.log(JSON.stringify(results));
  process.exit();
})().catch((error) => { console.error(error); process.exit(1); });
