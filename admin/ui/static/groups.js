// Groups: the list, and one group with its streams, why they wait, its consumers, dead letters and history.

import { age, bytes, change, clock, get, groupLink, html, moment, number, plural, rate, short, spaceLink, spaceOf, to, useEffect, useState } from "./lib.js";
import { store } from "./live.js";
import { Facts, Missing, Spark, State, Table, Tabs, useAnswer, useFilter, Waiting, WORST } from "./parts.js";
import { ActButton, canAct, OF_GROUP } from "./acts.js";
import { Chart, HeatMap, OwnerMap } from "./pictures.js";
import { Text } from "./messages.js";

export function Groups() {
  const [wanted, field] = useFilter();
  const rows = [...store.groups.values()].filter((group) => `${group.subscription} ${group.state} ${group.leader ?? ""}`.toLowerCase().includes(wanted));
  const columns = [
    { title: "Subscription", value: (row) => row.subscription, show: (row) => groupLink(row.subscription), grow: true },
    { title: "State", value: (row) => WORST.indexOf(row.state), show: (row) => html`<${State} word=${row.state} />` },
    { title: "Lag", n: true, value: (row) => row.lag, show: (row) => number(row.lag) },
    { title: "Oldest waits", n: true, value: (row) => row.lag_seconds, show: (row) => age(row.lag_seconds) },
    { title: "Consumed", n: true, value: (row) => row.rate, show: (row) => rate(row.rate) },
    { title: "", show: (row) => html`<${Spark} points=${store.series.groups.get(row.subscription)} />` },
    { title: "Streams held", n: true, value: (row) => row.streams, show: (row) => `${number(row.held)} / ${number(row.streams)}` },
    { title: "Consumers", n: true, value: (row) => row.borrowers, show: (row) => number(row.borrowers) },
    { title: "Moves", n: true, value: (row) => row.moves, show: (row) => number(row.moves) },
    { title: "Leader", value: (row) => row.leader, show: (row) => row.leader ?? "–" },
    { title: "Term", n: true, value: (row) => row.term, show: (row) => row.term },
  ];
  return html`<div class="head"><h1>Groups</h1>${field("Filter groups")}</div>
    <${Table} label="Groups" columns=${columns} rows=${rows} keyOf=${(row) => row.subscription} empty="There are no groups." sort=${2} down />`;
}

export function Group({ arg, query }) {
  const group = store.group;
  if (group === null) return html`<h1>${arg}</h1><p class="facts" role="status">reading…</p>`;
  if (group.missing) return html`<h1>${arg}</h1><${Missing} kind="group" name=${arg} />`;
  const { leader, term, borrowers, streams, held, moves, lag, expired, state, lag_seconds, rate: speed, spaces, dead_letters, stopped, paused_by, paused_since } = group.summary;
  const tab = query.tab ?? "streams";
  const owners = [...new Set([...group.rows.values()].map((row) => row[1]))].filter((owner) => owner !== null).sort();
  const fixed = { subscription: arg };
  return html`<h1>${arg} <${State} word=${state} /></h1>
    <p class="facts">${leader === null ? `no leader since term ${term}, so its ${plural(streams, "stream")} are held by nobody, and are shown as that one left them; ${plural(borrowers, "consumer")}` : `led by ${leader}, term ${term}; ${number(held)} of ${plural(streams, "stream")} held by ${plural(borrowers, "consumer")}`}; ${plural(moves, "move")}; lag ${number(lag)}${expired ? "; expired: it keeps no messages" : ""}; reads ${spaces.map((name, place) => html`${place > 0 ? ", " : ""}${spaceLink(name)}`)}</p>
    ${state === "paused" ? html`<p class="note">Paused by ${paused_by} since ${moment(paused_since)}. <${ActButton} small name="resume" about=${arg} fixed=${fixed} /></p>` : ""}
    ${stopped.length > 0 ? html`<p class="note bad">${plural(stopped.length, "stream")} stopped at a message that failed: ${stopped.slice(0, 5).join(", ")}. <${ActButton} small name="retry" about=${arg} fixed=${fixed} start=${{ stream: stopped[0] }} /> <${ActButton} small name="dead_letter" about=${arg} fixed=${fixed} start=${{ stream: stopped[0] }} /></p>` : ""}
    ${canAct() ? html`<div class="acts">${OF_GROUP.map((name) => html`<${ActButton} name=${name} about=${arg} fixed=${fixed} borrowers=${owners} />`)}</div>` : ""}
    <${Facts} items=${[["Lag", short(lag)], ["Oldest waits", age(lag_seconds)], ["Consumed", rate(speed)], ["Streams held", `${number(held)} / ${number(streams)}`], ["Consumers", number(borrowers)], ["Dead letters", number(dead_letters)]]} />
    <div class="columns">
      <${Chart} title="Lag over time, in messages" times=${group.lag.map(([time]) => time)} series=${[{ label: "Lag", points: group.lag.map(([, value]) => value), stroke: "#3b7dd8" }]} told=${`Lag over time: ${number(lag)} now`} />
      <${OwnerMap} group=${group} />
    </div>
    <${Tabs} now=${tab} link=${(name) => to("group", arg, { tab: name === "streams" ? "" : name })} tabs=${[["streams", "Streams and events"], ["heat", "Lag by stream"], ["why", "Why streams wait"], ["letters", "Dead letters", number(dead_letters)]]} />
    ${tab === "heat" ? html`<${Heat} subscription=${arg} />` : tab === "why" ? html`<${Why} subscription=${arg} like=${query.like ?? ""} />` : tab === "letters" ? html`<${Letters} subscription=${arg} />` : html`
    <div class="columns wide">
      <${Streams} group=${group} fixed=${fixed} />
      <div><div class="head"><h2>What happened</h2></div><${Events} events=${group.events} /></div>
    </div>`}`;
}

