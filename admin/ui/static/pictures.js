// The pictures of a group: streams by owner with colour, pattern and label; lag by stream over time; curves.

import { clock, html, number, plural, short, useEffect, useRef, useState } from "./lib.js";
import { Picture } from "./parts.js";

// Colours that people who see few colours tell apart (Okabe and Ito), each with a pattern of its own.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8a8f98"];
const NOBODY = "#9aa3ad";
const FLASH_MS = 1500;
const given = new Map();

// Owners get colours in the order in which they are seen; a pattern tells apart those with the same one.
export function looksOf(owner) {
  if (owner === null) return { colour: NOBODY, pattern: -1 };
  if (!given.has(owner)) given.set(owner, given.size);
  const place = given.get(owner);
  return { colour: COLOURS[place % COLOURS.length], pattern: (place + Math.floor(place / COLOURS.length)) % 5 };
}

function mark(context, pattern, x, y, size) {
  context.strokeStyle = context.fillStyle = "rgb(255 255 255 / 75%)";
  context.lineWidth = Math.max(1, size / 9);
  context.beginPath();
  const end = size - 1;
  if (pattern === -1) { context.strokeRect(x + 1, y + 1, end - 2, end - 2); return; }
  if (pattern === 1) { context.moveTo(x, y + end); context.lineTo(x + end, y); }
  if (pattern === 2) { context.moveTo(x, y + end / 2); context.lineTo(x + end, y + end / 2); }
  if (pattern === 3) { context.moveTo(x, y); context.lineTo(x + end, y + end); context.moveTo(x, y + end); context.lineTo(x + end, y); }
  if (pattern === 4) { context.arc(x + end / 2, y + end / 2, size / 5, 0, 7); context.fill(); return; }
  context.stroke();
}

const sizeOf = (width, count) => Math.max(4, Math.min(22, Math.floor(Math.sqrt(width * 200 / Math.max(1, count)))));

// Streams that changed hands flash, so the map remembers what it drew; it lives as long as its page.
export function OwnerMap({ group }) {
  const state = useRef({ owners: new Map(), flashes: new Map(), timer: null, context: null, width: 0 });
  const [pointed, point] = useState("");
  const now = performance.now(), { owners, flashes } = state.current;
  for (const [stream, row] of group.rows) {
    if (owners.has(stream) && owners.get(stream) !== row[1]) flashes.set(stream, now);
    owners.set(stream, row[1]);
  }
  const cell = (stream, place, context, size, columns) => {
    const x = place % columns * size, y = Math.floor(place / columns) * size;
    const { colour, pattern } = looksOf(group.rows.get(stream)?.[1] ?? null);
    const left = flashes.has(stream) ? 1 - (performance.now() - flashes.get(stream)) / FLASH_MS : 0;
    context.fillStyle = colour;
    context.fillRect(x, y, size - 1, size - 1);
    if (size >= 8) mark(context, pattern, x, y, size);
    if (left > 0) { context.fillStyle = `rgb(255 235 59 / ${Math.round(left * 100)}%)`; context.fillRect(x, y, size - 1, size - 1); }
    else flashes.delete(stream);
  };
  const draw = (context, width) => {
    const size = sizeOf(width, group.order.length), columns = Math.max(1, Math.floor(width / size));
    state.current.places = new Map(group.order.map((stream, place) => [stream, place]));
    group.order.forEach((stream, place) => cell(stream, place, context, size, columns));
    const fade = () => { // only the cells that flash are drawn anew
      state.current.timer = null;
      for (const stream of [...flashes.keys()]) if (state.current.places.has(stream)) cell(stream, state.current.places.get(stream), context, size, columns);
      if (flashes.size > 0) state.current.timer = window.setTimeout(fade, 100);
    };
    window.clearTimeout(state.current.timer);
    if (flashes.size > 0) state.current.timer = window.setTimeout(fade, 100);
  };
  useEffect(() => () => window.clearTimeout(state.current.timer), []);
  const height = (width) => {
    const size = sizeOf(width, group.order.length);
    return Math.max(24, Math.ceil(group.order.length / Math.max(1, Math.floor(width / size))) * size);
  };
  const counts = new Map();
  for (const row of group.rows.values()) counts.set(row[1], (counts.get(row[1]) ?? 0) + 1);
  const legend = [...counts].sort((one, other) => String(one[0]).localeCompare(String(other[0])));
  const grid = (width) => {
    const size = sizeOf(width, group.order.length), columns = Math.max(1, Math.floor(width / size));
    state.current.columns = columns;
    return { left: 0, columns: Math.min(columns, Math.max(1, group.order.length)), rows: Math.max(1, Math.ceil(group.order.length / columns)), wide: size, high: size };
  };
  const seeing = (column, line) => {
    const columns = state.current.columns;
    const row = column >= 0 && column < columns ? group.rows.get(group.order[line * columns + column]) : undefined;
    point(row === undefined ? "" : `${row[0]}: ${row[1] ?? "nobody"}, lag ${number(row[6])}`);
  };
  return html`<figure><figcaption>Streams by owner <output id="pointed">${pointed}</output></figcaption>
    <${Picture} draw=${draw} height=${height} of=${[group.rows, group.order, group.summary]} onPoint=${seeing} grid=${grid}
      told=${`Streams by owner: ${legend.map(([owner, count]) => `${owner ?? "nobody"} ${count}`).join(", ")}`} />
    <ul id="owners">${legend.slice(0, 100).map(([owner, count]) => html`<li key=${owner}><${Dot} owner=${owner} />${owner ?? "nobody"}: ${number(count)}</li>`)}</ul></figure>`;
}

