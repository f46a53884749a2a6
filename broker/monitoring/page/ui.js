// Asks the endpoints of the streaming server once a second and shows what they say. Rates come from two answers.
"use strict";

const EVERY = 1000; // ms between two rounds
const PAGE = 50; // rows of a table
const HISTORY = 120; // points of the chart

const places = { channels: 0, clients: 0 };
const open = new Set(); // channels whose subscriptions are shown
const history = [];
let before = null; // the round before, for rates
let busy = false;
let held = false; // a button of the mouse, or a finger, is down: what is under it has to stay for the click

// Characters that turn the direction of what follows them: a name could pass for another one.
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const escaped = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;

const by = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");
const rate = (number) => (number >= 100 ? count(Math.round(number)) : number.toFixed(1));

function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < 5) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit ? bytes.toFixed(2) : bytes} ${["B", "KB", "MB", "GB", "TB", "PB"][unit]}`;
}

function element(tag, text, kind) {
  const made = document.createElement(tag);
  made.textContent = String(text).replace(DIRECTIONS, escaped); // never as HTML: names are anybody's
  if (kind) made.className = kind;
  return made;
}

// A row of cells under the headings of its table, which are shown beside the values where the window is narrow.
function row(kind, headings, cells) {
  const made = document.createElement("tr");
  made.className = kind;
  cells.forEach((cell, place) => {
    const shown = cell instanceof Element ? cell : element("td", cell);
    shown.dataset.heading = headings[place];
    made.append(shown);
  });
  return made;
}

function headings(table) {
  return [...table.tHead.rows[0].cells].map((each) => each.textContent);
}

function lagCell(messages) {
  return element("td", count(messages), messages ? "behind" : "");
}

async function ask(path) {
  const answer = await fetch(`/streaming/${path}`, { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw new Error(`${path}: status ${answer.status}`);
  return answer.json();
}

function seconds(earlier, later) {
  return Math.max((Date.parse(later) - Date.parse(earlier)) / 1000, 0.001);
}

// Messages of a channel that a subscription has not been sent yet. Those that are gone will never be.
function unsent(channel, subscription) {
  return Math.max(channel.last_seq - Math.max(subscription.last_sent, channel.first_seq - 1), 0);
}

// How far the subscription is behind that is furthest behind. A queue group is where its furthest member is.
function lag(channel) {
  const groups = new Map();
  let most = 0;
  for (const each of channel.subscriptions || []) {
    const behind = unsent(channel, each);
    if (each.queue_name) groups.set(each.queue_name, Math.min(groups.get(each.queue_name) ?? Infinity, behind));
    else most = Math.max(most, behind);
  }
  return Math.max(most, ...groups.values());
}

function pending(channel) {
  return (channel.subscriptions || []).reduce((sum, each) => sum + each.pending_count, 0);
}

function showServer(server, store, rates) {
  by("cluster").textContent = server.cluster_id || "NATS Streaming";
  document.title = `${server.cluster_id} – NATS Streaming`;
  by("state").textContent = server.state;
  by("state").classList.toggle("bad", ["FAILED", "SHUTDOWN"].includes(server.state));
  by("about").textContent =
    `version ${server.version}, server ${server.server_id}, ${store.type} store, up ${server.uptime}`;
  const limit = store.limits && store.limits.max_channels ? ` of ${count(store.limits.max_channels)}` : "";
  const cards = [
    ["rate-in", "received/s", rate(rates.in)],
    ["rate-out", "delivered/s", rate(rates.out)],
    ["rate-in-bytes", "bytes received/s", size(Math.round(rates.inBytes))],
    ["total-msgs", "messages", count(server.total_msgs)],
    ["total-bytes", "bytes", size(server.total_bytes)],
    ["total-channels", "channels", count(server.channels) + limit],
    ["total-subscriptions", "subscriptions", count(server.subscriptions)],
    ["total-clients", "clients", count(server.clients)],
  ];
  by("cards").replaceChildren(
    ...cards.map(([id, label, value]) => {
      const card = document.createElement("div");
      card.id = id;
      card.append(element("b", value), label);
      return card;
    }),
  );
}

function showChart() {
  const top = Math.max(1, ...history.flatMap((each) => [each.in, each.out]));
  const points = (which) =>
    history.map((each, place) => `${(600 * place) / (HISTORY - 1)},${78 - (76 * each[which]) / top}`).join(" ");
  by("chart-in").setAttribute("points", points("in"));
  by("chart-out").setAttribute("points", points("out"));
  by("chart-top").textContent = rate(top);
}

function subscriptionsTable(channel) {
  const names = ["Subscription", "Last sent", "Pending", "Ack wait", "Lag"];
  const table = document.createElement("table");
  const head = document.createElement("tr");
  head.append(...names.map((each) => element("th", each)));
  table.createTHead().append(head);
  table.createTBody().append(
    ...channel.subscriptions.map((each) => {
      const about = [each.client_id || "–"];
      if (each.durable_name) about.push(`durable ${each.durable_name}`);
      if (each.queue_name) about.push(`queue ${each.queue_name}`);
      if (each.is_offline) about.push("offline");
      if (each.is_stalled) about.push("stalled");
      return row("subscription", names, [
        about.join(", "),
        count(each.last_sent),
        `${count(each.pending_count)} of ${count(each.max_inflight)}`,
        `${each.ack_wait} s`,
        lagCell(unsent(channel, each)),
      ]);
    }),
  );
  return table;
}

function channelRows(channel, rateOf) {
  const opener = element("button", channel.name);
  opener.type = "button";
  opener.setAttribute("aria-expanded", open.has(channel.name));
  const name = element("td", "");
  name.append(opener);
  const shown = row("channel", headings(by("channels")), [
    name,
    count(channel.msgs),
    size(channel.bytes),
    count(channel.first_seq),
    count(channel.last_seq),
    rate(rateOf(channel)),
    count(channel.subs_count),
    count(pending(channel)),
    lagCell(lag(channel)),
  ]);
  shown.dataset.channel = channel.name;
  if (!open.has(channel.name)) return [shown];
  const inside = document.createElement("td");
  inside.colSpan = shown.cells.length;
  inside.append((channel.subscriptions || []).length ? subscriptionsTable(channel) : "no subscriptions");
  const below = document.createElement("tr");
  below.className = "inside";
  below.append(inside);
  return [shown, below];
}

function showChannels(answer, rateOf) {
  const wanted = by("filter").value.toLowerCase();
  const rows = (answer.channels || [])
    .filter((channel) => channel.name.toLowerCase().includes(wanted))
    .flatMap((channel) => channelRows(channel, rateOf));
  const body = by("channels").tBodies[0];
  const focused = document.activeElement.closest("tr.channel")?.dataset.channel;
  body.replaceChildren(...rows);
  if (focused !== undefined) rows.find((each) => each.dataset.channel === focused)?.querySelector("button").focus();
  body.onclick = (event) => {
    const name = event.target.closest("tr.channel")?.dataset.channel;
    if (name === undefined) return;
    if (!open.delete(name)) open.add(name);
    showChannels(answer, rateOf);
  };
  showPlace("channels", answer);
}

function showClients(answer) {
  const names = headings(by("clients"));
  const rows = answer.clients.map((client) => {
    const shown = row("client", names, [client.id, client.hb_inbox, count(client.subs_count)]);
    shown.dataset.client = client.id;
    return shown;
  });
  by("clients").tBodies[0].replaceChildren(...rows);
  showPlace("clients", answer);
}

function showPlace(what, answer) {
  const first = answer.count ? answer.offset + 1 : answer.offset;
  const paged = answer.total > PAGE;
  by(`${what}-count`).textContent = paged
    ? `${count(first)} to ${count(answer.offset + answer.count)} of ${count(answer.total)}`
    : count(answer.total);
  by(`${what}-back`).hidden = by(`${what}-on`).hidden = !paged;
  by(`${what}-back`).disabled = answer.offset === 0;
  by(`${what}-on`).disabled = answer.offset + answer.count >= answer.total;
  if (answer.offset >= answer.total && answer.offset > 0) places[what] = 0; // what was there has gone
}

async function round() {
  if (busy || document.hidden) return;
  busy = true;
  try {
    const [server, store, channels, clients] = await Promise.all([
      ask("serverz"),
      ask("storez"),
      ask(`channelsz?subs=1&offset=${places.channels}&limit=${PAGE}`),
      ask(`clientsz?offset=${places.clients}&limit=${PAGE}`),
    ]);
    const same = before && before.server.server_id === server.server_id;
    const passed = same ? seconds(before.server.now, server.now) : 1;
    const grown = (member) => (same ? Math.max(server[member] - before.server[member], 0) / passed : 0);
    const rates = { in: grown("in_msgs"), out: grown("out_msgs"), inBytes: grown("in_bytes") };
    history.push(rates);
    if (history.length > HISTORY) history.shift();
    const earlier = new Map(same ? (before.channels.channels || []).map((each) => [each.name, each.last_seq]) : []);
    const between = same ? seconds(before.channels.now, channels.now) : 1;
    const rateOf = (channel) =>
      earlier.has(channel.name) ? Math.max(channel.last_seq - earlier.get(channel.name), 0) / between : 0;
    before = { server, channels };
    showServer(server, store, rates);
    showChart();
    if (!held) {
      showChannels(channels, rateOf);
      showClients(clients);
    }
    by("trouble").hidden = true;
  } catch (problem) {
    by("trouble").textContent = `The server does not answer: ${problem.message}. What is shown is old.`;
    by("trouble").hidden = false;
    by("state").classList.add("bad");
  } finally {
    busy = false;
  }
}

for (const [what, step] of [["back", -PAGE], ["on", PAGE]]) {
  for (const table of ["channels", "clients"]) {
    by(`${table}-${what}`).addEventListener("click", () => {
      places[table] = Math.max(places[table] + step, 0);
      round();
    });
  }
}
for (const [event, down] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) {
  document.addEventListener(event, () => setTimeout(() => (held = down)));
}
by("filter").addEventListener("input", round);
document.addEventListener("visibilitychange", round);
round();
setInterval(round, EVERY);
