// The dialog for acts: fields of the act, what it would do, and doing it. Who may not act yet logs in there.

import { html, place, post, useEffect, useRef, useState } from "./lib.js";
import { may, session, store } from "./live.js";

const FIELDS = {
  until: { label: "Until (a time, or a duration such as 10m; empty: until it is resumed)" },
  borrower: { label: "Borrower", list: true },
  stream: { label: "Stream, such as flights.0.3" },
  only: { label: "Only this stream (empty: all)", name: "stream" },
  to: { label: "To: earliest, latest, a time, a duration back from now such as 2h, or an offset" },
  shift: { label: "or shift by so many messages (back if below 0)", type: "number" },
  force: { label: "Also if it has consumers: they get an error and end", type: "checkbox" },
  confirm: { label: "Type the name to confirm" },
  topic: { label: "Topic" },
  key: { label: "Key (may be empty: none)" },
  payload: { label: "Payload; in a space with typed columns a JSON object", type: "area" },
  headers: { label: "Headers, one a line, as NAME: VALUE", type: "lines" },
  strategy: { label: "How streams are shared out: count, rate, lag, or a strategy of your own" },
  on_poison: { label: "A message that failed too often", choices: ["dead-letter", "stop"] },
  max_failures: { label: "How many times one message may fail", type: "number" },
  retry_delay: { label: "Wait before a failed message comes again, such as 500ms; none: no wait" },
  max_retry_delay: { label: "The longest such wait" },
  revocation_timeout: { label: "How long a consumer may take to give a stream back, such as 30s" },
  dead_letters: { label: "Topic below which dead letters are published" },
  expiry: { label: "Idle for so long it keeps no messages any more, such as 30d; never" },
  streams: { label: "Number of streams: new messages are spread over so many new ones", type: "number" },
  rotate: { label: "New streams even if their number stays the same", type: "checkbox" },
  retention: { label: "Keep messages for so long, such as 7d; none: for ever" },
  retention_bytes: { label: "Keep so many bytes per stream, such as 1GiB; none: all" },
  retention_messages: { label: "Keep so many messages per stream; none: all" },
  retention_force: { label: "Remove messages that a group has not consumed", choices: ["yes", "no"] },
  group_expiry: { label: "Groups idle for so long keep no messages any more, such as 30d; never" },
  compact_after: { label: "Merge small entries after so long, such as 1m; off" },
  keep_in_memory: { label: "With an archive: so long, or so much, stays in memory, such as 1h or 1GiB; all" },
  archive: { label: "Archive: a folder that all hosts see, s3://… or gs://…" },
  archive_catalog: { label: "Address of the archive's Iceberg catalog, if it is not its own" },
  columns: { label: 'All columns, of which new ones may be null, as JSON: {"columns": [{"name": …, "type": …, "nullable": …}]}', type: "area" },
  confirm_force: { label: "To remove what groups have not consumed: type the name to confirm", name: "confirm" },
  diff: { label: "How many of the item come, or go (below 0)", type: "number" }, // of a collection alone
};

