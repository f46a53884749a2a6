// node-nats-streaming and its NATS client over TLS: `node secure.js MODULES URL CLUSTER CA [CERT KEY]`.
"use strict";
const fs = require("fs");
const [modules, url, cluster, ca, cert, key] = process.argv.slice(2);
const nats = require(`${modules}/nats`);
const stan = require(`${modules}/node-nats-streaming`);

const read = (path) => (path ? fs.readFileSync(path) : undefined);
const nc = nats.connect({ url, tls: { ca: [read(ca)], cert: read(cert), key: read(key), rejectUnauthorized: true }, preserveBuffers: false, encoding: "binary" });
nc.on("error", (problem) => { console.error(problem); process.exit(1); });
nc.on("connect", () => {
  nc.subscribe("service", (text, reply) => nc.publish(reply, `re: ${text}`));
  nc.requestOne("service", "x", {}, 5000, (reply) => {
    const sc = stan.connect(cluster, "secure", { nc });
    sc.on("error", (problem) => { console.error(problem); process.exit(1); });
    sc.on("connect", () => {
      sc.publish("secure", "one", () => sc.publish("secure", "two", () => {
        const texts = [];
        const sub = sc.subscribe("secure", sc.subscriptionOptions().setDeliverAllAvailable());
        sub.on("message", (message) => {
          texts.push(message.getData());
          if (texts.length === 2) {
            console.log(JSON.stringify({ texts, reply }));
            process.exit(0);
          }
        });
      }));
    });
  });
});
setTimeout(() => { console.error("took too long"); process.exit(2); }, 30000).unref();
