// The message browser: a question whose fields stand in the address, its answers, and one message whole.

import { bytes, change, clock, get, html, moment, number, place, to, useEffect, useRef, useState } from "./lib.js";
import { Spark, Waiting, useAnswer } from "./parts.js";
import { ActButton } from "./acts.js";

const FIELDS = ["topic", "key", "text", "stream", "at", "order"];
const COLUMNS = 8; // typed columns of a row; all of them are in the message

export function Text({ value, most = Infinity }) {
  if (value === null) return html`<span class="soft">–</span>`;
  if (value.base64 !== undefined) return html`<span class="soft">base64</span> <code>${value.base64.slice(0, most)}${value.cut || value.base64.length > most ? "…" : ""}</code>`;
  return html`<code>${value.text.slice(0, most)}${value.cut || value.text.length > most ? "…" : ""}</code>`;
}

export function Messages({ space, query }) {
  const wanted = Object.fromEntries(FIELDS.filter((name) => query[name]).map((name) => [name, query[name]]));
  const asked = JSON.stringify([space.name, wanted]);
  const [more, setMore] = useState({ of: "", pages: [], busy: false, error: null });
  const first = useAnswer((signal) => get("/api/look/messages", { space: space.name, ...wanted }, signal), [asked]);
  const pages = first.answer === null ? [] : [first.answer, ...(more.of === asked && more.first === first.answer ? more.pages : [])];
  const last = pages.at(-1), messages = pages.flatMap((page) => page.messages);
  const looked = pages.reduce((all, page) => all + page.looked, 0);
  const goOn = async () => {
    setMore((before) => ({ ...before, busy: true, error: null }));
    try {
      const page = await get("/api/look/messages", { space: space.name, ...wanted, cursor: last.cursor });
      setMore((before) => ({ of: asked, first: first.answer, pages: [...(before.of === asked && before.first === first.answer ? before.pages : []), page], busy: false, error: null }));
    } catch (error) { setMore((before) => ({ ...before, busy: false, error: error.message })); }
  };
  return html`<${Question} space=${space} query=${query} again=${first.repeat} busy=${first.busy} />
    ${first.answer === null ? html`<${Waiting} of=${first} />` : html`
      <${Rows} space=${space} messages=${messages} chosen=${query.m} />
      ${pages.flatMap((page) => page.notes).map((note) => html`<p class="note">${note}</p>`)}
      <p class="more" role="status" id="found">${messages.length === 0 ? "No message matches" : `${number(messages.length)} found`} of ${number(looked)} looked at${last.done ? "; there are no more." : `, ${query.order === "oldest" ? "up" : "back"} to ${moment(last.reached_us / 1000)}.`}
        ${last.done ? "" : html` <button type="button" id="more" onClick=${goOn} disabled=${more.busy}>${more.busy ? "looking…" : "Go on"}</button>`}</p>
      ${more.error ? html`<p class="problem" role="alert">${more.error}</p>` : ""}`}
    ${query.m ? html`<${Whole} place=${query.m} space=${space} />` : ""}`;
}

function Question({ space, query, again, busy }) {
  const ask = (event) => {
    event.preventDefault();
    const fields = event.target.elements;
    const next = Object.fromEntries(FIELDS.map((name) => [name, fields[name].value.trim()]));
    if (next.order === "newest") next.order = "";
    if (FIELDS.every((name) => (query[name] ?? "") === next[name])) again(); else change({ ...next, m: "" });
  };
  const field = (name, label, hint, wide) => html`<label class=${wide ? "wide" : ""}>${label}<input name=${name} type="search" defaultValue=${query[name] ?? ""} placeholder=${hint} autocomplete="off" spellcheck="false" /></label>`;
  return html`<form class="question" id="question" key=${JSON.stringify(FIELDS.map((name) => query[name]))} onSubmit=${ask}>
    ${field("topic", "Topic or filter", space.topics[0], true)}
    ${field("key", "Key", "exactly this")}
    ${field("text", "Text", "in key, payload, headers, columns", true)}
    ${field("stream", "Stream", `${space.name}.${space.generations.at(-1).number}.0`)}
    ${field("at", query.order === "oldest" ? "From" : "Until", "a time, 10m back, an offset")}
    <label>Order<select name="order" defaultValue=${query.order || "newest"}><option value="newest" selected=${query.order !== "oldest"}>newest first</option><option value="oldest" selected=${query.order === "oldest"}>oldest first</option></select></label>
    <button type="submit" disabled=${busy}>${busy ? "Looking…" : "Look"}</button></form>`;
}

