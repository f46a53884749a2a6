// Polls the endpoints of the streaming server and shows their answers. The rates of totals and channels come from two
// answers; those of the chart from the server, which keeps them, so that a new page shows the time before it as well.
"use strict";

const EVERY = 1000; // ms between two rounds
const PAGE = 50; // rows of a table
const MOST = 1000; // channels that are read and sorted
const PER_CHANNEL = 5; // ms that a round is later for each channel
const CHART = { left: 48, right: 8, top: 8, bottom: 20, height: 176 };

const places = { channels: 0, clients: 0 };
const open = new Set(); // channels whose subscriptions are shown
const order = { by: "name", down: false };
let before = null; // the round before, for rates
let busy = false;
let pause = EVERY; // ms until the next round
let last = 0; // when the last round began
let held = false; // a button of the mouse, or a finger, is down: what is under it has to stay for the click

// Characters that turn the direction of what follows them: a name could pass for another one.
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const escaped = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;

const by = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");
const rate = (number) => (number >= 100 || Number.isInteger(number) ? count(Math.round(number)) : number.toFixed(1));

function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < 5) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit ? bytes.toFixed(1) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
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
  return [...table.tHead.rows[0].cells].map((each) => each.textContent.trim());
}

function lagCell(messages) {
  return element("td", count(messages), messages ? "bad" : "where");
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
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
      card.append(element("dd", value), element("dt", label));
      return card;
    }),
  );
}

// The smallest of 1, 2, 5, 10, 20, … that is not below a number.
function ceiling(number) {
  const power = 10 ** Math.floor(Math.log10(Math.max(number, 1)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((each) => each >= number);
}

function drawn(tag, values, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(values)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// `rates`: step (seconds of a point), until (when the last one ends), in and out (messages a second, or null).
function showChart(rates) {
  const chart = by("chart"), width = chart.clientWidth || 600;
  const { left, right, top: above, bottom, height } = CHART;
  const known = [...rates.in, ...rates.out].filter((each) => each !== null);
  const highest = Math.max(0, ...known), top = ceiling(highest);
  const x = (place) => left + ((width - left - right) * place) / Math.max(rates.in.length - 1, 1);
  const y = (value) => above + (height - above - bottom) * (1 - value / top);
  const parts = [0, top / 2, top].flatMap((value) => [
    drawn("path", { class: "grid", d: `M${left},${y(value)}H${width - right}` }),
    drawn("text", { class: "end", x: left - 6, y: y(value) + 4 }, rate(value)),
  ]);
  const marks = width > 700 ? 6 : 3;
  for (let mark = 0; mark <= marks; mark += 1) {
    const place = ((rates.in.length - 1) * mark) / marks;
    const time = new Date((rates.until - (rates.in.length - 1 - place) * rates.step) * 1000);
    const end = mark === 0 ? "" : mark === marks ? "end" : "middle";
    parts.push(drawn("text", { class: end, x: x(place), y: height - 4 }, time.toLocaleTimeString("en-GB")));
  }
  for (const which of ["out", "in"]) {
    let path = "", joined = false;
    rates[which].forEach((value, place) => {
      if (value !== null) path += `${joined ? "L" : "M"}${x(place).toFixed(1)},${y(value).toFixed(1)}`;
      joined = value !== null;
    });
    parts.push(drawn("path", { class: which, id: `chart-${which}`, d: path }));
  }
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren(...parts);
  by("chart-top").textContent = rate(highest);
  const missing = rates.in.findLastIndex((each) => each === null) + 1;
  by("chart-since").textContent = missing ? "the server has counted since its start" : "";
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

const VALUES = {
  name: (channel) => channel.name,
  messages: (channel) => channel.msgs,
  bytes: (channel) => channel.bytes,
  subscriptions: (channel) => channel.subs_count,
  pending,
  lag,
};

function showChannels(answer, rateOf) {
  const wanted = by("filter").value.toLowerCase();
  const value = order.by === "rate" ? rateOf : VALUES[order.by];
  const found = (answer.channels || [])
    .filter((channel) => channel.name.toLowerCase().includes(wanted))
    .map((channel) => [value(channel), channel]);
  found.sort(([a], [b]) => (order.down ? -1 : 1) * (a < b ? -1 : a > b ? 1 : 0));
  const offset = Math.min(places.channels, Math.max(found.length - 1, 0)) || 0;
  const start = offset - (offset % PAGE);
  const rows = found.slice(start, start + PAGE).flatMap(([, channel]) => channelRows(channel, rateOf));
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
  for (const head of by("channels").tHead.rows[0].cells) {
    if (head.dataset.sort === order.by) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  showPlace("channels", { offset: start, count: Math.min(found.length - start, PAGE), total: found.length });
  if (answer.total > answer.count) by("channels-count").textContent += ` (the first of ${count(answer.total)})`;
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
  last = Date.now();
  try {
    const [server, store, channels, clients, rates] = await Promise.all([
      ask("serverz"),
      ask("storez"),
      ask(`channelsz?subs=1&limit=${MOST}`),
      ask(`clientsz?offset=${places.clients}&limit=${PAGE}`),
      ask(`ratesz?window=${by("window").value}`),
    ]);
    pause = Math.max(EVERY, channels.count * PER_CHANNEL);
    const same = before && before.server.server_id === server.server_id;
    const passed = same ? seconds(before.server.now, server.now) : 1;
    const grown = (member) => (same ? Math.max(server[member] - before.server[member], 0) / passed : 0);
    const now = { in: grown("in_msgs"), out: grown("out_msgs"), inBytes: grown("in_bytes") };
    const earlier = new Map(same ? (before.channels.channels || []).map((each) => [each.name, each.last_seq]) : []);
    const between = same ? seconds(before.channels.now, channels.now) : 1;
    const rateOf = (channel) =>
      earlier.has(channel.name) ? Math.max(channel.last_seq - earlier.get(channel.name), 0) / between : 0;
    before = { server, channels };
    showServer(server, store, now);
    showChart(rates);
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
function sortBy(name) {
  order.down = order.by === name ? !order.down : name !== "name";
  order.by = name;
  places.channels = 0;
  by("order").value = name;
  round();
}
for (const head of document.querySelectorAll("th[data-sort]")) {
  head.addEventListener("click", () => sortBy(head.dataset.sort));
  by("order").append(new Option(head.textContent, head.dataset.sort));
}
by("order").addEventListener("change", () => sortBy(by("order").value));
for (const [event, down] of [["pointerdown", true], ["pointerup", false], ["pointercancel", false]]) {
  document.addEventListener(event, () => setTimeout(() => (held = down)));
}
by("filter").addEventListener("input", round);
by("window").addEventListener("change", round);
document.addEventListener("visibilitychange", round);
round();
setInterval(() => Date.now() - last >= pause - EVERY / 2 && round(), EVERY);
