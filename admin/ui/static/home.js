// The whole at a glance: what needs attention, and how messages flow from publishers to consumers.

import { age, groupLink, html, number, plural, rate, short, spaceLink, to, useState } from "./lib.js";
import { store } from "./live.js";
import { Facts, Spark, State, WORST } from "./parts.js";
import { ActButton } from "./acts.js";

const MOST = 8; // of each kind in the picture
const ROW = 52;

export function Home() {
  const seen = store.overview, groups = [...store.groups.values()], spaces = [...store.spaces.values()];
  const sum = (rows, value) => rows.reduce((all, row) => all === null || value(row) === null ? null : all + value(row), 0);
  // The rate of what is new is not known at once: the others are added up, and it is said of how many there is none.
  const rates = (rows) => {
    const unknown = rows.filter((row) => row.rate === null).length;
    return unknown === 0 ? [rate(sum(rows, (row) => row.rate))] : unknown === rows.length ? [rate(null)] : [rate(sum(rows, (row) => row.rate ?? 0)), ` and ${unknown} not known yet`];
  };
  const oldest = groups.reduce((most, row) => row.lag_seconds === null || most === null ? null : Math.max(most, row.lag_seconds), 0);
  const consumers = sum(groups, (row) => row.borrowers);
  return html`<h1 class="hidden">Overview</h1>
    <${Facts} items=${[
      ["Published", ...rates(spaces)],
      ["Consumed", ...rates(groups)],
      ["Lag", short(sum(groups, (row) => row.lag))],
      ["Oldest waits", age(oldest)],
      ["Spaces", number(spaces.length), ` ${plural(sum(spaces, (row) => row.streams), "stream")}`],
      ["Groups", number(groups.length), ` ${plural(consumers, "consumer")}`],
      ["Leader hosts", number(seen.hosts.length)],
    ]} />
    <${Attention} concerns=${seen.concerns} />
    <${Flow} seen=${seen} groups=${groups} spaces=${spaces} />`;
}

const MORE = { why: "why streams wait", letters: "dead letters", streams: "its streams", epochs: "its epochs" };
const placeOf = (one) => one.subscription ? groupLink(one.subscription) : one.space ? spaceLink(one.space) : one.host ? html`<a href=${to("hosts")}>${one.host}</a>` : one.query ? html`<a href=${to("query", one.query)}>query</a>` : "";
// What the act is about, but for a stream, which its dialog shows as a field.
const fixedOf = ({ subscription, about: { stream, ...known } = {} }) => subscription ? { subscription, ...known } : known;

