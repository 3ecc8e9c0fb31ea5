// The console: which page is shown, its head, and the loop that draws it when something is new.

import { html, place, render, to, useErrorBoundary } from "./lib.js";
import { follow, onChange, ready, session, store, trouble } from "./live.js";
import { ActDialog, Login, logout } from "./acts.js";
import { Problems, useInView } from "./parts.js";
import { Home } from "./home.js";
import { Group, Groups } from "./groups.js";
import { Space, Spaces } from "./spaces.js";
import { Catalog, Hosts, Services } from "./places.js";
import { Queries, Query } from "./queries.js";

const PAGES = { home: Home, groups: Groups, group: Group, spaces: Spaces, space: Space, queries: Queries, query: Query, hosts: Hosts, services: Services, catalog: Catalog };
const NAV = [["home", "Home"], ["groups", "Groups", "group"], ["spaces", "Spaces", "space"], ["queries", "Queries", "query"], ["hosts", "Hosts"], ["services", "Services"], ["catalog", "Catalog"]];

function App() {
  const { page, arg, query } = place();
  const shown = PAGES[page] === undefined ? "home" : page;
  if (store.session !== null && store.session.role === null) {
    return html`<${Head} page="" /><main>${store.session.login ? html`<${Login} />` : html`<p class="problem" role="alert">The proxy does not say who you are.</p>`}</main>`;
  }
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>To the page</a>
    <${Head} page=${shown} query=${query} />
    <${Problems} />
    <main id="main" tabindex="-1"><section id=${shown} key=${`${shown} ${arg} ${query.server ?? ""}`}>
      ${store.overview?.redis === undefined || !ready() ? html`<p class="more" role="status">${trouble() ?? "reading…"}</p>` : html`<${Bounded} page=${PAGES[shown]} arg=${arg} query=${query} />`}
    </section></main>
    <${ActDialog} />`;
}

// A defect of one page is told there; its head and the other pages go on.
function Bounded({ page: Page, arg, query }) {
  const [failed] = useErrorBoundary((error) => window.reportError(error));
  return failed ? html`<p class="problem" role="alert">This page could not be drawn (${String(failed)}): load it again.</p>` : html`<${Page} arg=${arg} query=${query} />`;
}

function Head({ page, query }) {
  const pages = useInView(page);
  const redis = store.overview?.redis, who = store.session;
  return html`<header>
    <a class="name" href=${to("home")}><img src="/static/icon.svg" alt="" width="18" height="18" />Streamlease</a>
    <nav aria-label="Pages" ref=${pages}>${NAV.map(([name, title, also]) => html`<a href=${to(name)} data-page=${name} aria-current=${page === name || page === also ? "page" : undefined}>${title}</a>`)}</nav>
    ${(who?.servers.length ?? 0) > 1 ? html`<label class="servers"><span class="hidden">Redis</span><select id="servers" value=${query?.server ?? who.servers[0]} onChange=${(event) => {
      location.hash = event.target.value === who.servers[0] ? "#/" : `#/?server=${encodeURIComponent(event.target.value)}`;
    }}>${who.servers.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>` : ""}
    <span id="server" title=${redis ? `${redis.memory} used` : ""}>${redis ? `${redis.name} ${redis.version} · ${redis.address} · ${redis.memory}` : ""}</span>
    ${who?.name ? html`<span id="who">${who.name} · ${who.role}</span>` : ""}
    ${who?.login && who.role !== null && (who.name || who.role === "admin") ? html`<button type="button" class="small" onClick=${logout}>Log out</button>` : ""}
    <span id="state" class=${store.state.kind} role="status">${store.state.text}</span>
  </header>`;
}

const root = document.querySelector("#app");
let arrived = null;
function draw() {
  // The address changes before the browser says so: until then, what is followed is of the page before.
  if (location.hash === arrived) render(html`<${App} />`, root);
}

root.replaceChildren();
onChange(draw);
let here = null;
function arrive() {
  arrived = location.hash;
  const { page, arg } = place();
  const name = `${page} ${arg}`;
  document.title = arg ? `${arg} · Streamlease` : "Streamlease";
  if (here !== null && here !== name) { window.scrollTo(0, 0); document.querySelector("main")?.focus({ preventScroll: true }); }
  here = name;
  if (store.session === null || store.session.role !== null) follow();
  draw();
}
window.addEventListener("hashchange", arrive);
session().catch(() => {});
arrive();
// "/" goes to the filter of the page, as in many programs.
window.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.target.closest("input, textarea, select, dialog")) {
    const field = document.querySelector("main input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  }
});
