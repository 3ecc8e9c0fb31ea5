// The parts that pages are made of: tables that sort by keyboard, states in words and shapes, small curves.

import { html, useEffect, useMemo, useRef, useState } from "./lib.js";
import { store } from "./live.js";

const SHOWN = 200; // rows of a table at most; a filter finds the others

// What a state is like, apart from its word: a shape, so that nobody needs to tell colours apart.
const STATES = {
  "stopped": ["bad", "■"], "no leader": ["bad", "◆"], "no consumers": ["bad", "◇"], "behind": ["warn", "▲"],
  "paused": ["warn", "‖"], "expired": ["warn", "✕"], "consuming": ["good", "●"], "idle": ["calm", "○"],
  "held": ["good", "●"], "free": ["warn", "○"], "waiting": ["calm", "…"], "finished": ["calm", "✓"],
  "open": ["good", "●"], "pending": ["calm", "…"], "sealed": ["calm", "✓"], "drained": ["warn", "‖"],
  "alive": ["good", "●"], "running": ["good", "●"], "placing": ["calm", "…"], "spawning": ["calm", "…"], "ending": ["warn", "…"], "failed": ["bad", "■"],
  "lost": ["bad", "◇"], "aborted": ["bad", "✕"], "terminated": ["calm", "✕"], "done": ["calm", "✓"], "ended": ["calm", "✓"], "bad": ["bad", "■"], "warn": ["warn", "▲"],
};
export const WORST = ["stopped", "no leader", "no consumers", "behind", "paused", "expired", "consuming", "idle"];

export function State({ word, children }) {
  const [kind, shape] = STATES[word] ?? ["calm", "·"];
  return html`<span class="state ${kind}"><span aria-hidden="true">${shape}</span> ${children ?? word}</span>`;
}

export function useFilter(name = "filter") {
  const [text, set] = useState("");
  const field = (label) => html`<input class="filter" type="search" name=${name} value=${text} placeholder=${label}
    aria-label=${label} onInput=${(event) => set(event.target.value)} />`;
  return [text.toLowerCase(), field];
}

// columns: {title, value: row => what it is sorted by, show: row => what is seen, n: at the right, grow: takes the room}
export function Table({ id, label, columns, rows, keyOf, empty, sort = 0, down = false, most = SHOWN, chosen }) {
  const [by, setBy] = useState({ sort, down });
  const order = columns[by.sort]?.value;
  // Rows are sorted at every look: most of what is shown is moving.
  const sorted = useMemo(() => order === undefined ? rows : [...rows].sort(comparing(order, by.down)), [rows, by, columns.length]);
  const head = columns.map((column, place) => html`<th scope="col" class=${column.n ? "n" : ""} aria-sort=${by.sort !== place ? "none" : by.down ? "descending" : "ascending"}>
    ${column.value === undefined ? column.title : html`<button type="button" data-sort=${place} onClick=${() =>
      setBy({ sort: place, down: by.sort === place ? !by.down : Boolean(column.n) })}>${column.title}<span aria-hidden="true">${by.sort !== place ? "" : by.down ? " ↓" : " ↑"}</span></button>`}</th>`);
  return html`<div class="table" id=${id}>
    <table aria-label=${label}>
      <thead><tr>${head}</tr></thead>
      <tbody>${sorted.slice(0, most).map((row) => {
        const key = keyOf(row);
        return html`<tr key=${key} class=${chosen === key ? "chosen" : ""}>${columns.map((column) => html`<td class=${column.n ? "n" : column.grow ? "grow" : ""} data-title=${column.title}>${column.show(row)}</td>`)}</tr>`;
      })}</tbody>
    </table>
    <p class="more" role="status">${rows.length === 0 ? empty : rows.length > most ? `${most} of ${rows.length.toLocaleString("en")} shown: filter to find others` : ""}</p>
  </div>`;
}

function comparing(value, down) {
  const text = new Intl.Collator("en", { numeric: true }).compare;
  return (one, other) => {
    const a = value(one), b = value(other);
    // What is unknown comes first where the largest does: it may be anything.
    const order = a === b ? 0 : a === null || a === undefined ? 1 : b === null || b === undefined ? -1
      : typeof a === "number" && typeof b === "number" ? a - b : text(String(a), String(b));
    return down ? -order : order;
  };
}