function Dot({ owner }) {
  const canvas = useRef(null);
  useEffect(() => {
    const context = canvas.current.getContext("2d"), { colour, pattern } = looksOf(owner);
    context.fillStyle = colour;
    context.fillRect(0, 0, 26, 26);
    mark(context, pattern, 0, 0, 27);
  }, [owner]);
  return html`<canvas class="dot" width="26" height="26" ref=${canvas} aria-hidden="true"></canvas>`;
}

// ------------------------------------------------------------ lag by stream over time

const HEAT = ["#eef3f8", "#c6dbef", "#93c3df", "#5aa2cf", "#2f7dbb", "#135a9c", "#083a70", "#041e42"];
const LINE = 14;
const dark = () => window.matchMedia("(prefers-color-scheme: dark)").matches;
// More is further from the ground: darker on light, lighter on dark.
const shades = () => dark() ? HEAT.slice(1).reverse() : HEAT.slice(1);

export function HeatMap({ heat }) {
  const [pointed, point] = useState("");
  const rows = heat.streams, times = heat.times, colours = shades();
  const most = (lags) => Math.max(0, ...lags); // what is unknown is null, and counts as 0 here
  const top = Math.max(1, ...rows.map(([, lags]) => most(lags)));
  const gaps = new Set(heat.gaps);
  const shade = (lag) => lag === 0 ? null : colours[Math.min(colours.length - 1, Math.floor(colours.length * Math.log1p(lag) / Math.log1p(top) * 0.999))];
  const label = 96;
  const draw = (context, width) => {
    const ink = getComputedStyle(document.body).color, step = (width - label) / Math.max(1, times.length);
    context.font = "11px system-ui, sans-serif";
    rows.forEach(([stream, lags], line) => {
      context.fillStyle = ink;
      context.fillText(stream.length > 15 ? `…${stream.slice(-14)}` : stream, 0, line * LINE + 10);
      lags.forEach((lag, place) => {
        const x = label + place * step, y = line * LINE, wide = Math.max(1, step - 0.5);
        if (gaps.has(place)) return;
        if (lag === null) { unknown(context, ink, x, y, wide, LINE - 1); return; }
        context.fillStyle = shade(lag) ?? "rgb(128 128 128 / 10%)";
        context.fillRect(x, y, wide, LINE - 1);
      });
    });
    if (times.length > 1) {
      context.fillStyle = ink;
      context.fillText(clock(times[0]), label, rows.length * LINE + 12);
      const end = clock(times.at(-1));
      context.fillText(end, width - context.measureText(end).width, rows.length * LINE + 12);
    }
  };
  const grid = (width) => ({ left: label, columns: Math.max(1, times.length), rows: rows.length, wide: (width - label) / Math.max(1, times.length), high: LINE });
  const seeing = (place, line) => {
    const lag = rows[line]?.[1][place];
    point(lag === undefined ? "" : gaps.has(place) ? `nobody looked until ${clock(times[place])}` : `${rows[line][0]} at ${clock(times[place])}: ${lag === null ? "unknown" : number(lag)}`);
  };
  const lost = rows.filter(([, lags]) => lags.some((lag, place) => lag === null && !gaps.has(place)));
  const [first, sure] = [rows[0], rows.find((row) => !lost.includes(row))];
  const worst = first === undefined ? "no stream had any" : [
    lost.length === 0 ? "" : `unknown for a while of ${plural(lost.length, "stream")}, such as ${first[0]}`,
    sure === undefined ? "" : `most had ${sure[0]}, ${number(most(sure[1]))}`,
  ].filter(Boolean).join("; ");
  return html`<figure id="heat"><figcaption>Lag by stream over time, worst first <output>${pointed}</output></figcaption>
    ${rows.length === 0 ? html`<p class="more">No stream had any lag while somebody looked.</p>` : html`<${Picture} draw=${draw} height=${() => rows.length * LINE + 16} of=${[heat]} told=${`Lag by stream over time: ${worst}`} onPoint=${seeing} grid=${grid} />
    <p class="scale">${lost.length === 0 ? "" : html`unknown <${Unknown} /> · `}1 ${colours.map((colour) => html`<span style=${{ background: colour }}></span>`)} ${short(top)}${heat.others > 0 ? ` · and ${number(heat.others)} streams with less` : ""}</p>`}</figure>`;
}

