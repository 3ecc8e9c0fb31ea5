"use strict";

// Follows /api/live and shows what it says. Text from the server is only ever put in as text.

const SHOWN = 200; // rows of a table at most; a filter finds the others
const find = (selector, within = document) => within.querySelector(selector);
const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en");
const shown = { overview: null, group: null, source: null, sort: 6, down: true };
const map = new StreamMap(find("#map"));
const asking = new Asking(find("#act"));
window.streamlease = { looks: 0, rows: 0, shownAt: 0 };

// Rows and cells are kept and only what differs is written: a click is not lost to an update, and little is drawn anew.
function resize(parent, count, tag) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(document.createElement(tag));
}

function write(place, value, numeric) {
  const text = value !== null && typeof value === "object" ? value.text : numeric ? number(value) : String(value ?? "–");
  const target = value?.target;
  let holder = place;
  if (target !== undefined) {
    if (place.firstElementChild === null) place.replaceChildren(document.createElement("a"));
    holder = place.firstElementChild;
    if (holder.getAttribute("href") !== target) holder.setAttribute("href", target);
  }
  if (holder.textContent !== text) holder.textContent = text;
  place.classList.toggle("n", numeric);
}

// What a column shows of a row: the server wrote into its heading which field that is, and of which kind.
// Read from the headings once for all rows: most of a drawing would be that otherwise.
function columnsOf(table) {
  return [...table.querySelectorAll("th")].map((th) => ({
    path: th.dataset.field.split("."), show: KINDS[th.dataset.kind], of: th.dataset.of?.split("."), numeric: th.classList.contains("n"),
  }));
}

function at(row, path) {
  let value = row;
  for (const name of path) value = name.startsWith("-") ? value?.at(Number(name)) : value?.[name];
  return value ?? null;
}

const KINDS = {
  text: (value) => value,
  number: (value) => value,
  list: (value) => value.join(" ") || null,
  share: (value, row, of) => ({ text: `${number(value)} / ${number(at(row, of))}` }),
  moment: (value) => value === null ? null : new Date(value / 1000).toLocaleString(),
  group: (value) => ({ text: value, target: `#/group/${encodeURIComponent(value)}` }),
};

function fill(table, rows, total, empty) {
  const body = find("tbody", table), columns = columnsOf(table);
  resize(body, rows.length, "tr");
  rows.forEach((row, line) => {
    const tr = body.children[line];
    resize(tr, columns.length, "td");
    columns.forEach(({ path, show, of, numeric }, place) =>
      write(tr.children[place], show(at(row, path), row, of), numeric));
  });
  const more = find(".more", table.closest("div:not(.columns), section"));
  more.textContent = total === 0 ? empty : total > rows.length ? `${rows.length} of ${number(total)} shown: filter to find others` : "";
}

function route() {
  const [, page, ...rest] = location.hash.split("/");
  if (page === "group") return ["group", decodeURIComponent(rest.join("/"))];
  return [page === "spaces" || page === "hosts" ? page : "groups", null];
}

function show() {
  const [page, subscription] = route();
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== page;
  for (const a of document.querySelectorAll("nav a")) a.classList.toggle("here", a.dataset.page === page);
  if (shown.source === null || shown.subscription !== subscription) follow(subscription);
  draw();
}

function follow(subscription) {
  shown.source?.close();
  shown.subscription = subscription;
  shown.group = null;
  const query = subscription === null ? "" : `?subscription=${encodeURIComponent(subscription)}`;
  const source = new EventSource(`/api/live${query}`);
  source.onopen = () => state("live", "live");
  source.onerror = () => state("lost", "no connection, trying again");
  // On the page of a group, the news of the group come right behind, and are drawn then.
  source.addEventListener("overview", (event) => {
    shown.overview = JSON.parse(event.data);
    if (shown.subscription === null) draw(); else drawHead(shown.overview);
  });
  source.addEventListener("group", (event) => { take(JSON.parse(event.data)); draw(); });
  shown.source = source;
}

function state(kind, text) {
  const place = find("#state");
  place.className = kind;
  place.textContent = text;
}

function take(news) {
  if (news.summary === undefined) { shown.group = { missing: true }; return; }
  if (news.whole || shown.group === null || shown.group.missing) {
    shown.group = { rows: new Map(), order: [], lag: [], events: [] };
  }
  const group = shown.group;
  const known = group.rows.size;
  for (const row of news.rows) group.rows.set(row[0], row);
  for (const stream of news.gone) group.rows.delete(stream);
  if (group.rows.size !== known || news.gone.length > 0) {
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    group.order = [...group.rows.keys()].sort(compare);
  }
  group.lag.push(...news.lag);
  group.lag.splice(0, group.lag.length - 1200);
  group.events.push(...news.events);
  group.events.splice(0, group.events.length - 200);
  group.summary = news.summary;
  window.streamlease.rows = news.rows.length;
}

function draw() {
  const seen = shown.overview;
  if (seen === null || seen.redis === undefined) return;
  const [page] = route();
  drawHead(seen);
  ({ groups: drawGroups, spaces: drawSpaces, hosts: drawHosts, group: drawGroup })[page](seen);
  window.streamlease.looks += 1;
  window.streamlease.shownAt = Date.now();
}