function Rows({ space, messages, chosen }) {
  if (messages.length === 0) return null;
  const typed = (space.schema?.columns ?? []).slice(0, COLUMNS).map((one) => one.name);
  const epochs = space.epochs > 0, diffs = space.collection;
  return html`<div class="table" id="messages"><table aria-label="Messages">
    <thead><tr><th scope="col">Appended</th><th scope="col">Topic</th><th scope="col">Key</th>
      ${typed.length > 0 ? typed.map((name) => html`<th scope="col">${name}</th>`) : html`<th scope="col">Payload</th>`}
      ${diffs ? html`<th scope="col" class="n">Diff</th>` : ""}${epochs ? html`<th scope="col">Epoch</th>` : ""}<th scope="col">Stream</th><th scope="col" class="n">Offset</th></tr></thead>
    <tbody>${messages.map((one) => {
      const at = `${one.stream}@${one.offset}`;
      return html`<tr key=${at} class=${chosen === at ? "chosen" : ""}>
        <td data-title="Appended"><a href=${link({ m: at })}><time title=${one.appended}>${moment(Date.parse(one.appended))}</time></a></td>
        <td data-title="Topic"><a href=${link({ topic: one.topic })}>${one.topic}</a></td>
        <td data-title="Key">${one.key === null ? html`<span class="soft">–</span>` : html`<a href=${link({ key: one.key.text ?? "" })}><${Text} value=${one.key} most=${40} /></a>`}</td>
        ${typed.length > 0 ? typed.map((name) => html`<td data-title=${name} class=${typeof one.values?.[name] === "number" ? "n" : ""}>${valueText(one.values?.[name])}</td>`) : html`<td class="grow" data-title="Payload"><${Text} value=${one.payload} most=${160} /></td>`}
        ${diffs ? html`<td data-title="Diff" class="n">${diffText(one.diff)}</td>` : ""}
        ${epochs ? html`<td data-title="Epoch">${one.epoch === null ? "–" : one.epoch.join(", ")}</td>` : ""}
        <td data-title="Stream">${one.stream}</td><td class="n" data-title="Offset">${one.offset}</td></tr>`;
    })}</tbody></table></div>`;
}

const valueText = (value) => value === null || value === undefined ? html`<span class="soft">null</span>` : typeof value === "object" ? JSON.stringify(value) : String(value);

// How many of its item a message of a collection brings, or takes away.
const diffText = (diff) => diff === null || diff === undefined ? html`<span class="soft">not known</span>` : diff > 0 ? `+${diff}` : String(diff);

function link(query) {
  const here = place();
  return to(here.page, here.arg, { ...here.query, ...query });
}

function pretty(value) {
  if (value === null || value.text === undefined) return null;
  try {
    const found = JSON.parse(value.text);
    return typeof found === "object" && found !== null ? JSON.stringify(found, null, 2) : null;
  } catch { return null; }
}

// Whether all of a message can stand in a form: other bytes would be left out there.
function isText(message) {
  const parts = [message.key, ...message.headers.map(([, value]) => value), ...(message.values ? [] : [message.payload])];
  return parts.every((one) => one === null || one.text !== undefined);
}

function Whole({ place: at, space }) {
  const [stream, offset] = at.split("@");
  const said = useAnswer((signal) => get("/api/look/message", { stream, offset }, signal), [at]);
  const panel = useRef(null), seen = said.answer;
  useEffect(() => { panel.current?.focus({ preventScroll: true }); panel.current?.scrollIntoView({ block: "nearest" }); }, [at]);
  const near = (other, text) => other === null || other === undefined ? html`<span class="soft">${text}</span>` : html`<a href=${link({ m: `${stream}@${other}` })}>${text}</a>`;
  const close = () => change({ m: "" });
  return html`<aside id="message" class="panel" tabindex="-1" ref=${panel} aria-label="One message" onKeyDown=${(event) => { if (event.key === "Escape") close(); }}>
    <div class="head"><h2>${at}</h2>${near(seen?.before, "← before")}${near(seen?.after, "next →")}
      ${seen && !isText(seen) ? html`<span class="soft">not text: no form can publish it again</span>` : seen ? html`<${ActButton} small name="publish" label="Publish again" about=${`into space ${space.name}`} start=${{ ...(space.collection ? { diff: seen.diff ?? 1 } : {}), topic: seen.topic, key: seen.key?.text, payload: seen.values ? JSON.stringify(seen.values) : seen.payload.text, headers: seen.headers.map(([name, value]) => `${name}: ${value.text ?? ""}`).join("\n") }} />` : ""}
      <button type="button" class="small" onClick=${close}>Close</button></div>
    ${seen === null ? html`<${Waiting} of=${said} />` : html`<dl class="facts-list">
      <div><dt>Topic</dt><dd>${seen.topic}</dd></div>
      <div><dt>Key</dt><dd><${Text} value=${seen.key} /></dd></div>
      <div><dt>Appended</dt><dd>${seen.appended}</dd></div>
      <div><dt>Event time</dt><dd>${seen.timestamp}</dd></div>
      ${space.collection ? html`<div><dt>Diff</dt><dd>${diffText(seen.diff)}</dd></div>` : ""}
      ${seen.epoch === null ? "" : html`<div><dt>Epoch</dt><dd>${seen.epoch.join(", ")}</dd></div>`}
      ${seen.headers.map(([name, value]) => html`<div><dt>${name}</dt><dd><${Text} value=${value} /></dd></div>`)}
      ${Object.entries(seen.values ?? {}).map(([name, value]) => html`<div><dt><code>${name}</code></dt><dd>${valueText(value)}</dd></div>`)}
    </dl>
    ${seen.values ? "" : html`<h3>Payload <small>${bytes(seen.bytes)}</small></h3><pre tabindex="0">${pretty(seen.payload) ?? seen.payload.text ?? seen.payload.base64}</pre>`}`}
  </aside>`;
}