export const ACTS = {
  pause: { title: "Pause", fields: ["until"], means: "No messages are handed out beyond what is under way; progress stays." },
  resume: { title: "Resume", fields: [], means: "Ends a pause: the streams are granted again." },
  rebalance: { title: "Rebalance", fields: [], means: "Spreads the streams evenly with the fewest moves; moves by hand are forgotten." },
  drain: { title: "Drain", long: "Drain a borrower", fields: ["borrower"], means: "Its streams go to the others; it gets none until it is undrained." },
  undrain: { title: "Undrain", long: "Undrain a borrower", fields: ["borrower"], means: "It may have streams again." },
  move: { title: "Move", long: "Move a stream", fields: ["stream", "borrower"], means: "It stays with that borrower until that one goes, or a rebalance." },
  release: { title: "Release", long: "Release a stream", fields: ["stream"], means: "Takes it from its owner now. What that one has not committed may be delivered twice." },
  step_down: { title: "Step down", fields: [], means: "The leader resigns, another one follows; the borrowers keep their streams." },
  retry: { title: "Retry", long: "Retry the message that stopped a stream", fields: ["stream"], means: "Its earlier failures are forgotten, and it is tried anew." },
  dead_letter: { title: "Dead letter", long: "Put the message that stopped a stream among the dead letters", fields: ["stream"], means: "The stream goes on behind it." },
  reset: { title: "Reset", fields: ["to", "shift", "only"], means: "The group goes on elsewhere, while it runs." },
  alter: { title: "Settings", long: "Change the settings", fields: ["strategy", "on_poison", "max_failures", "retry_delay", "max_retry_delay", "revocation_timeout", "dead_letters", "expiry"], means: "What is left empty stays as it is. The leader resigns, and the next one knows; consumers keep their streams." },
  expire: { title: "Expire", fields: ["confirm"], means: "Retention no longer waits for it, until it is consumed again. It must have no consumers." },
  delete: { title: "Delete", fields: ["force", "confirm"], means: "The group is deleted with its progress and its history." },
  replay: { title: "Replay", fields: [], means: "The original messages are published to their topics again, for all groups. None is published twice." },
  publish: { title: "Publish", long: "Publish a message", fields: ["topic", "key", "payload", "headers", "diff"], means: "It goes to all groups that read the topic." },
  alter_space: { title: "Settings", long: "Change the settings", fields: ["streams", "rotate", "retention", "retention_bytes", "retention_messages", "retention_force", "group_expiry", "compact_after", "keep_in_memory", "archive", "archive_catalog", "columns", "confirm_force"], means: "What is left empty stays as it is. What retention removes cannot be brought back." },
  drain_host: { title: "Drain", long: "Drain a leader host", fields: [], means: "Its leaders go to other hosts, one by one, and it takes none; consumers keep their streams." },
  undrain_host: { title: "Undrain", long: "Undrain a leader host", fields: [], means: "It takes leaders again." },
  terminate: { title: "Terminate", long: "Terminate a query", fields: [], means: "Its workers get SIGTERM, and SIGKILL after their grace. It is not placed anew." },
  abort_publisher: { title: "Give up", long: "Give a publisher up", fields: ["confirm"], means: "What it staged and has not given up is dropped; the epochs of the others go on." },
};
export const OF_GROUP = ["pause", "resume", "rebalance", "drain", "undrain", "move", "release", "step_down", "reset", "alter", "expire", "delete"];

let asked = null;
let show = () => {};

// Opens the dialog, for the server that the page is of now. `fixed` goes with the act as it is, `start` fills the fields, `about` names it.
export function act(name, about, fixed = {}, start = {}, borrowers = []) {
  asked = { name, about, fixed, start, borrowers, server: place().query.server ?? "", number: (asked?.number ?? 0) + 1 };
  show(asked);
}

export const canAct = () => may("operator") || Boolean(store.session?.login);

export function ActButton({ name, about, fixed, start, borrowers, label, small }) {
  if (!canAct()) return null;
  return html`<button type="button" class=${small ? "small" : ""} data-act=${name} onClick=${() => act(name, about, fixed, start, borrowers)}>${label ?? ACTS[name].title}…</button>`;
}

export function ActDialog() {
  const [now, set] = useState(asked);
  show = set;
  const dialog = useRef(null);
  useEffect(() => { if (now !== null) dialog.current?.showModal(); }, [now]);
  if (now === null) return null;
  // Its event "close" comes later, when another act may have been asked for already.
  const close = () => { dialog.current.close(); set(null); };
  return html`<dialog id="act" ref=${dialog} aria-labelledby="act-title" onCancel=${(event) => { event.preventDefault(); close(); }}>
    <${Asking} key=${now.number} asked=${now} close=${close} /></dialog>`;
}

