// What all pages use: markup, numbers for people, addresses within the console, and questions to its server.

import { h } from "preact";
import htm from "htm";

export { Fragment, render } from "preact";
export { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export const html = htm.bind(h);

// ------------------------------------------------------------ numbers and times

export const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en");

export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return `${(value / (unit === "k" ? 1e3 : size)).toLocaleString("en", { maximumFractionDigits: value / size < 10 ? 1 : 0 })} ${unit}`;
  }
  return number(value);
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 10) return `${value.toFixed(1)}/s`;
  return `${short(Math.round(value))}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${(value / size).toLocaleString("en", { maximumFractionDigits: value / size < 10 ? 1 : 0 })} ${unit}`;
  }
  return `${number(value)} B`;
}

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.05) return "0 s";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const two = (value) => String(value).padStart(2, "0");

export function clock(milliseconds) {
  const time = new Date(milliseconds);
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

export function moment(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  const time = new Date(milliseconds);
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const today = new Date().toDateString() === time.toDateString();
  return today ? clock(milliseconds) : `${day} ${clock(milliseconds)}`;
}

export const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many ?? `${one}s`}`;

// ------------------------------------------------------------ addresses: all that is shown can be linked to

export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  return { page: page || "home", arg: decode(rest.join("/")), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

export function to(page, arg = "", query = {}) {
  const server = place().query.server;
  const all = new URLSearchParams(Object.entries({ ...(server ? { server } : {}), ...query }).filter(([, value]) => value));
  const text = all.toString();
  return `#/${page === "home" ? "" : page}${arg ? `/${encodeURIComponent(arg)}` : ""}${text ? `?${text}` : ""}`;
}

export function change(query) {
  const { page, arg, query: before } = place();
  const target = to(page, arg, { ...before, ...query });
  if (target !== location.hash) location.hash = target;
}

export const groupLink = (subscription) => html`<a href=${to("group", subscription)}>${subscription}</a>`;
export const spaceLink = (space, query) => html`<a href=${to("space", space, query)}>${space}</a>`;

export function spaceOf(stream) {
  return stream.replace(/\.\d+\.\d+$/, "");
}

// ------------------------------------------------------------ questions to the server

export class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

export function address(path, query = {}, server = place().query.server) {
  const all = new URLSearchParams({ ...(server ? { server } : {}), ...query }).toString();
  return all ? `${path}?${all}` : path;
}

async function read(response) {
  let said;
  try { said = await response.json(); } catch { said = { error: `the console answered ${response.status}` }; }
  if (!response.ok) throw new Refused(response.status, said.error ?? `the console answered ${response.status}`);
  return said;
}

export async function get(path, query = {}, signal = undefined) {
  return read(await fetch(address(path, query), { signal }));
}

// To the server that the page is of now, unless it was another one when this was asked for.
export async function post(path, body, server = place().query.server, signal = undefined) {
  return read(await fetch(address(path, {}, server ?? ""), {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  }));
}
