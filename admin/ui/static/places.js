// Leader hosts, services, and the catalog with its collections.

import { change, get, groupLink, html, number, spaceLink, spaceOf, to } from "./lib.js";
import { store } from "./live.js";
import { State, Table, Tabs, useAnswer, useFilter, Waiting } from "./parts.js";
import { ActButton } from "./acts.js";

export function Hosts() {
  const [wanted, field] = useFilter();
  const rows = store.overview.hosts.filter((row) => `${row.host} ${row.name}`.toLowerCase().includes(wanted));
  const columns = [
    { title: "Leader host", value: (row) => row.host, show: (row) => row.host, grow: true },
    { title: "Name", value: (row) => row.name, show: (row) => row.name },
    { title: "Process", n: true, value: (row) => row.pid, show: (row) => row.pid },
    { title: "Leaders", n: true, value: (row) => row.leaders, show: (row) => number(row.leaders) },
    { title: "State", value: (row) => row.drained, show: (row) => html`<${State} word=${row.drained ? "drained" : "alive"} />` },
    { title: "Act", show: (row) => html`<${ActButton} small name=${row.drained ? "undrain_host" : "drain_host"} about=${row.host} fixed=${{ host: row.host }} />` },
  ];
  return html`<div class="head"><h1>Leader hosts</h1>${field("Filter hosts")}</div>
    <${Table} label="Leader hosts" columns=${columns} rows=${rows} keyOf=${(row) => row.host} empty="There are no leader hosts: consumers lead by themselves." />`;
}

export function Services() {
  const said = useAnswer((signal) => get("/api/look/catalog", { name: "services" }, signal), [store.overview.processes.length]);
  const [wanted, field] = useFilter();
  const rows = (said.answer?.items ?? []).filter((row) => `${row.service} ${row.server} ${row.host}`.toLowerCase().includes(wanted));
  const columns = [
    { title: "Service", value: (row) => row.service, show: (row) => row.service },
    { title: "Requests", value: (row) => row.types.map(([name]) => name).join(" "), show: (row) => row.types.map(([name, print]) => html`<span title=${print}>${name} <small>${print.slice(0, 8)}</small></span> `), grow: true },
    { title: "Server", value: (row) => row.server, show: (row) => row.server },
    { title: "Host", value: (row) => row.host, show: (row) => row.host },
    { title: "Process", n: true, value: (row) => row.pid, show: (row) => row.pid },
  ];
  return html`<div class="head"><h1>Services</h1>${field("Filter services")}<button type="button" onClick=${said.repeat} disabled=${said.busy}>Look again</button></div>
    ${said.answer === null ? html`<${Waiting} of=${said} />` : html`<${Table} label="Servers of services" columns=${columns} rows=${rows} keyOf=${(row) => row.server} empty="Nobody serves anything." />`}`;
}

// What a field of an item leads to.
const LINKS = {
  subscription: (value) => groupLink(value),
  space: (value) => spaceLink(value),
  stream: (value) => html`<a href=${to("space", spaceOf(value), { tab: "messages", stream: value })}>${value}</a>`,
  topic: (value, row) => row.space ? html`<a href=${to("space", row.space, { tab: "messages", topic: value })}>${value}</a>` : value,
  process: (value) => html`<a href=${to("catalog", "borrowers", { like: value })}>${value}</a>`,
  query: (value) => html`<a href=${to("query", value)}>${value}</a>`,
  executor: (value) => html`<a href=${to("catalog", "executors", { like: value })}>${value}</a>`,
  service: (value) => html`<a href=${to("services")}>${value}</a>`,
};

const NAMES = new Set(["pid", "port", "worker", "generation", "term", "lease_epoch"]); // numbers that count nothing

function shown(name, value, row) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return NAMES.has(name) ? value : number(value);
  if (Array.isArray(value)) return value.map((one) => Array.isArray(one) ? one.join("=") : typeof one === "object" ? Object.values(one).filter((part) => part !== null).join(":") : String(one)).join(" ");
  if (typeof value === "object") return JSON.stringify(value);
  return LINKS[name]?.(value, row) ?? value;
}

export function Catalog({ arg, query }) {
  const name = arg || "publications", like = query.like ?? "";
  const said = useAnswer((signal) => get("/api/look/catalog", { name, like }, signal), [name, like]);
  const seen = said.answer;
  const columns = (seen?.fields ?? []).map((field) => ({
    title: field.replaceAll("_", " "), n: seen.items.some((one) => typeof one[field] === "number"),
    value: (row) => Array.isArray(row[field]) ? row[field].join(" ") : row[field], show: (row) => shown(field, row[field], row),
  }));
  return html`<h1>Catalog</h1>
    <${Tabs} now=${name} link=${(one) => to("catalog", one)} tabs=${(seen?.collections ?? [name]).map((one) => [one, one])} />
    <form class="head" onSubmit=${(event) => { event.preventDefault(); change({ like: event.target.elements.like.value }); }}>
      <input class="filter" type="search" name="like" key=${`${name} ${like}`} defaultValue=${like} placeholder="With this text" aria-label="With this text" />
      <button type="submit">Find</button><button type="button" onClick=${said.repeat} disabled=${said.busy}>Look again</button>
      ${seen ? html`<span class="more" role="status">${number(seen.found)}${seen.found === seen.in_all ? "" : ` of ${number(seen.in_all)}`}</span>` : ""}</form>
    ${seen === null ? html`<${Waiting} of=${said} />` : html`<${Table} key=${name} label=${name} columns=${columns} rows=${seen.items} keyOf=${(row) => JSON.stringify(row)} empty=${`There are no ${name}.`} />`}`;
}
