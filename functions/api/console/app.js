// The frame: who is signed in, where they are, and the view that belongs there.
import { chooseTenant, get, lostSince, onConnection, post, willPass } from "./api.js";
import { showUtc, showsUtc, timeOfDay } from "./format.js";
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact.js";
import { deployedKinds, loadKinds, manyOf } from "./kinds.js";
import { Dialog, Dialogs, Link, Loading, MANAGES, Said, STARTS, Trouble, Visitor, later, useMay } from "./parts.js";
import { go, place, tenantInLinks, usePlace } from "./router.js";
import { enter, logOut, onSession, session } from "./session.js";

// Each view is loaded when it is first opened. The start of the path names it; `key` is its shortcut after `g`.
const MONITOR = [
  { path: "overview", name: "Overview", key: "o", load: () => import("./views/overview.js") },
  { path: "runs", name: "Runs", key: "r", load: () => import("./views/runs.js") },
  { path: "failures", name: "Failures", key: "f", load: () => import("./views/failures.js") },
];
const RESOURCES = [
  { path: "connections", name: "Connections", key: "c", load: () => import("./views/connections.js") },
  { path: "rate-limits", name: "Rate limits", key: "l", load: () => import("./views/rate_limits.js") },
];
const SETTINGS = [
  { path: "members", name: "Members", key: "m", roles: MANAGES, load: () => import("./views/members.js") },
  { path: "tokens", name: "Tokens", key: "t", roles: MANAGES, load: () => import("./views/tokens.js") },
  { path: "audit-log", name: "Audit log", key: "a", roles: MANAGES, load: () => import("./views/audit.js") },
  { path: "system", name: "System", key: "s", roles: MANAGES, load: () => import("./views/system.js") },
];
const loadWork = () => import("./views/work.js");
const LOGIN = { load: () => import("./views/login.js") };
const NOT_FOUND = { load: () => import("./views/not_found.js") };
const loaded = new Map();
const Palette = later(async () => (await import("./views/palette.js")).default);

// Links that people kept: where each view has gone.
const MOVED = { now: "overview", gates: "rate-limits", audit: "audit-log", health: "system", people: "members" };
function movedTo(path) {
  const [first, ...rest] = path;
  if (path.length === 0) return "overview";
  if (Object.hasOwn(MOVED, first)) return [MOVED[first], ...rest.map(encodeURIComponent)].join("/");
  return deployedKinds().map((kind) => kind.moved(path, kind.name)).find(Boolean) ?? null;
}

let groups = null; // fixed once the kinds are known
function sections() {
  groups ??= [
    { name: "Monitor", views: MONITOR },
    { name: "Work", views: deployedKinds().map((kind, n) => ({ path: `work/${kind.name}`, name: manyOf(kind), key: String(n + 1), load: loadWork, kind })) },
    { name: "Resources", views: RESOURCES },
    { name: "Settings", views: SETTINGS },
  ];
  return groups;
}

function View({ of, ...rest }) {
  const [, again] = useState(0);
  const [problem, setProblem] = useState(null);
  const Component = loaded.get(of);
  useEffect(() => {
    if (loaded.has(of)) return;
    of.load().then(
      (module) => {
        loaded.set(of, module.default);
        again((n) => n + 1);
      },
      () => setProblem({ of, message: "This page couldn't be loaded. You may be offline, or a new version was deployed: reload the page." }),
    );
  }, [of]);
  const [broken, recover] = useErrorBoundary();
  useEffect(recover, [of, location.href]);
  if (broken) return html`<${Trouble} problem=${new Error(`This page hit an unexpected problem: ${broken.message}. Reload it, or go to another page.`)} />`;
  if (problem?.of === of) return html`<${Trouble} problem=${problem} />`;
  return Component ? html`<${Component} ...${rest} />` : html`<${Loading} />`;
}