function Asking({ asked: { name, about, fixed, start, borrowers, server }, close }) {
  const { title, long, fields, means } = ACTS[name], role = store.session?.roles[name] ?? "admin";
  const [answer, setAnswer] = useState({ text: "", lines: null, busy: false });
  const form = useRef(null), last = useRef(null);
  // Of a form that is longer than the screen, the answer would stand below it.
  useEffect(() => { if (answer.text !== "") last.current?.scrollIntoView({ block: "nearest" }); }, [answer]);
  const ask = async (dry) => {
    const wanted = { act: name, ...fixed, dry_run: dry };
    for (const input of form.current.querySelectorAll(".fields [name]")) {
      if (input.type === "checkbox") wanted[input.name] = input.checked;
      else if (input.dataset.kind === "lines") wanted[input.name] = headersOf(input.value);
      else if (input.value !== "") wanted[input.name] = input.type === "number" ? Number(input.value) : input.value;
    }
    const token = form.current.querySelector("[name=token]")?.value;
    if (token === "") { setAnswer({ text: "Give the token first.", lines: null, busy: false }); return; }
    setAnswer({ text: "…", lines: null, busy: true });
    try {
      if (token !== undefined) { await post("/api/login", { token }); await session(); }
      const said = await post("/api/act", wanted, server);
      setAnswer({ text: said.done ? "done:" : "this would be done; nothing was changed:", lines: said.says, busy: false });
    } catch (error) {
      const text = error.status === undefined ? `no answer (${error.message}): it was done, or it was not; look at what happened` : error.message;
      setAnswer({ text, lines: null, busy: false });
    }
  };
  return html`<form method="dialog" ref=${form} onSubmit=${(event) => { event.preventDefault(); ask(true); }}>
    <h2 id="act-title">${long ?? title}: ${about}</h2>
    <p class="meaning">${means}</p>
    <div class="fields">${fields.filter((field) => field !== "diff" || "diff" in start).map((field) => html`<${Field} field=${field} start=${start[FIELDS[field].name ?? field]} borrowers=${borrowers} />`)}</div>
    ${may(role) || !store.session?.login ? "" : html`<label class="token">Token of ${role === "admin" ? "an admin" : "an operator"} <input type="password" name="token" autocomplete="off" /></label>`}
    <div class="buttons">
      <button type="button" data-do="show" disabled=${answer.busy} onClick=${() => ask(true)}>Show what it would do</button>
      <button type="button" data-do="execute" class="dangerous" disabled=${answer.busy} onClick=${() => ask(false)}>Do it</button>
      <button type="button" data-do="close" onClick=${close}>Close</button>
    </div>
    <p class="answer" role="status">${answer.text}</p>
    ${answer.lines === null ? "" : html`<pre class="says" tabindex="0">${answer.lines.join("\n")}</pre>`}
    <div ref=${last}></div>
  </form>`;
}

function headersOf(text) {
  return Object.fromEntries(text.split("\n").filter((line) => line.includes(":")).map((line) => {
    const place = line.indexOf(":");
    return [line.slice(0, place).trim(), line.slice(place + 1).trim()];
  }));
}

function Field({ field, start, borrowers }) {
  const { label, type, list, choices, name = field } = FIELDS[field];
  if (choices) return html`<label>${label}<select name=${name}><option value="">as it is</option>${choices.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>`;
  if (type === "checkbox") return html`<label><input type="checkbox" name=${name} /> ${label}</label>`;
  if (type === "area" || type === "lines") return html`<label>${label}<textarea name=${name} rows=${type === "area" ? 6 : 2} data-kind=${type} spellcheck="false">${start ?? ""}</textarea></label>`;
  return html`<label>${label}<input name=${name} type=${type ?? "text"} autocomplete="off" defaultValue=${start ?? ""} list=${list ? "borrowers" : undefined} />
    ${list ? html`<datalist id="borrowers">${borrowers.slice(0, 200).map((one) => html`<option value=${one} />`)}</datalist>` : ""}</label>`;
}

export function Login({ why }) {
  const [said, say] = useState(why ?? "");
  const enter = async (event) => {
    event.preventDefault();
    try {
      await post("/api/login", { token: event.target.elements.token.value });
      await session();
    } catch (error) { say(error.message); }
  };
  return html`<form class="login" onSubmit=${enter}>
    <h1>Log in</h1>
    <label>Token<input type="password" name="token" autocomplete="current-password" autofocus required /></label>
    <button type="submit">Log in</button>
    <p class="answer" role="alert">${said}</p></form>`;
}

export async function logout() {
  await post("/api/logout", {});
  await session();
  location.reload();
}
