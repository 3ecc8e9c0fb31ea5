// What the shown page needs to know, kept up to date over a channel, and whether it is. Text from the server stays text.

import { get, place, Refused } from "./lib.js";
import { Channel } from "./channel.js";

const STEP_MS = 2000;
const POINTS = 90;
const LAG_POINTS = 1200;
const EVENTS = 500;
const HIDDEN_MS = 10000; // a tab that nobody sees is followed so long
const ALWAYS = ["server", "attention"];
const KEYS = {
  home: () => ["groups", "spaces", "hosts", "processes"], groups: () => ["groups"], group: (name) => [`group/${name}`],
  spaces: () => ["spaces"], space: (name) => [`space/${name}`], queries: () => [], query: () => ["groups"],
  hosts: () => ["hosts"], services: () => ["processes"], catalog: () => [],
};

export const store = {
  overview: null, groups: new Map(), spaces: new Map(), series: { groups: new Map(), spaces: new Map() },
  group: null, session: null, state: { kind: "wait", text: "connecting" },
};
let channel = null, server = null, wanted = [], problem = null;
let known = new Set(), came = new Set(); // keys of which something is here; which this channel brought
let looked = false;
let newest = 0, stepped = 0, resting = null;
let changed = () => {};
window.streamlease = { looks: 0, rows: 0, shownAt: 0, drawn: [], store };

export function onChange(work) {
  changed = () => {
    const began = performance.now();
    work();
    window.streamlease.looks += 1;
    window.streamlease.shownAt = Date.now();
    window.streamlease.drawn.push(performance.now() - began);
    window.streamlease.drawn.splice(0, window.streamlease.drawn.length - 200);
  };
}

export async function session() {
  store.session = await get("/api/session");
  if (store.session.role === null) leave();
  else if (channel === null && !document.hidden) follow();
  changed();
  return store.session;
}

export function may(role) {
  const order = [null, "observer", "operator", "admin"];
  return order.indexOf(store.session?.role ?? null) >= order.indexOf(role);
}

// ------------------------------------------------------------ the connection

// Follows what the page at this address shows, and nothing else any more.
export function follow() {
  const { page, arg, query } = place();
  if (channel !== null && (query.server ?? "") !== server) leave();
  const before = wanted;
  wanted = [...ALWAYS, ...(Object.hasOwn(KEYS, page) ? KEYS[page] : KEYS.home)(arg)];
  for (const key of before) if (!wanted.includes(key)) forget(key);
  if (channel === null) {
    server = query.server ?? "";
    came.clear();
    const mine = channel = new Channel(server, {
      came: (key, state) => { if (channel === mine) take(key, state); },
      failed: (key, why) => { if (channel === mine) fail(key, why); },
      answered: () => { if (channel === mine) answered(); },
      lost: (error) => { if (channel === mine) lose(error); },
    });
  }
  channel.want(wanted);
}

// Whether all that the shown page needs is here.
export const ready = () => wanted.every((key) => known.has(key));
export const trouble = () => problem ?? store.overview?.error;

function leave() {
  channel?.close();
  channel = null;
  for (const key of wanted) forget(key);
  wanted = [];
  store.overview = null;
}

function forget(key) {
  known.delete(key);
  came.delete(key);
  problem = null;
  const kind = key.split("/", 1)[0];
  if (kind === "group") store.group = null;
  for (const what of kind === "space" ? ["groups", "spaces"] : kind === "groups" || kind === "spaces" ? [kind] : []) {
    store[what].clear();
    store.series[what].clear();
  }
}

function fail(key, why) {
  problem = why;
  changed();
}

function answered() {
  if (came.size === 0) return;
  if (looked && wanted.every((key) => came.has(key))) {
    store.state = store.overview.error ? { kind: "lost", text: "Redis does not answer" } : { kind: "live", text: "live" };
  }
  looked = false;
  changed();
}