function App() {
  const [entered, setEntered] = useState(false);
  const [refusal, setRefusal] = useState(null);
  const [, again] = useState(0);
  const [me, setMe] = useState(null);
  const [problem, setProblem] = useState(null);
  const here = usePlace();
  const known = session();

  useEffect(() => onSession(() => again((n) => n + 1)), []);
  useEffect(() => {
    Promise.all([enter(), loadKinds()]).then(([said]) => {
      setRefusal(said);
      setEntered(true);
    });
  }, []);
  useEffect(() => {
    setMe(null);
    setProblem(null);
    chooseTenant(null);
    tenantInLinks(null);
    if (!entered || known === null) return undefined;
    let timer = null;
    const look = () => get("me").then(setMe, (error) => {
      setProblem(error);
      if (willPass(error)) timer = setTimeout(look, 3000);
    });
    look();
    return () => clearTimeout(timer);
  }, [entered, known === null]);

  if (!entered) return html`<${Loading} />`;
  if (known === null) return html`<${View} of=${LOGIN} refusal=${refusal} />`;
  if (me === null) return problem ? html`<main class="alone"><${Trouble} problem=${problem} /><p><button class="button" onClick=${logOut}>Log out</button></p></main>` : html`<${Loading} />`;
  const moved = movedTo(here.path);
  if (moved !== null) return html`<${Moved} to=${moved} />`;
  return html`<${House} me=${me} name=${known.name} here=${here} />`;
}

function Moved({ to }) {
  useEffect(() => go(`${to}${location.search}`, { replace: true }), [to]);
  return html`<${Loading} />`;
}

const LAST = "baton.tenant";