// Hatched, so that nobody takes it for a shade: an unknown lag may be any.
function unknown(context, ink, x, y, wide, high) {
  context.save();
  context.beginPath();
  context.rect(x, y, wide, high);
  context.clip();
  context.strokeStyle = ink;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = Math.floor((x - high) / 4) * 4; at < x + wide; at += 4) { context.moveTo(at, y + high); context.lineTo(at + high, y); }
  context.stroke();
  context.restore();
}

function Unknown() {
  const canvas = useRef(null);
  useEffect(() => { unknown(canvas.current.getContext("2d"), getComputedStyle(document.body).color, 0, 0, 26, 13); }, []);
  return html`<canvas class="unknown" width="26" height="13" ref=${canvas} aria-hidden="true"></canvas>`;
}

// ------------------------------------------------------------ curves, by uPlot, which is read when it is needed

let library = null;
function uPlot() {
  if (library === null) {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = "/static/vendor/uPlot.css";
    document.head.append(sheet);
    library = import("./vendor/uPlot.mjs").then((module) => module.default);
  }
  return library;
}

// `series`: {label, points: [number or null], stroke}; `times` in milliseconds.
export function Chart({ title, times, series, told, height = 170 }) {
  const holder = useRef(null), plot = useRef(null);
  const [pointed, point] = useState("");
  const data = [times.map((time) => time / 1000), ...series.map((one) => one.points)];
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    let gone = false, watch = null;
    uPlot().then((Plot) => {
      if (gone || holder.current === null) return; // its page was left meanwhile
      const style = getComputedStyle(document.body), ink = style.getPropertyValue("--soft"), line = style.getPropertyValue("--line");
      const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui, sans-serif" };
      plot.current = new Plot({
        width: Math.max(200, holder.current.clientWidth), height,
        legend: { show: false }, cursor: { y: false }, padding: [8, 30, 0, 0],
        hooks: { setCursor: [(self) => { const at = self.cursor.idx; point(at === null || at === undefined ? "" : `${clock(self.data[0][at] * 1000)}: ${number(self.data[1][at])}`); }] },
        scales: { y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.05] } },
        axes: [{ ...axis, size: 28, values: (_, splits) => splits.map((at) => clock(at * 1000)), space: 80 }, { ...axis, size: 52, values: (_, splits) => splits.map(short) }],
        series: [{}, ...series.map(({ label, stroke }) => ({ label, stroke, width: 1.5, fill: `${stroke}22`, points: { show: false } }))],
      }, latest.current, holder.current);
      watch = new ResizeObserver(() => { if (holder.current) plot.current?.setSize({ width: Math.max(200, holder.current.clientWidth), height }); });
      watch.observe(holder.current);
    }, (error) => { if (!gone) point(`the curve cannot be drawn: ${error.message}`); library = null; });
    return () => { gone = true; watch?.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, []);
  useEffect(() => { plot.current?.setData(data); }, [times.at(-1), times.length]);
  const keyed = (event) => {
    const shown = plot.current, last = times.length - 1;
    if (shown === null || last < 0) return;
    const at = shown.cursor.idx ?? last, step = Math.max(1, Math.round(times.length / 60));
    const next = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    shown.setCursor({ left: shown.valToPos(shown.data[0][Math.max(0, Math.min(last, next))], "x"), top: 10 });
  };
  const leave = () => plot.current?.setCursor({ left: -10, top: -10 });
  return html`<figure><figcaption>${title} <output>${pointed}</output></figcaption>
    <div class="chart" ref=${holder} role="application" tabindex="0" aria-label=${`${told}. Arrow keys go through it.`} onKeyDown=${keyed} onBlur=${leave}></div></figure>`;
}
