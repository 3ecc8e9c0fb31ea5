// Follows /api/live: what there is, kept up to date, and whether it is. Text from the server stays text.

import { address, get, place } from "./lib.js";

const STEP_MS = 2000;
const POINTS = 90;
const LAG_POINTS = 1200;
const EVENTS = 500;
const HIDDEN_MS = 10000; // a tab that nobody sees is followed so long

export const store = {
  overview: null, groups: new Map(), spaces: new Map(), series: { groups: new Map(), spaces: new Map() },
  subscription: null, group: null, session: null, state: { kind: "wait", text: "connecting" },
};
let source = null, followed = null, newest = 0, stepped = 0, resting = null;
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
  changed();
  return store.session;
}

export function may(role) {
  const order = [null, "observer", "operator", "admin"];
  return order.indexOf(store.session?.role ?? null) >= order.indexOf(role);
}

// ------------------------------------------------------------ the connection

export function follow() {
  const { page, arg, query } = place();
  const subscription = page === "group" ? arg : null;
  const wanted = JSON.stringify([subscription, query.server ?? ""]);
  if (source !== null && followed === wanted) return;
  if (followed !== null && JSON.parse(followed)[1] !== (query.server ?? "")) forget();
  followed = wanted;
  store.subscription = subscription;
  store.group = null;
  open();
}

function forget() {
  store.overview = null;
  store.groups.clear();
  store.spaces.clear();
  store.series.groups.clear();
  store.series.spaces.clear();
}

function open() {
  source?.close();
  const query = store.subscription === null ? {} : { subscription: store.subscription };
  const opened = new EventSource(address("/api/live", query));
  source = opened;
  opened.onerror = () => {
    say("lost", "no connection, trying again");
    if (opened.readyState === EventSource.CLOSED) {
      opened.close();
      window.setTimeout(() => { if (source === opened) open(); }, 2000);
      session().catch(() => {});
    }
  };
  opened.addEventListener("overview", (event) => {
    takeOverview(JSON.parse(event.data));
    // On the page of a group, the news of the group come right behind, and are drawn then.
    if (store.subscription === null) changed();
  });
  opened.addEventListener("series", (event) => { takeSeries(JSON.parse(event.data)); });
  opened.addEventListener("group", (event) => { takeGroup(JSON.parse(event.data)); changed(); });
}

function say(kind, text) {
  if (store.state.kind === kind && store.state.text === text) return;
  store.state = { kind, text };
  changed();
}

// "Live" is said only as long as it is true: of what is shown, and of Redis behind it.
function judge() {
  if (store.overview === null || source === null) return;
  const silent = Date.now() - newest;
  const patience = 4000 + 4 * (store.overview.took_ms ?? 0);
  if (store.overview.error) say("lost", "Redis does not answer");
  else if (silent > patience && store.state.kind !== "lost") say("late", `as it was ${Math.round(silent / 1000)} s ago`);
}
window.setInterval(judge, 1000);

document.addEventListener("visibilitychange", () => {
  window.clearTimeout(resting);
  if (document.hidden) {
    resting = window.setTimeout(() => {
      source?.close();
      source = null;
      say("rest", "resting: nobody looks");
    }, HIDDEN_MS);
  } else if (source === null && followed !== null) {
    store.group = null;
    open();
  }
});

// ------------------------------------------------------------ what came

function takeOverview(news) {
  newest = Date.now();
  if (news.whole) {
    store.groups.clear();
    store.spaces.clear();
    store.overview = news;
  } else {
    Object.assign(store.overview, news, { whole: true });
  }
  for (const one of news.groups ?? []) store.groups.set(one.subscription, one);
  for (const one of news.spaces ?? []) store.spaces.set(one.name, one);
  for (const name of news.gone_groups ?? []) store.groups.delete(name);
  for (const name of news.gone_spaces ?? []) store.spaces.delete(name);
  store.state = news.error ? { kind: "lost", text: "Redis does not answer" } : { kind: "live", text: "live" };
  if (newest - stepped >= STEP_MS) {
    stepped = newest;
    grow(store.series.groups, store.groups);
    grow(store.series.spaces, store.spaces);
  }
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

function takeSeries(news) {
  for (const what of ["groups", "spaces"]) {
    for (const [name, points] of Object.entries(news[what])) {
      if ((store.series[what].get(name)?.length ?? 0) <= points.length) store.series[what].set(name, points);
    }
  }
}

function takeGroup(news) {
  if (news.summary === undefined) { store.group = { missing: true }; return; }
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
