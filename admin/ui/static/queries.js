// Submitted queries with their workers and logs, and the executors that run them.

import { get, groupLink, html, moment, number, to, useEffect, useRef } from "./lib.js";
import { store } from "./live.js";
import { State, Table, useAnswer, useFilter, Waiting } from "./parts.js";
import { ActButton } from "./acts.js";

const time = (text) => text === null ? "–" : moment(Date.parse(text));
const word = (row) => row.outcome ?? row.state;

export function Queries() {
  const said = useAnswer((signal) => get("/api/look/queries", {}, signal), []);
  const [wanted, field] = useFilter();
  const seen = said.answer;
  const rows = (seen?.queries ?? []).filter((row) => `${row.query} ${row.name} ${row.state} ${row.outcome} ${row.who}`.toLowerCase().includes(wanted));
  const columns = [
    { title: "Query", value: (row) => row.name, show: (row) => html`<a href=${to("query", row.query)}>${row.name}</a>` },
    { title: "State", value: (row) => word(row), show: (row) => html`<${State} word=${word(row)} />` },
    { title: "Why", value: (row) => row.reason, show: (row) => row.reason || "–", grow: true },
    { title: "Workers", n: true, value: (row) => row.workers.length, show: (row) => number(row.workers.length) },
    { title: "Executors", value: (row) => row.workers.map((one) => one.executor).join(" "), show: (row) => [...new Set(row.workers.map((one) => one.executor))].join(" ") || "–" },
    { title: "Submitted", value: (row) => row.submitted, show: (row) => time(row.submitted) },
    { title: "By", value: (row) => row.who, show: (row) => row.who || "–" },
    { title: "Act", show: (row) => row.state === "ended" ? "" : html`<${ActButton} small name="terminate" about=${row.name} fixed=${{ query: row.query }} />` },
  ];
  const executors = [
    { title: "Executor", value: (row) => row.executor, show: (row) => row.executor },
    { title: "Slots", n: true, value: (row) => row.slots, show: (row) => `${number(row.busy)} / ${number(row.slots)}` },
    { title: "Labels", value: (row) => row.labels.join(" "), show: (row) => row.labels.map(([name, value]) => `${name}=${value}`).join(" ") || "–", grow: true },
    { title: "Ports", show: (row) => row.ports === null ? "–" : row.ports.join("–") },
    { title: "Host", value: (row) => row.host, show: (row) => row.host },
    { title: "Process", n: true, value: (row) => row.pid, show: (row) => row.pid },
  ];
  return html`<div class="head"><h1>Queries</h1>${field("Filter queries")}<button type="button" onClick=${said.repeat} disabled=${said.busy}>Look again</button></div>
    ${seen === null ? html`<${Waiting} of=${said} />` : html`<${Table} label="Queries" columns=${columns} rows=${rows} keyOf=${(row) => row.query} empty="No query was submitted." sort=${5} down />
    <h2>Executors</h2><${Table} id="executors" label="Executors" columns=${executors} rows=${seen.executors} keyOf=${(row) => row.executor} empty="There are no executors: start one with 'streamlease executor'." />`}`;
}

export function Query({ arg }) {
  const said = useAnswer((signal) => get("/api/look/query", { query: arg }, signal), [arg]);
  const seen = said.answer;
  if (seen === null) return html`<h1>${arg}</h1><${Waiting} of=${said} />`;
  const columns = [
    { title: "Worker", n: true, value: (row) => row.worker, show: (row) => row.worker },
    { title: "Executor", value: (row) => row.executor, show: (row) => row.executor, grow: true },
    { title: "Host", value: (row) => row.host, show: (row) => row.host },
    { title: "Port", n: true, value: (row) => row.port, show: (row) => row.port ?? "–" },
    { title: "Process", n: true, value: (row) => row.pid, show: (row) => row.pid ?? "–" },
    { title: "Exit", n: true, value: (row) => row.exit, show: (row) => row.exit ?? "–" },
  ];
  const other = (name, text) => name === null ? "" : html` <a href=${to("query", name)}>${text}</a>`;
  return html`<div class="head"><h1>${seen.name} <${State} word=${word(seen)} /></h1><button type="button" onClick=${said.repeat} disabled=${said.busy}>Look again</button>
      ${seen.state === "ended" ? "" : html`<${ActButton} name="terminate" about=${seen.name} fixed=${{ query: seen.query }} />`}</div>
    <p class="facts">${seen.query}; submitted by ${seen.who || "somebody"} ${time(seen.submitted)}${seen.ended ? `; ended ${time(seen.ended)}` : ""}${seen.reason ? `; ${seen.reason}` : ""}${other(seen.former, "in place of another")}${other(seen.next, "followed by another")}</p>
    ${seen.publishes.length + seen.reads.length > 0 ? html`<dl class="facts-list"><div><dt>Publishes</dt><dd>${seen.publishes.join(", ") || "–"}</dd></div>
      <div><dt>Reads</dt><dd>${seen.reads.length === 0 ? "–" : seen.reads.map((one) => store.groups.has(one) ? groupLink(one) : one).map((one) => html`<span class="block">${one}</span>`)}</dd></div></dl>` : ""}
    <h2>Workers</h2><${Table} id="workers" label="Workers" columns=${columns} rows=${seen.workers} keyOf=${(row) => row.worker} empty="No executor is chosen." />
    ${seen.logs.map((log) => html`<h2>Log of worker ${log.worker} <small>its end</small></h2><${Log} lines=${log.lines} />`)}`;
}

function Log({ lines }) {
  const holder = useRef(null);
  useEffect(() => { holder.current.scrollTop = holder.current.scrollHeight; }, [lines]);
  return html`<pre class="log" tabindex="0" ref=${holder}>${lines.map(([stream, text]) => stream === "err" ? html`<span class="err">${text}</span>` : text)}</pre>`;
}