function House({ me, name, here }) {
  const wanted = here.query.get("tenant");
  const tenant = wanted === null ? (me.tenants.find((each) => each.id === localStorage.getItem(LAST)) ?? me.tenants[0]) : tenantOf(me, wanted);
  const [helps, setHelps] = useState(false);
  const [isSearching, setSearching] = useState(false);
  const [isUtc, setUtc] = useState(showsUtc());
  const [isOpen, setOpen] = useState(false); // on a phone the sidebar is a menu
  const main = useRef(null);
  if (tenant) {
    chooseTenant(tenant.id);
    tenantInLinks(me.tenants.length > 1 ? tenant.id : null);
    if (me.tenants.length > 1) localStorage.setItem(LAST, tenant.id); // where an address without a tenant leads next time
  }
  const used = useUsedKinds(tenant?.id, here.path.join("/"));
  const isUsed = (view) => !view.kind || (used ?? ALL).has(view.kind.name) || view === viewAt([view], here.path);
  const may = (view) => (!view.roles || me.is_super_admin || view.roles.includes(tenant?.role)) && isUsed(view);
  const shownGroups = sections().map((group) => ({ ...group, views: group.views.filter(may) })).filter((group) => group.views.length > 0);
  const views = shownGroups.flatMap((group) => group.views);
  useShortcuts(views, () => setHelps(true), () => setSearching((before) => !before));
  useEffect(() => setOpen(false), [here.path.join("/")]);

  if (!tenant) {
    return html`<main class="alone"><h1>No access</h1>
      ${me.tenants.length > 0
        ? html`<p>${name} isn't a member of this tenant. <a href=${`overview?tenant=${me.tenants[0].id}`}>Go to ${me.tenants[0].name}</a>.</p>`
        : html`<p>${name} isn't a member of any tenant yet. ${me.invitations.length > 0 ? "Accept an invitation to become one." : "Ask an admin to add you."}</p>`}
      <${Invitations} of=${me.invitations} />
      <p><button class="button" onClick=${logOut}>Log out</button></p></main>`;
  }
  const visitor = { name, actor: me.actor, tenant, role: tenant.role, isSuper: me.is_super_admin };
  const view = viewAt(views, here.path);
  const rest = view ? here.path.slice(view.path.split("/").length) : here.path;
  return html`<${Visitor.Provider} value=${visitor}>
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <nav class="rail" aria-label="Main" onKeyDown=${(event) => event.key === "Escape" && setOpen(false)}>
      <${Link} to="overview" class="brand" aria-label="Baton: overview"><${Logo} /><span>Baton</span><//>
      <button type="button" class="button rail-menu" aria-expanded=${isOpen} aria-controls="views" onClick=${() => setOpen(!isOpen)}>${view?.name ?? "Menu"}</button>
      <div id="views" class=${isOpen ? "rail-views open" : "rail-views"}>
        ${shownGroups.map((group) => html`<p id=${`group-${group.name}`} class="rail-group">${group.name}</p>
          <ul aria-labelledby=${`group-${group.name}`}>${group.views.map((each) => html`<li><${Link} to=${each.path} aria-current=${each === view ? "page" : undefined}>${each.name}<//></li>`)}</ul>`)}
      </div>
    </nav>
    <div class="top">
      <span class="who">
        ${me.tenants.length > 1
          ? html`<label class="hidden" for="tenant">Tenant</label><select id="tenant" value=${tenant.id} onChange=${(event) => changeTenant(event.target.value, view)}>
              ${me.tenants.map((each) => html`<option value=${each.id} selected=${each.id === tenant.id}>${each.name}</option>`)}</select>`
          : html`<strong>${tenant.name}</strong>`}
        <span class="quiet">${name}, ${me.is_super_admin ? "super admin" : tenant.role}</span>
      </span>
      <span class="spring"></span>
      <button type="button" class="button search-button" aria-label="Search" aria-haspopup="dialog" aria-keyshortcuts="Control+K Meta+K" onClick=${() => setSearching(true)}><span aria-hidden="true">⌕</span> <span>Search</span> <kbd aria-hidden="true">${MODIFIER}K</kbd></button>
      <${NewMenu} at=${here.path.join("/")} />
      <button type="button" class="button plain wide-only" aria-pressed=${isUtc} title=${isUtc ? "Times are in UTC. Show them in your own time zone" : `Times are in your own time zone (${Intl.DateTimeFormat().resolvedOptions().timeZone}). Show them in UTC`} onClick=${() => { showUtc(!isUtc); setUtc(!isUtc); }}>UTC</button>
      <button type="button" class="button plain wide-only" onClick=${() => setHelps(true)}>Shortcuts</button>
      <button type="button" class="button plain" onClick=${logOut}>Log out</button>
    </div>
    <main id="main" tabindex="-1" ref=${main} key=${`${tenant.id} ${isUtc}`}><${LostBanner} /><${Invitations} of=${me.invitations} /><${View} key=${view?.path} of=${view ?? NOT_FOUND} path=${rest} query=${here.query} kind=${view?.kind} /></main>
    <${Dialogs} key=${`${tenant.id} ${here.path.join("/")}`} />
    <${Said} />
    ${isSearching && html`<${Palette} views=${views} onClose=${() => setSearching(false)} />`}
    ${helps && html`<${Shortcuts} views=${views} onClose=${() => setHelps(false)} />`}
  <//>`;
}

// Whoever added them to a tenant decided that alone: it is theirs once they accept.
function Invitations({ of }) {
  const [problem, setProblem] = useState(null);
  if (of.length === 0) return null;
  const answer = (tenant_id, accept) => post("me/invitations", { tenant_id, accept }).then(() => location.reload(), setProblem);
  return html`<section aria-label="Invitations">${of.map((each) => html`<p key=${each.id}><strong>${each.name}</strong> invites you as ${each.role}. <button type="button" class="button main" onClick=${() => answer(each.id, true)}>Accept</button> <button type="button" class="button" onClick=${() => answer(each.id, false)}>Decline</button></p>`)}
    ${problem && html`<${Trouble} problem=${problem} />`}</section>`;
}

const MODIFIER = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl ";

const [NONE, ALL] = [new Set(), { has: () => true }];

// The kinds that this tenant has runs of: the others are only in the menu New. What is started here is used from then on.
function useUsedKinds(tenantId, path) {
  const [used, setUsed] = useState(NONE);
  const isNew = path.startsWith("runs/");
  useEffect(() => {
    if (!tenantId) return undefined;
    let isOver = false;
    get("kinds").then(({ kinds }) => !isOver && setUsed(new Set(kinds.filter((kind) => kind.used).map((kind) => kind.name))), () => !isOver && setUsed(null)); // not known: all are shown
    return () => {
      isOver = true;
    };
  }, [tenantId, isNew]);
  return used;
}

// At the top of everything while nobody answers: what is shown below it may be out of date.
function LostBanner() {
  const [, again] = useState(0);
  useEffect(() => onConnection(() => again((n) => n + 1)), []);
  const since = lostSince();
  return html`<div role="status">${since !== null && html`<p class="banner">No connection to the API since ${timeOfDay(since)}. What you see may be out of date; reconnecting automatically.</p>`}</div>`;
}

const viewAt = (views, path) => views.find((each) => each.path.split("/").every((part, n) => part === path[n]));

// One menu starts everything: an entry for each kind.
function NewMenu({ at }) {
  const mayStart = useMay(STARTS);
  const [isOpen, setOpen] = useState(false);
  const menu = useRef(null);
  useEffect(() => setOpen(false), [at]);
  useEffect(() => {
    const outside = (event) => !menu.current?.contains(event.target) && setOpen(false);
    document.addEventListener("click", outside);
    return () => document.removeEventListener("click", outside);
  }, []);
  if (!mayStart || deployedKinds().length === 0) return null;
  const close = (event) => {
    if (event.key !== "Escape" || !isOpen) return;
    setOpen(false);
    menu.current.querySelector("button").focus();
  };
  return html`<div class="menu" ref=${menu} onKeyDown=${close}>
    <button type="button" class="button main" aria-expanded=${isOpen} aria-controls="new-menu" onClick=${() => setOpen(!isOpen)}>New</button>
    <ul id="new-menu" hidden=${!isOpen}>${deployedKinds().map((kind) => html`<li><${Link} to=${`work/${kind.name}/new`}>${kind.one ?? kind.title}<//></li>`)}</ul>
  </div>`;
}

// Someone who may act in more tenants than the API listed may name one of them; the API decides.
function tenantOf(me, id) {
  return me.tenants.find((each) => each.id === id) ?? (me.more_tenants ? { id, name: id, role: "viewer" } : undefined);
}

function changeTenant(id, view) {
  tenantInLinks(id);
  go(view?.path ?? place().path[0] ?? "overview"); // what is open in one tenant is not there in another
}

const Logo = () => html`<svg class="logo" viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
  <rect class="logo-back" width="32" height="32" rx="7" /><rect class="logo-baton" x="5" y="13" width="22" height="6" rx="3" transform="rotate(-32 16 16)" />
  <rect class="logo-grip" x="5" y="13" width="8" height="6" rx="3" transform="rotate(-32 16 16)" /></svg>`;

// `g` and a letter opens a view, `j` and `k` go through a list, `/` goes to the filter, Ctrl-K searches, `?` shows them all.
function useShortcuts(views, help, search) {
  const goes = useRef(false); // kept while the page is drawn anew between the two keys
  useEffect(() => {
    const listener = (event) => {
      if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k" && !event.shiftKey && !event.altKey) {
        if (document.querySelector("dialog[open]:not(.palette)")) return;
        event.preventDefault();
        search();
        return;
      }
      if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.target.closest("input, select, textarea")) return;
      const view = goes.current && views.find((each) => each.key === event.key);
      goes.current = event.key === "g" && !goes.current;
      if (view) go(view.path);
      else if (event.key === "?") help();
      else if (event.key === "j" || event.key === "k") moveInList(event.key === "j" ? 1 : -1);
      else if (event.key === "/") {
        const filter = document.querySelector("[data-filter]");
        if (filter) {
          event.preventDefault();
          filter.focus();
        }
      }
    };
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  });
}

// The link of the next row; Enter opens it.
function moveInList(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a[href]"));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)];
  next?.querySelector("a[href]").focus();
}

const Shortcuts = ({ views, onClose }) => html`<${Dialog} title="Shortcuts" onClose=${onClose}>
  <dl class="keys">
    ${views.map((each) => html`<div><dt><kbd>g</kbd> <kbd>${each.key}</kbd></dt><dd>${each.name}</dd></div>`)}
    <div><dt><kbd>${MODIFIER}K</kbd></dt><dd>Search runs, pages and actions</dd></div>
    <div><dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>Next and previous row; Enter opens it</dd></div>
    <div><dt><kbd>/</kbd></dt><dd>Go to the filter</dd></div>
    <div><dt><kbd>?</kbd></dt><dd>Show shortcuts</dd></div>
    <div><dt><kbd>Esc</kbd></dt><dd>Close a dialog</dd></div>
  </dl>
  <div class="buttons"><button type="button" class="button main" onClick=${onClose}>Close</button></div>
<//>`;

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
