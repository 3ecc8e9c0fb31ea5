"use strict";

// The two pictures of a group: lag over time, and a map with one cell per stream.

const COLOURS = ["#3b7dd8", "#e08a2e", "#3fa35b", "#b0529c", "#c8493f", "#2aa3a3", "#8a6bd1", "#8f8f2f", "#d0639b", "#5f7f95"];
const NOBODY = "#9aa3ad";
const FLASH_MS = 1500;

const given = new Map();

// Owners get colours in the order in which they are seen, so that no two of few look alike.
function colourOf(owner) {
  if (owner === null) return NOBODY;
  if (!given.has(owner)) {
    const place = given.size;
    given.set(owner, place < COLOURS.length ? COLOURS[place] : `hsl(${Math.round(place * 137.508 % 360)} 50% 50%)`);
  }
  return given.get(owner);
}

function surface(canvas) {
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${canvas.dataset.height}px`;
  const width = canvas.clientWidth, height = Number(canvas.dataset.height);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

function drawLag(canvas, points) {
  const [context, width, height] = surface(canvas);
  const ink = getComputedStyle(document.body).color;
  const known = points.filter(([, lag]) => lag !== null);
  if (known.length < 2) return;
  const from = points[0][0], to = points[points.length - 1][0];
  const top = Math.max(1, ...known.map(([, lag]) => lag));
  const x = (time) => 4 + (width - 8) * (time - from) / Math.max(1, to - from);
  const y = (lag) => height - 18 - (height - 36) * lag / top;
  context.strokeStyle = "#3b7dd8";
  context.lineWidth = 1.5;
  context.beginPath();
  let open = false; // where the lag is unknown the line has a gap
  for (const [time, lag] of points) {
    if (lag === null) { open = false; continue; }
    if (open) context.lineTo(x(time), y(lag)); else context.moveTo(x(time), y(lag));
    open = true;
  }
  context.stroke();
  context.fillStyle = ink;
  context.font = "11px system-ui, sans-serif";
  context.fillText(top.toLocaleString("en"), 4, 12);
  context.fillText(new Date(from).toLocaleTimeString(), 4, height - 4);
  const end = new Date(to).toLocaleTimeString();
  context.fillText(end, width - context.measureText(end).width - 4, height - 4);
}

class StreamMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.streams = [];
    this.owners = new Map();
    this.flashes = new Map();
    this.places = new Map();
    this.context = null;
    this.columns = 1;
    this.size = 8;
    this.drawing = false;
  }

  show(rows, order) {
    const now = performance.now();
    const before = this.owners;
    this.owners = new Map();
    for (const [stream, row] of rows) {
      this.owners.set(stream, row[1]);
      if (before.has(stream) && before.get(stream) !== row[1]) this.flashes.set(stream, now);
    }
    this.streams = order;
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    const count = Math.max(1, this.streams.length);
    this.size = Math.max(4, Math.min(18, Math.floor(Math.sqrt(width * 220 / count))));
    this.columns = Math.max(1, Math.floor(width / this.size));
    this.canvas.dataset.height = Math.max(40, Math.ceil(count / this.columns) * this.size);
    [this.context] = surface(this.canvas);
    this.places = new Map(this.streams.map((stream, place) => [stream, place]));
    for (const stream of this.streams) this.cell(stream, colourOf(this.owners.get(stream) ?? null));
    this.flash();
  }

  cell(stream, colour) {
    const place = this.places.get(stream);
    if (place === undefined) return;
    this.context.fillStyle = colour;
    this.context.fillRect(place % this.columns * this.size, Math.floor(place / this.columns) * this.size, this.size - 1, this.size - 1);
  }

  // Only the cells that flash are drawn anew, ten times a second.
  flash() {
    const now = performance.now();
    for (const [stream, since] of this.flashes) {
      const left = 1 - (now - since) / FLASH_MS;
      this.cell(stream, colourOf(this.owners.get(stream) ?? null));
      if (left > 0) this.cell(stream, `rgba(255, 235, 59, ${left})`); else this.flashes.delete(stream);
    }
    if (this.flashes.size === 0 || this.drawing) return;
    this.drawing = true;
    window.setTimeout(() => { this.drawing = false; this.flash(); }, 100);
  }

  at(x, y) {
    const column = Math.floor(x / this.size);
    if (column >= this.columns) return undefined;
    return this.streams[Math.floor(y / this.size) * this.columns + column];
  }
}