function Attention({ concerns }) {
  const [all, setAll] = useState(false);
  const shown = all ? concerns : concerns.slice(0, 6);
  return html`<h2>Needs attention${concerns.length > 0 ? html` <small>${concerns.length}</small>` : ""}</h2>
    ${concerns.length === 0 ? html`<p class="fine" id="attention"><${State} word="held">Nothing: every group is led, and keeps up.</${State}></p>` : html`
    <ul class="attention" id="attention">${shown.map((one) => html`<li class=${one.level}>
      <${State} word=${one.level}>${one.level === "bad" ? "act" : "look"}</${State}>
      <span class="what">${placeOf(one)} <span>${one.text}</span></span>
      <span class="helps">${one.tab ? html`<a href=${one.subscription ? to("group", one.subscription, { tab: one.tab }) : to("space", one.space, { tab: one.tab })}>${MORE[one.tab]}</a>` : ""}
      ${(one.acts ?? []).map((name) => html`<${ActButton} small name=${name} about=${one.about?.publisher ?? one.about?.host ?? one.about?.subscription ?? one.subscription} fixed=${fixedOf(one)} start=${one.about ?? {}} />`)}</span>
    </li>`)}</ul>
    ${concerns.length > 6 ? html`<button type="button" class="small" onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show all ${concerns.length}`}</button>` : ""}`}`;
}

// ------------------------------------------------------------ the flow

function columnsOf(seen, groups, spaces) {
  const rank = new Map(WORST.map((word, place) => [word, place]));
  const severity = (group) => group.lag === null ? -1 : rank.get(group.state) < 6 && group.lag > 0 ? rank.get(group.state) : 6;
  groups = [...groups].sort((one, other) => severity(one) - severity(other) || (other.lag ?? 0) - (one.lag ?? 0) || (other.rate ?? 0) - (one.rate ?? 0));
  const worst = new Map();
  groups.forEach((group, place) => group.spaces.forEach((name) => { if (!worst.has(name) && severity(group) < 6) worst.set(name, place); }));
  spaces = [...spaces].sort((one, other) => (other.lost > 0) - (one.lost > 0) || (worst.get(one.name) ?? 1e9) - (worst.get(other.name) ?? 1e9) || (other.rate ?? 0) - (one.rate ?? 0));
  const shownSpaces = new Set(spaces.slice(0, MOST).map((one) => one.name)), shownGroups = new Set(groups.slice(0, MOST).map((one) => one.subscription));
  const touching = (names, shown) => Object.keys(names).some((name) => shown.has(name));
  const byUse = (field, shown) => (one, other) => touching(other[field], shown) - touching(one[field], shown);
  const publishers = seen.processes.filter((one) => Object.keys(one.publishes).length > 0).sort(byUse("publishes", shownSpaces));
  const consumers = seen.processes.filter((one) => Object.keys(one.consumes).length > 0).sort(byUse("consumes", shownGroups));
  return [publishers, spaces, groups, consumers];
}

const nameOf = (process) => process.query ? `query ${process.query}` : process.query_names.join(", ") || process.host;

function Flow({ seen, groups, spaces }) {
  const [publishers, sortedSpaces, sortedGroups, consumers] = columnsOf(seen, groups, spaces);
  const columns = [
    { title: "Publishers", rows: publishers, all: seen.publishing, key: (one) => one.process, link: to("catalog", "publications"), empty: "nobody publishes now",
      node: (one) => html`<a class="node" href=${one.query ? to("query", one.query) : to("catalog", "publications", { like: one.process })}><b>${nameOf(one)}</b><small>pid ${one.pid} · ${plural(Object.values(one.publishes).reduce((all, n) => all + n, 0), "topic")}</small></a>` },
    { title: "Spaces", rows: sortedSpaces, key: (one) => one.name, link: to("spaces"), empty: "no spaces",
      node: (one) => html`<a class="node" href=${to("space", one.name)}><b>${one.name}</b><${Spark} points=${store.series.spaces.get(one.name)} width=${56} /><small>${rate(one.rate)} · ${short(one.messages)} kept</small></a>` },
    { title: "Groups", rows: sortedGroups, key: (one) => one.subscription, link: to("groups"), empty: "no groups",
      node: (one) => html`<a class="node" href=${to("group", one.subscription)}><b>${one.subscription}</b><${Spark} points=${store.series.groups.get(one.subscription)} width=${56} /><small><${State} word=${one.state} /> ${rate(one.rate)} · lag ${short(one.lag)}${one.lag > 0 ? ` · ${age(one.lag_seconds)}` : ""}</small></a>` },
    { title: "Consumers", rows: consumers, all: seen.consuming, key: (one) => one.process, link: to("catalog", "borrowers"), empty: "nobody consumes now",
      node: (one) => html`<a class="node" href=${one.query ? to("query", one.query) : to("catalog", "borrowers", { like: one.process })}><b>${nameOf(one)}</b><small>pid ${one.pid} · ${plural(Object.values(one.consumes).reduce((all, n) => all + n, 0), "borrower")}</small></a>` },
  ];
  const places = columns.map(({ rows, key }) => new Map(rows.map((row, place) => [key(row), Math.min(place, MOST)])));
  const edges = [];
  const join = (column, from, to, weight, live) => {
    if (from === undefined || to === undefined) return;
    const found = edges.find((one) => one.column === column && one.from === from && one.to === to);
    if (found) { found.weight += weight; found.live ||= live; } else edges.push({ column, from, to, weight, live });
  };
  for (const one of publishers) for (const name of Object.keys(one.publishes)) join(0, places[0].get(one.process), places[1].get(name), 0.5, (store.spaces.get(name)?.rate ?? 0) > 0);
  for (const one of groups) for (const name of one.spaces) join(1, places[1].get(name), places[2].get(one.subscription), one.rate ?? 0, (one.rate ?? 0) > 0);
  for (const one of consumers) for (const name of Object.keys(one.consumes)) join(2, places[2].get(name), places[3].get(one.process), 0.5, (store.groups.get(name)?.rate ?? 0) > 0);
  // The same for who cannot see the lines.
  const named = [publishers, sortedSpaces, sortedGroups, consumers].map((rows, column) => [...rows.slice(0, MOST).map([nameOf, (one) => one.name, (one) => one.subscription, nameOf][column]), "others"]);
  const told = edges.map(({ column, from, to: target, live }) => {
    const [what, word] = [["published", "into"], ["read", "by"], ["consumed", "by"]][column];
    return [`${column} ${from} ${target}`, `${what}: ${named[column][from]} ${word} ${named[column + 1][target]}${live ? "" : ", nothing now"}`];
  });
  const rows = Math.max(1, ...columns.map(({ rows }) => Math.min(rows.length, MOST + 1)));
  const height = rows * ROW;
  return html`<h2>Flow</h2><div class="flow">
    <svg viewBox="0 0 100 ${height}" preserveAspectRatio="none" height=${height} aria-hidden="true">${edges.map(({ column, from, to: target, weight, live }) => {
      const left = column * 26.4 + 20.8, right = (column + 1) * 26.4, y1 = from * ROW + ROW / 2 - 3, y2 = target * ROW + ROW / 2 - 3;
      return html`<path key=${`${column} ${from} ${target}`} class=${live ? "live" : ""} stroke-width=${(1 + Math.min(5, Math.log10(1 + weight))).toFixed(1)} d="M${left},${y1} C${left + 3},${y1} ${right - 3},${y2} ${right},${y2}" />`;
    })}</svg>
    ${columns.map(({ title, rows, all = rows.length, key, node, link, empty }) => html`<section aria-label=${title}><h3>${title} <small>${number(all)}</small></h3><ul>
      ${rows.length === 0 ? html`<li class="none">${empty}</li>` : rows.slice(0, MOST).map((row) => html`<li key=${key(row)}>${node(row)}</li>`)}
      ${all > MOST ? html`<li><a class="node rest" href=${link}>and ${number(all - Math.min(rows.length, MOST))} more</a></li>` : ""}</ul></section>`)}
    <ul id="flows" class="hidden" aria-label="What flows where">${told.map(([key, text]) => html`<li key=${key}>${text}</li>`)}</ul>
  </div>`;
}