function drawHead(seen) {
  if (seen.redis === undefined) return;
  find("#server").textContent = `${seen.redis.name} ${seen.redis.version} at ${seen.redis.address}, ${seen.redis.memory} used`;
  find("#problem").hidden = seen.error === null;
  find("#problem").textContent = seen.error ?? "";
  const damaged = seen.damaged ?? [];
  find("#damaged").hidden = damaged.length === 0;
  resize(find("#damaged"), Math.min(damaged.length, SHOWN), "li");
  damaged.slice(0, SHOWN).forEach((one, line) => write(find("#damaged").children[line], `${one.what} cannot be read: ${one.why}`, false));
  find(".acts").hidden = !seen.acts;
}

function drawGroups(seen) {
  const wanted = find("#groups .filter").value.toLowerCase();
  const found = seen.groups.filter((group) => group.subscription.toLowerCase().includes(wanted));
  found.sort((one, other) => (other.lag ?? Infinity) - (one.lag ?? Infinity));
  fill(find("#groups table"), found.slice(0, SHOWN), found.length, "There are no groups.");
}

function drawSpaces(seen) {
  fill(find("#spaces table"), seen.spaces.slice(0, SHOWN), seen.spaces.length, "There are no spaces.");
}

function drawHosts(seen) {
  fill(find("#hosts table"), seen.hosts.slice(0, SHOWN), seen.hosts.length,
    "There are no leader hosts: consumers lead by themselves.");
}

function drawGroup() {
  const group = shown.group;
  find("#group h1").textContent = shown.subscription;
  if (group === null) return;
  if (group.missing) { find("#group .facts").textContent = "There is no such group."; return; }
  const { leader, term, borrowers, streams, held, moves, lag, expired } = group.summary;
  find("#group .facts").textContent =
    `${leader === null ? "no leader" : `led by ${leader}`}, term ${term}; ${number(held)} of ${number(streams)} streams held by ` +
    `${number(borrowers)} borrowers; ${number(moves)} moves; lag ${number(lag)}${expired ? "; expired: it keeps no messages" : ""}`;
  drawLag(find("#lag"), group.lag);
  map.show(group.rows, group.order);
  drawOwners(group);
  drawStreams(group);
  find("#events").replaceChildren(...[...group.events].reverse().map((event) => {
    const li = document.createElement("li");
    const time = document.createElement("time");
    time.textContent = new Date(event.at).toLocaleTimeString();
    const text = event.text ?? (event.to !== undefined ? `${event.stream} to ${event.to}` : `${event.stream} within ${event.ms} ms`);
    li.append(time, `${event.what}: ${text}`);
    return li;
  }));
}

function ownersOf(group) {
  return [...new Set([...(group?.rows?.values() ?? [])].map((row) => row[1]))].filter((owner) => owner !== null).sort();
}

function drawOwners(group) {
  const counts = new Map();
  for (const row of group.rows.values()) counts.set(row[1], (counts.get(row[1]) ?? 0) + 1);
  const owners = [...counts].sort((one, other) => String(one[0]).localeCompare(String(other[0])));
  find("#owners").replaceChildren(...owners.slice(0, SHOWN).map(([owner, count]) => {
    const li = document.createElement("li");
    const dot = document.createElement("span");
    dot.className = "dot";
    dot.style.setProperty("background", colourOf(owner));
    li.append(dot, `${owner ?? "nobody"}: ${number(count)}`);
    return li;
  }));
}

function drawStreams(group) {
  const wanted = find("#group .filter").value.toLowerCase();
  const all = [...group.rows.values()];
  const rows = wanted === "" ? all : all.filter((row) => row.slice(0, 4).join(" ").toLowerCase().includes(wanted));
  const sign = shown.down ? -1 : 1;
  const key = (row) => row[shown.sort] ?? (typeof row[4] === "number" && shown.sort > 3 ? Infinity : "");
  rows.sort((one, other) => (key(one) < key(other) ? -1 : key(one) > key(other) ? 1 : 0) * sign);
  fill(find("#group table"), rows.slice(0, SHOWN), rows.length, "No stream matches.");
}

window.addEventListener("hashchange", show);
window.addEventListener("resize", draw);
for (const input of document.querySelectorAll(".filter")) input.addEventListener("input", draw);
for (const button of document.querySelectorAll("[data-act]")) {
  button.addEventListener("click", () => asking.open(button.dataset.act, shown.subscription, ownersOf(shown.group)));
}
for (const th of document.querySelectorAll("[data-sort]")) {
  th.addEventListener("click", () => {
    const sort = Number(th.dataset.sort);
    shown.down = shown.sort === sort ? !shown.down : sort > 3;
    shown.sort = sort;
    draw();
  });
}
find("#map").addEventListener("mousemove", (event) => {
  const stream = map.at(event.offsetX, event.offsetY);
  const row = stream === undefined ? undefined : shown.group?.rows.get(stream);
  find("#pointed").textContent = row === undefined ? "" : `— ${row[0]}: ${row[1] ?? "nobody"}, lag ${number(row[6])}`;
});
show();