// A small curve; what it says in numbers stands beside it.
export function Spark({ points, width = 88, height = 20 }) {
  const known = (points ?? []).filter((value) => value !== null);
  if (known.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
  const top = Math.max(...known, 1e-9), step = width / Math.max(1, points.length - 1);
  const at = points.map((value, place) => value === null ? null : `${(place * step).toFixed(1)},${(height - 2 - (height - 4) * value / top).toFixed(1)}`);
  const line = at.filter((one) => one !== null).join(" ");
  return html`<svg class="spark" width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true">
    <polyline class="area" points="0,${height} ${line} ${width},${height}" /><polyline points=${line} /></svg>`;
}

export function Facts({ items }) {
  return html`<dl class="figures">${items.filter(Boolean).map(([title, value, note]) => html`<div><dt>${title}</dt><dd>${value}${note ? html`<small>${note}</small>` : ""}</dd></div>`)}</dl>`;
}

// Where there are more than fit, the chosen one is scrolled to; the page stays where it is.
export function useInView(chosen) {
  const holder = useRef(null);
  useEffect(() => {
    const link = holder.current?.querySelector("[aria-current]");
    if (link) holder.current.scrollLeft = link.offsetLeft - (holder.current.clientWidth - link.offsetWidth) / 2;
  }, [chosen]);
  return holder;
}

export function Tabs({ tabs, now, link }) {
  const holder = useInView(`${now} ${tabs.length}`);
  return html`<nav class="tabs" aria-label="Parts of this page" ref=${holder}>${tabs.map(([name, title, count]) =>
    html`<a href=${link(name)} aria-current=${now === name ? "page" : undefined} data-tab=${name}>${title}${count === undefined ? "" : html` <small>${count}</small>`}</a>`)}</nav>`;
}

// What was asked of the server, asked again whenever `asked` is another question.
export function useAnswer(ask, asked) {
  const [state, set] = useState({ answer: null, error: null, busy: true });
  const [again, setAgain] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    set((before) => ({ ...before, busy: true }));
    ask(stop.signal).then(
      (answer) => set({ answer, error: null, busy: false }),
      (error) => { if (!stop.signal.aborted) set({ answer: null, error: error.message, busy: false }); },
    );
    return () => stop.abort();
  }, [...asked, again]);
  return { ...state, repeat: () => setAgain((number) => number + 1) };
}

export function Waiting({ of }) {
  if (of.error !== null) return html`<p class="problem" role="alert">${of.error}</p>`;
  return of.answer === null ? html`<p class="more" role="status">reading…</p>` : null;
}

// Not there, or there and not to be read.
export function Missing({ kind, name }) {
  const damage = (store.overview.damaged ?? []).find((one) => one.what === `${kind} ${name}`);
  if (damage === undefined) return html`<p class="facts">There is no such ${kind}.</p>`;
  return html`<p class="problem" id="missing" role="alert">It cannot be read: ${damage.why}. 'streamlease doctor' says what to do.</p>`;
}

export function Problems() {
  const seen = store.overview;
  if (!seen) return null;
  return html`${seen.error ? html`<p id="problem" class="problem" role="alert">${seen.error}</p>` : ""}
    ${(seen.damaged ?? []).length > 0 ? html`<ul id="damaged" class="problem" role="alert">${seen.damaged.slice(0, SHOWN).map((one) =>
      html`<li>${one.what} cannot be read: ${one.why}</li>`)}</ul>` : ""}`;
}

// A picture on a canvas that is drawn anew when it, or the room for it, changes; `told` is what it says in words.
// `grid(width)` is {left, columns, rows, wide, high} of its cells: by mouse and by arrow keys each can be pointed at.
export function Picture({ draw, height, told, onPoint, grid, of }) {
  const canvas = useRef(null);
  const [cell, choose] = useState(null);
  useEffect(() => {
    const node = canvas.current;
    const paint = () => {
      const scale = window.devicePixelRatio || 1, width = node.clientWidth;
      const tall = typeof height === "function" ? height(width) : height;
      node.style.height = `${tall}px`;
      node.width = Math.round(width * scale);
      node.height = Math.round(tall * scale);
      const context = node.getContext("2d");
      context.setTransform(scale, 0, 0, scale, 0, 0);
      draw(context, width, tall);
    };
    paint();
    const watch = new ResizeObserver(paint);
    watch.observe(node);
    return () => watch.disconnect();
  }, of);
  const { left, columns, rows, wide, high } = grid(canvas.current?.clientWidth ?? 300);
  const at = cell === null ? null : [Math.min(cell[0], columns - 1), Math.min(cell[1], rows - 1)];
  const go = (next) => { choose(next); onPoint(...next); };
  const keyed = (event) => {
    const [x, y] = at ?? [0, 0];
    const next = { ArrowLeft: [x - 1, y], ArrowRight: [x + 1, y], ArrowUp: [x, y - 1], ArrowDown: [x, y + 1], Home: [0, y], End: [columns - 1, y] }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    go([Math.max(0, Math.min(columns - 1, next[0])), Math.max(0, Math.min(rows - 1, next[1]))]);
  };
  const pointed = (event) => onPoint(Math.floor((event.offsetX - left) / wide), Math.floor(event.offsetY / high));
  return html`<div class="picture"><canvas ref=${canvas} role="application" tabindex="0" aria-label=${`${told}. Arrow keys go through it.`} onKeyDown=${keyed}
    onFocus=${(event) => { if (event.target.matches(":focus-visible")) go(at ?? [0, 0]); }} onBlur=${() => { choose(null); onPoint(-1, -1); }}
    onMouseMove=${pointed} onMouseLeave=${() => onPoint(-1, -1)}></canvas>
    ${at === null ? "" : html`<span class="cursor" style=${{ left: `${left + at[0] * wide}px`, top: `${at[1] * high}px`, width: `${wide}px`, height: `${high}px` }}></span>`}</div>`;
}
