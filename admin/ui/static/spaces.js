// Spaces: the list, and one space with its messages, topics, streams, groups and epochs.

import { age, bytes, change, get, groupLink, html, moment, number, plural, rate, short, spaceLink, to } from "./lib.js";
import { store } from "./live.js";
import { Facts, Missing, Spark, State, Table, Tabs, useAnswer, useFilter, Waiting } from "./parts.js";
import { ActButton } from "./acts.js";
import { Messages } from "./messages.js";
import { Chart } from "./pictures.js";

const duration = (milliseconds) => milliseconds === null ? "for ever" : age(milliseconds / 1000);

export function Spaces() {
  const [wanted, field] = useFilter();
  const rows = [...store.spaces.values()].filter((row) => `${row.name} ${row.topics.join(" ")}`.toLowerCase().includes(wanted));
  const columns = [
    { title: "Space", value: (row) => row.name, show: (row) => spaceLink(row.name) },
    { title: "Topics", value: (row) => row.topics.join(" "), show: (row) => row.topics.join(" "), grow: true },
    { title: "Published", n: true, value: (row) => row.rate, show: (row) => rate(row.rate) },
    { title: "", show: (row) => html`<${Spark} points=${store.series.spaces.get(row.name)} />` },
    { title: "Messages", n: true, value: (row) => row.messages, show: (row) => number(row.messages) },
    { title: "Size", n: true, value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
    { title: "Streams", n: true, value: (row) => row.streams, show: (row) => number(row.streams) },
    { title: "Generation", n: true, value: (row) => row.generations.at(-1).number, show: (row) => row.generations.at(-1).number },
    { title: "Durability", value: (row) => row.durability, show: (row) => row.durability },
    { title: "Held back by", value: (row) => row.held_by.join(" "), show: (row) => row.held_by.length === 0 ? "–" : html`${row.held_by[0]}${row.held_by.length > 1 ? ` and ${row.held_by.length - 1} more` : ""}` },
    { title: "Since", value: (row) => row.held_since, show: (row) => row.held_since === null ? "–" : moment(row.held_since / 1000) },
  ];
  return html`<div class="head"><h1>Spaces</h1>${field("Filter spaces")}</div>
    <${Table} label="Spaces" columns=${columns} rows=${rows} keyOf=${(row) => row.name} empty="There are no spaces." sort=${0} />`;
}

export function Space({ arg, query }) {
  const row = store.spaces.get(arg), tab = query.tab ?? "whole";
  if (row === undefined) return html`<h1>${arg}</h1><${Missing} kind="space" name=${arg} />`;
  const tabs = [["whole", "Overview"], ["messages", "Messages"], ["topics", "Topics"], ["streams", "Streams", number(row.streams)]];
  if (row.epochs > 0) tabs.push(["epochs", "Epochs"]);
  if (row.archive) tabs.push(["archive", "Archive"]);
  return html`<div class="head"><h1>${arg} ${row.ended ? html`<${State} word="ended" />` : ""}</h1><${ActButton} name="publish" about=${`into space ${arg}`} start=${{ topic: query.topic ?? row.topics[0].replace(/[/]?#$/, ""), ...(row.collection ? { diff: 1 } : {}) }} label="Publish" /><${ActButton} name="alter_space" about=${`space ${arg}`} fixed=${{ space: arg, from_generation: row.generations.at(-1).number }} /></div>
    <p class="facts">${row.topics.join(" ")}</p>
    <${Tabs} now=${tab} link=${(name) => to("space", arg, { tab: name === "whole" ? "" : name })} tabs=${tabs} />
    ${tab === "messages" ? html`<${Messages} space=${row} query=${query} />` : tab === "topics" ? html`<${Topics} name=${arg} query=${query} />` : tab === "archive" ? html`<${Archive} name=${arg} />` : html`<${Details} row=${row} tab=${tab} />`}`;
}

function Details({ row, tab }) {
  const said = useAnswer((signal) => get("/api/look/space", { space: row.name }, signal), [row.name, tab]);
  const again = html`<button type="button" class="small" onClick=${said.repeat} disabled=${said.busy}>Look again</button>`;
  if (tab === "whole") return html`<${Whole} row=${row} seen=${said.answer} />${said.answer === null ? html`<${Waiting} of=${said} />` : ""}`;
  if (said.answer === null) return html`<${Waiting} of=${said} />`;
  return tab === "epochs" ? html`<${Epochs} seen=${said.answer} again=${again} />` : html`<${Streams} seen=${said.answer} again=${again} />`;
}

const lettersOf = ({ subscription }) => store.groups.get(subscription)?.dead_letters ?? null;

function Whole({ row, seen }) {
  const { retention } = row, points = store.series.spaces.get(row.name) ?? [];
  const now = store.overview.time;
  const columns = [
    { title: "Group", value: (one) => one.subscription, show: (one) => groupLink(one.subscription), grow: true },
    { title: "State", value: (one) => store.groups.get(one.subscription)?.state, show: (one) => html`<${State} word=${store.groups.get(one.subscription)?.state ?? "idle"} />` },
    { title: "Behind", n: true, value: (one) => one.behind, show: (one) => number(one.behind) },
    { title: "Dead letters", n: true, value: (one) => lettersOf(one), show: (one) => lettersOf(one) ? html`<a href=${to("group", one.subscription, { tab: "letters" })}>${number(lettersOf(one))}</a>` : number(lettersOf(one)) },
    { title: "Idle", n: true, value: (one) => one.idle_seconds, show: (one) => age(one.idle_seconds) },
    { title: "Expires after", n: true, value: (one) => one.expires_after_seconds, show: (one) => age(one.expires_after_seconds) },
  ];
  return html`<${Facts} items=${[
    ["Published", rate(row.rate)], ["Messages", short(row.messages)], ["Size", bytes(row.bytes)], ["Streams", number(row.streams)],
    ["Generation", row.generations.at(-1).number, row.generations.length > 1 ? ` of ${row.generations.length} kept` : ""],
  ]} />
  <div class="columns">
    <${Chart} title="Messages per second" times=${points.map((_, place) => now - (points.length - 1 - place) * 2000)} series=${[{ label: "Messages per second", points, stroke: "#3b7dd8" }]} told=${`Messages per second: ${rate(row.rate)} now`} />
    <dl class="facts-list">
      <div><dt>Retention</dt><dd>${[retention.age_ms === null ? "" : duration(retention.age_ms), retention.bytes === null ? "" : bytes(retention.bytes), retention.messages === null ? "" : plural(retention.messages, "message")].filter(Boolean).join(", ") || "keeps everything"}${retention.force ? ", whatever groups need" : ""}</dd></div>
      <div><dt>Held back by</dt><dd>${row.held_by.length === 0 ? "nobody" : row.held_by.slice(0, 5).map((one) => html`<span class="block">${one.startsWith("$") ? groupLink(one) : one}</span>`)}${row.held_since === null ? "" : ` since ${moment(row.held_since / 1000)}`}</dd></div>
      <div><dt>Durability</dt><dd>${row.durability}</dd></div>
      <div><dt>Streams by</dt><dd>${row.shard_by} (${row.shard_hash})</dd></div>
      <div><dt>Small entries</dt><dd>${row.compact_after_ms === null ? "are not merged" : `are merged after ${duration(row.compact_after_ms)}`}</dd></div>
      <div><dt>Generations</dt><dd>${row.generations.map((one) => html`<span class="block">${one.number}: ${plural(one.streams, "stream")}${one.sealed ? ", sealed" : ""}</span>`)}</dd></div>
      ${row.epochs > 0 ? html`<div><dt>Epochs</dt><dd>${plural(row.epochs, "dimension")}; a publisher is lost after ${duration(row.epochs_timeout_ms)}: ${row.epochs_on_loss}</dd></div>` : ""}
      ${row.collection ? html`<div><dt>Collection</dt><dd>its messages are changes of a multiset</dd></div>` : ""}
      ${row.schema ? html`<div><dt>Columns</dt><dd>${row.schema.columns.map((one) => html`<span class="block"><code>${one.name}</code> ${one.type}${one.nullable ? "" : ", never null"}</span>`)}</dd></div>` : ""}
      ${row.archive ? html`<div><dt>Archive</dt><dd><a href=${to("space", row.name, { tab: "archive" })}>${row.archive.uri}</a>${row.archive.keep_ms === null ? "" : `; ${duration(row.archive.keep_ms)} stay in memory`}${row.archive.keep_bytes === null ? "" : `; ${bytes(row.archive.keep_bytes)} stay in memory`}</dd></div>` : ""}
    </dl>
  </div>
  ${seen === null ? "" : html`<h2>Groups that read it</h2><${Table} label="Groups that read it" columns=${columns} rows=${seen.groups} keyOf=${(one) => one.subscription} empty="No group reads it." sort=${2} down />`}`;
}

function Streams({ seen, again }) {
  const [wanted, field] = useFilter();
  const rows = seen.streams.filter((row) => `${row.stream} ${row.state} ${row.held_by ?? ""}`.toLowerCase().includes(wanted));
  const columns = [
    { title: "Stream", value: (row) => row.stream, show: (row) => html`<a href=${to("space", seen.name, { tab: "messages", stream: row.stream })}>${row.stream}</a>` },
    { title: "State", value: (row) => row.state, show: (row) => html`<${State} word=${row.state ?? "stopped"}>${row.state ?? "lost"}</${State}>` },
    { title: "Oldest", n: true, value: (row) => row.oldest, show: (row) => number(row.oldest) },
    { title: "Next", n: true, value: (row) => row.next, show: (row) => number(row.next) },
    { title: "Size", n: true, value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
    { title: "Last append", value: (row) => row.last_append, show: (row) => row.last_append === null ? "–" : moment(Date.parse(row.last_append)) },
    { title: "Held by", value: (row) => row.held_by, show: (row) => row.held_by === null ? "–" : row.held_by.startsWith("$") ? groupLink(row.held_by) : row.held_by, grow: true },
    { title: "From", n: true, value: (row) => row.held_from, show: (row) => number(row.held_from) },
  ];
  return html`<div class="head"><h2>Streams</h2>${field("Filter streams")}${again}${seen.streams_in_all > seen.streams.length ? html`<span class="more">the newest ${number(seen.streams.length)} of ${number(seen.streams_in_all)}</span>` : ""}</div>
    <${Table} label="Streams" columns=${columns} rows=${rows} keyOf=${(row) => row.stream} empty="No stream matches." sort=${0} />`;
}

const share = (part, whole) => whole > 0 ? `${Math.floor(100 * part / whole)} %` : "–";
const micros = (value) => value === null ? "–" : moment(value / 1000);

function Archive({ name }) {
  const said = useAnswer((signal) => get("/api/look/archive", { space: name }, signal), [name]);
  const [wanted, field] = useFilter();
  const seen = said.answer;
  if (seen === null) return html`<${Waiting} of=${said} />`;
  const streams = [
    { title: "Stream", value: (row) => row.stream, show: (row) => html`<a href=${to("space", name, { tab: "messages", stream: row.stream })}>${row.stream}</a>`, grow: true },
    { title: "In files from", n: true, value: (row) => row.first, show: (row) => row.files > 0 ? number(row.first) : "–" },
    { title: "In files up to", n: true, value: (row) => row.archived, show: (row) => number(row.archived) },
    { title: "In memory from", n: true, value: (row) => row.memory, show: (row) => number(row.memory) },
    { title: "Next", n: true, value: (row) => row.next, show: (row) => number(row.next) },
    { title: "Not archived yet", n: true, value: (row) => row.next - row.archived, show: (row) => number(row.next - row.archived) },
    { title: "Archived", n: true, value: (row) => row.next > 0 ? row.archived / row.next : null, show: (row) => share(row.archived, row.next) },
    { title: "Files", n: true, value: (row) => row.files, show: (row) => number(row.files) },
    { title: "Size", n: true, value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
    { title: "Oldest message", value: (row) => row.since_us, show: (row) => micros(row.since_us) },
    { title: "Newest archived", value: (row) => row.until_us, show: (row) => micros(row.until_us) },
  ];
  const files = [
    { title: "Newest message", value: (row) => row.until_us, show: (row) => micros(row.until_us) },
    { title: "Stream", value: (row) => row.stream, show: (row) => html`<a href=${to("space", name, { tab: "messages", stream: row.stream, at: String(row.first), order: "oldest" })}>${row.stream}</a>` },
    { title: "From", n: true, value: (row) => row.first, show: (row) => number(row.first) },
    { title: "Messages", n: true, value: (row) => row.next - row.first, show: (row) => number(row.next - row.first) },
    { title: "Size", n: true, value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
    { title: "File", value: (row) => row.path, show: (row) => html`<code>${row.path}</code>`, grow: true },
  ];
  const matches = (row) => `${row.stream} ${row.path ?? ""}`.toLowerCase().includes(wanted);
  return html`<p class="facts">Table <code>${seen.table}</code> at ${seen.uri}</p>
    <${Facts} items=${[["In files", short(seen.archived), " messages"], ["Not archived yet", short(seen.waiting), " messages"], ["Files", number(seen.files_in_all)], ["Size", bytes(seen.bytes)]]} />
    <div class="head"><h2>Streams</h2>${field("Filter by stream or file")}<button type="button" class="small" onClick=${said.repeat} disabled=${said.busy}>Look again</button></div>
    <${Table} id="archived-streams" label="Archived streams" columns=${streams} rows=${seen.streams.filter(matches)} keyOf=${(row) => row.stream} empty="No stream matches." sort=${5} down />
    <h2>Newest files</h2>
    <${Table} id="archived-files" label="Newest files of the archive" columns=${files} rows=${seen.files.filter(matches)} keyOf=${(row) => row.path} empty=${seen.files_in_all > seen.files.length ? `${number(seen.files_in_all)} files are too many to list them here.` : "There are no files yet."} sort=${0} down />`;
}

const frontier = (epochs) => epochs === null || epochs.length === 0 ? "–" : epochs.map((one) => one.length === 1 ? one[0] : `(${one.join(", ")})`).join(" ");

function Epochs({ seen, again }) {
  const found = seen.frontiers;
  const columns = [
    { title: "Publisher", value: (row) => row.name, show: (row) => row.name, grow: true },
    { title: "Host", value: (row) => row.host, show: (row) => row.host },
    { title: "Holds", show: (row) => frontier(row.frontier) },
    { title: "Holds back", show: (row) => frontier(row.holds_back) },
    { title: "Staged", n: true, value: (row) => row.staged, show: (row) => number(row.staged) },
    { title: "Silent for", n: true, value: (row) => row.silent_seconds, show: (row) => age(row.silent_seconds) },
    { title: "Act", show: (row) => html`<${ActButton} small name="abort_publisher" about=${row.name} fixed=${{ space: seen.name, publisher: row.name }} />` },
  ];
  return html`<${Facts} items=${[["Lower frontier", frontier(found.lower)], ["Upper frontier", frontier(found.upper)], ["Boundary", number(found.boundary)], ["Where it is for", age(found.frontier_seconds)], found.lost > 0 ? ["Lost", number(found.lost)] : null]} />
    ${found.behind ? html`<p class="note">The lower frontier is beyond the newest boundary: a keeper is at it, or there is none.</p>` : ""}
    <div class="head"><h2>Publishers</h2>${again}</div>
    <${Table} label="Publishers of epochs" columns=${columns} rows=${found.publishers} keyOf=${(row) => row.name} empty="No publisher is there." />`;
}

function Topics({ name, query }) {
  const like = query.like ?? "";
  const said = useAnswer((signal) => get("/api/look/topics", { space: name, like }, signal), [name, like]);
  const seen = said.answer;
  const columns = [
    { title: "Topic", value: (row) => row.topic, show: (row) => html`<a href=${to("space", name, { tab: "messages", topic: row.topic })}>${row.topic}</a>`, grow: true },
    { title: "Publishers now", n: true, value: (row) => row.publishers, show: (row) => number(row.publishers) },
  ];
  return html`<form class="head" onSubmit=${(event) => { event.preventDefault(); change({ like: event.target.elements.like.value }); }}>
      <input class="filter" type="search" name="like" key=${like} defaultValue=${like} placeholder="With this text" aria-label="Topics with this text" />
      <button type="submit">Find</button><button type="button" onClick=${said.repeat} disabled=${said.busy}>Look again</button>
      ${seen ? html`<span class="more" role="status">${number(seen.found)}${seen.found === seen.in_all ? "" : ` of ${number(seen.in_all)}`} topics</span>` : ""}</form>
    ${seen === null ? html`<${Waiting} of=${said} />` : html`<${Table} id="topics" label="Topics" columns=${columns} rows=${seen.topics} keyOf=${(row) => row.topic} empty="Nobody has published to it." />`}`;
}
