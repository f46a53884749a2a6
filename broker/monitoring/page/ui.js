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
  made.textContent = text; // never as HTML: names are anybody's
  if (kind) made.className = kind;
  return made;
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

function subscriptionRow(channel, each) {
  const row = document.createElement("tr");
  row.className = "subscription";
  const names = [each.client_id || "–"];
  if (each.durable_name) names.push(`durable ${each.durable_name}`);
  if (each.queue_name) names.push(`queue ${each.queue_name}`);
  if (each.is_offline) names.push("offline");
  if (each.is_stalled) names.push("stalled");
  const behind = unsent(channel, each);
  row.append(element("td", names.join(", ")));
  for (const text of ["", "", "", count(each.last_sent), "", `max ${count(each.max_inflight)}`]) {
    row.append(element("td", text));
  }
  row.append(element("td", count(each.pending_count)), element("td", count(behind), behind ? "behind" : ""));
  return row;
}

function showChannels(answer, rateOf) {
  const wanted = by("filter").value.toLowerCase();
  const rows = [];
  for (const channel of answer.channels || []) {
    if (!channel.name.toLowerCase().includes(wanted)) continue;
    const row = document.createElement("tr");
    row.className = "channel";
    row.dataset.channel = channel.name;
    const behind = lag(channel);
    row.append(element("td", channel.name));
    for (const text of [count(channel.msgs), size(channel.bytes), count(channel.first_seq), count(channel.last_seq)]) {
      row.append(element("td", text));
    }
    row.append(
      element("td", rate(rateOf(channel))),
      element("td", count(channel.subs_count)),
      element("td", count(pending(channel))),
      element("td", count(behind), behind ? "behind" : ""),
    );
    row.addEventListener("click", () => {
      if (!open.delete(channel.name)) open.add(channel.name);
      showChannels(answer, rateOf);
    });
    rows.push(row);
    if (open.has(channel.name)) rows.push(...(channel.subscriptions || []).map((each) => subscriptionRow(channel, each)));
  }
  document.querySelector("#channels tbody").replaceChildren(...rows);
  showPlace("channels", answer);
}

function showClients(answer) {
  const rows = answer.clients.map((client) => {
    const row = document.createElement("tr");
    row.dataset.client = client.id;
    row.append(element("td", client.id), element("td", client.hb_inbox), element("td", count(client.subs_count)));
    return row;
  });
  document.querySelector("#clients tbody").replaceChildren(...rows);
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
    showChannels(channels, rateOf);
    showClients(clients);
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
by("filter").addEventListener("input", round);
document.addEventListener("visibilitychange", round);
round();
setInterval(round, EVERY);