function lose(error) {
  say("lost", error instanceof Refused && error.status !== 401 ? error.message : "no connection, trying again");
  if (error.status === 401) session().catch(() => {});
}

function say(kind, text) {
  if (store.state.kind === kind && store.state.text === text) return;
  store.state = { kind, text };
  changed();
}

// "Live" is said only as long as it is true: of what is shown, and of Redis behind it.
function judge() {
  if (store.overview === null || channel === null) return;
  const silent = Date.now() - newest;
  const patience = 4000 + 4 * (store.overview.took_ms ?? 0);
  if (store.overview.error) say("lost", "Redis does not answer");
  else if (silent > patience && store.state.kind !== "lost") say("late", `as it was ${Math.round(silent / 1000)} s ago`);
}
window.setInterval(judge, 1000);

function rest() {
  resting = window.setTimeout(() => {
    channel?.close();
    channel = null;
    say("rest", "resting: nobody looks");
  }, HIDDEN_MS);
}

if (document.hidden) rest();
document.addEventListener("visibilitychange", () => {
  window.clearTimeout(resting);
  if (document.hidden) rest();
  else if (channel === null && wanted.length > 0) follow();
});
window.addEventListener("pagehide", () => { channel?.close(); channel = null; });
window.addEventListener("pageshow", (event) => { if (event.persisted && channel === null && wanted.length > 0) follow(); });

// ------------------------------------------------------------ what came

function take(key, state) {
  known.add(key);
  came.add(key);
  const kind = key.split("/", 1)[0];
  if (kind === "server") takeServer(state);
  else if (kind === "group") takeGroup(state);
  else if (kind === "space") takeSpace(key.slice("space/".length), state);
  else if (kind === "groups") takeRows("groups", "subscription", state);
  else if (kind === "spaces") takeRows("spaces", "name", state);
  else Object.assign(overview(), state);
}

const overview = () => (store.overview ??= {});

function takeServer(state) {
  newest = Date.now();
  Object.assign(overview(), state);
  looked = true;
  if (newest - stepped >= STEP_MS) {
    stepped = newest;
    grow(store.series.groups, store.groups);
    grow(store.series.spaces, store.spaces);
  }
}

function takeRows(what, name, { whole, rows, gone, series }) {
  if (whole) store[what].clear();
  for (const row of rows) store[what].set(row[name], row);
  for (const one of gone) store[what].delete(one);
  for (const [one, points] of Object.entries(series ?? {})) store.series[what].set(one, points);
}

function takeSpace(name, { row, groups, series }) {
  takeRows("spaces", "name", { whole: true, rows: row === null ? [] : [row], gone: [], series: series === undefined ? {} : { [name]: series } });
  takeRows("groups", "subscription", { whole: true, rows: groups, gone: [] });
}

function grow(series, rows) {
  for (const [name, row] of rows) {
    const points = series.get(name);
    if (points === undefined) {
      if (row.rate) series.set(name, [row.rate]);
    } else {
      points.push(row.rate);
      if (points.length > POINTS) points.shift();
    }
  }
  for (const name of series.keys()) if (!rows.has(name)) series.delete(name);
}

function takeGroup(news) {
  if (news.missing) { store.group = { missing: true }; return; }
  if (news.whole || store.group === null || store.group.missing) {
    store.group = { rows: new Map(), order: [], lag: [], events: [] };
  }
  const group = store.group, known = group.rows.size;
  for (const row of news.rows) group.rows.set(row[0], row);
  for (const stream of news.gone) group.rows.delete(stream);
  if (group.rows.size !== known || news.gone.length > 0) {
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    group.order = [...group.rows.keys()].sort(compare);
  }
  group.lag.push(...news.lag);
  group.lag.splice(0, group.lag.length - LAG_POINTS);
  group.events.push(...news.events);
  group.events.splice(0, group.events.length - EVENTS);
  group.summary = news.summary;
  window.streamlease.rows = news.rows.length;
}