const cell = (stream) => html`<a href=${to("space", spaceOf(stream), { tab: "messages", stream })}>${stream}</a>`;

function Streams({ group, fixed }) {
  const [wanted, field] = useFilter();
  const rows = [...group.rows.values()].filter((row) => wanted === "" || row.slice(0, 4).join(" ").toLowerCase().includes(wanted));
  const columns = [
    { title: "Stream", value: (row) => row[0], show: (row) => cell(row[0]) },
    { title: "Owner", value: (row) => row[1], show: (row) => row[1] ?? "–", grow: true },
    { title: "Lease epoch", n: true, value: (row) => row[2], show: (row) => row[2] },
    { title: "State", value: (row) => row[3], show: (row) => html`<${State} word=${row[3]} />` },
    { title: "Committed", n: true, value: (row) => row[4], show: (row) => number(row[4]) },
    { title: "Next", n: true, value: (row) => row[5], show: (row) => number(row[5]) },
    { title: "Lag", n: true, value: (row) => row[6], show: (row) => number(row[6]) },
  ];
  return html`<div><div class="head"><h2>Streams</h2>${field("Filter by stream, owner or state")}</div>
    <${Table} label="Streams" columns=${columns} rows=${rows} keyOf=${(row) => row[0]} empty="No stream matches." sort=${6} down /></div>`;
}

function Heat({ subscription }) {
  const [{ heat, error }, set] = useState({ heat: null, error: null });
  useEffect(() => {
    let gone = false;
    const look = () => get("/api/heat", { subscription }).then(
      (found) => { if (!gone) set({ heat: found, error: null }); },
      (failed) => { if (!gone) set((before) => ({ ...before, error: failed.message })); },
    );
    look();
    const timer = window.setInterval(() => { if (!document.hidden) look(); }, 5000);
    return () => { gone = true; window.clearInterval(timer); };
  }, [subscription]);
  return html`${error === null ? "" : html`<p class="problem" role="alert">${heat === null ? "" : "Not as it is now: "}${error}</p>`}
    ${heat !== null ? html`<${HeatMap} heat=${heat} />` : error === null ? html`<p class="more" role="status">reading…</p>` : ""}`;
}

// Asked of the leader when somebody wants to know, not twice a second.
function Why({ subscription, like }) {
  const said = useAnswer((signal) => get("/api/look/why", { subscription, like }, signal), [subscription, like]);
  const seen = said.answer;
  if (seen === null) return html`<${Waiting} of=${said} />`;
  const fixed = { subscription };
  const columns = [
    { title: "Stream", value: (row) => row.stream, show: (row) => cell(row.stream) },
    { title: "Why it waits", value: (row) => row.why || "~", show: (row) => row.why || "–", grow: true },
    { title: "State", value: (row) => row.state, show: (row) => row.state },
    { title: "Owner", value: (row) => row.owner, show: (row) => row.owner ?? "–" },
    { title: "Lag", n: true, value: (row) => row.lag, show: (row) => number(row.lag) },
    { title: "Oldest waits", n: true, value: (row) => row.lag_seconds, show: (row) => age(row.lag_seconds) },
    { title: "Act", show: (row) => html`<${ActButton} small name="move" about=${subscription} fixed=${fixed} start=${{ stream: row.stream }} borrowers=${seen.borrowers.map((one) => one.name)} /> ${row.owner === null ? "" : html`<${ActButton} small name="release" about=${subscription} fixed=${fixed} start=${{ stream: row.stream }} />`}` },
  ];
  const people = [
    { title: "Consumer", value: (row) => row.name, show: (row) => row.name, grow: true },
    { title: "Query", value: (row) => row.query, show: (row) => row.query ?? "–" },
    { title: "Host", value: (row) => row.host, show: (row) => row.host ?? "–" },
    { title: "Streams", n: true, value: (row) => row.streams, show: (row) => number(row.streams) },
    { title: "Silent for", n: true, value: (row) => row.silent_seconds, show: (row) => age(row.silent_seconds) },
    { title: "", show: (row) => row.drained ? html`<${State} word="drained" />` : "" },
    { title: "Act", show: (row) => html`<${ActButton} small name=${row.drained ? "undrain" : "drain"} about=${subscription} fixed=${fixed} start=${{ borrower: row.name }} />` },
  ];
  return html`<div id="why"><form class="head" onSubmit=${(event) => { event.preventDefault(); change({ like: event.target.elements.like.value }); }}><h2>Why streams wait</h2>
      <input class="filter" type="search" name="like" key=${like} defaultValue=${like} placeholder="Stream, owner, state or reason" aria-label="Stream, owner, state or reason" />
      <button type="submit">Find</button><button type="button" onClick=${said.repeat} disabled=${said.busy}>Ask again</button>
      <span class="more" role="status">${seen.found === seen.streams_in_all ? "" : `${number(seen.found)} of ${plural(seen.streams_in_all, "stream")}`}${seen.found > seen.streams.length ? `${seen.found === seen.streams_in_all ? "" : "; "}the ${number(seen.streams.length)} that wait most of ${number(seen.found)}: find others by their names` : ""}</span></form>
    ${seen.note ? html`<p class="note">${seen.note}</p>` : ""}
    <${Table} label="Streams and why they wait" columns=${columns} rows=${seen.streams} keyOf=${(row) => row.stream} empty="No stream matches." sort=${4} down />
    <h2>Consumers</h2>
    <${Table} id="borrowers-table" label="Consumers" columns=${people} rows=${seen.borrowers} keyOf=${(row) => row.id ?? row.name} empty="It has no consumers." /></div>`;
}

function Letters({ subscription }) {
  const said = useAnswer((signal) => get("/api/look/letters", { subscription }, signal), [subscription]);
  const [wanted, field] = useFilter();
  const seen = said.answer;
  if (seen === null) return html`<${Waiting} of=${said} />`;
  const fixed = { subscription };
  const rows = seen.letters.filter((row) => `${row.place} ${row.topic} ${row.cause} ${row.original}`.toLowerCase().includes(wanted));
  const columns = [
    { title: "When", value: (row) => row.at, show: (row) => moment(Date.parse(row.at)) },
    { title: "Topic", value: (row) => row.topic, show: (row) => row.topic ?? "–" },
    { title: "Original", value: (row) => row.original, show: (row) => row.original },
    { title: "Cause", value: (row) => row.cause, show: (row) => row.cause, grow: true },
    { title: "Failures", n: true, value: (row) => Number(row.failures), show: (row) => row.failures },
    { title: "Payload", show: (row) => html`<${Text} value=${row.payload} most=${80} />` },
    { title: "Replayed", value: (row) => row.replayed?.at, show: (row) => row.replayed ? `${moment(Date.parse(row.replayed.at))} by ${row.replayed.by}` : html`<${ActButton} small name="replay" about=${row.place} fixed=${{ ...fixed, places: [row.place] }} />` },
  ];
  return html`<div id="letters"><div class="head"><h2>Dead letters</h2>${field("Filter by topic, cause or place")}<button type="button" onClick=${said.repeat} disabled=${said.busy}>Look again</button>
    ${seen.letters.some((one) => !one.replayed) ? html`<${ActButton} name="replay" about=${`all that were not replayed, of ${subscription}`} fixed=${fixed} label="Replay all" />` : ""}
    ${seen.found > seen.letters.length ? html`<span class="more" role="status">the newest ${number(seen.letters.length)} of ${number(seen.found)}: the topic of dead letters has the others</span>` : ""}</div>
    <${Table} label="Dead letters" columns=${columns} rows=${rows} keyOf=${(row) => row.place} empty="It has no dead letters." sort=${0} down /></div>`;
}

// ------------------------------------------------------------ what happened

const FOLD_MS = 3000;

// Hand-overs of many streams at a time are one thing that happened; it unfolds.
function folded(events) {
  const found = [];
  for (const event of [...events].reverse()) {
    const last = found.at(-1);
    if (last !== undefined && event.stream !== undefined && last[0].what === event.what && last.at(-1).at - event.at <= FOLD_MS) last.push(event);
    else found.push([event]);
  }
  return found;
}

const textOf = (event) => event.text ?? (event.to !== undefined ? html`${streamText(event.stream)} to ${event.to}` : html`${streamText(event.stream)} within ${event.ms} ms`);
const streamText = (stream) => cell(stream);

function Events({ events }) {
  if (events.length === 0) return html`<p class="more" id="events">Nothing yet.</p>`;
  return html`<ol id="events">${folded(events).slice(0, 200).map((some) => {
    const first = some[0];
    if (some.length < 3) return some.map((event) => html`<li key=${event.number} class=${event.what}><time>${clock(event.at)}</time> ${event.what}: ${textOf(event)}</li>`);
    const slowest = Math.max(...some.map((event) => event.ms ?? 0));
    const owners = new Set(some.map((event) => event.to).filter(Boolean));
    return html`<li key=${`fold ${some.at(-1).number}`} class=${first.what}><details><summary><time>${clock(first.at)}</time> ${first.what}: ${some.length} streams${slowest ? `, the slowest within ${slowest} ms` : owners.size > 0 ? ` to ${owners.size === 1 ? [...owners][0] : `${owners.size} consumers`}` : ""}</summary>
      <ol>${some.slice(0, 100).map((event) => html`<li key=${event.number}>${textOf(event)}</li>`)}</ol></details></li>`;
  })}</ol>`;
}
