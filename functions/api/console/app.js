// The page: who looks, where he is, and the view that belongs there.
import { chooseTenant, get, willPass } from "./api.js";
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./vendor/preact.js";
import { Dialog, Link, Loading, MANAGES, Said, Trouble, Visitor } from "./parts.js";
import { go, place, tenantInLinks, usePlace } from "./router.js";
import { enter, logOut, onSession, session } from "./session.js";

// Each view is loaded when it is first looked at. The first word of the path names it.
const VIEWS = [
  { path: "now", name: "Now", key: "n", load: () => import("./views/now.js") },
  { path: "runs", name: "Runs", key: "r", load: () => import("./views/runs.js") },
  { path: "ingestions", name: "Page ingestion", key: "i", load: () => import("./views/ingestions.js") },
  { path: "gates", name: "Gates", key: "g", load: () => import("./views/gates.js") },
  { path: "connections", name: "Connections", key: "c", load: () => import("./views/connections.js") },
  { path: "audit", name: "Audit", key: "a", roles: MANAGES, load: () => import("./views/audit.js") },
  { path: "health", name: "Health", key: "h", roles: MANAGES, load: () => import("./views/health.js") },
  { path: "people", name: "People", key: "p", roles: MANAGES, load: () => import("./views/people.js") },
];
const LOGIN = { load: () => import("./views/login.js") };
const NOWHERE = { load: () => import("./views/nowhere.js") };
const loaded = new Map();

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
      () => setProblem({ of, message: "This part of the page cannot be loaded: you may be offline, or a new version was deployed. Load the page again." }),
    );
  }, [of]);
  const [broken, mend] = useErrorBoundary();
  useEffect(mend, [of, location.href]);
  if (broken) return html`<${Trouble} problem=${new Error(`This view met something it does not understand: ${broken.message}. Load the page again, or go elsewhere.`)} />`;
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
    enter().then((said) => {
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
  return html`<${House} me=${me} name=${known.name} here=${here} />`;
}

function House({ me, name, here }) {
  const wanted = here.query.get("tenant");
  const tenant = wanted === null ? me.tenants[0] : tenantOf(me, wanted);
  const [helps, setHelps] = useState(false);
  const main = useRef(null);
  if (tenant) {
    chooseTenant(tenant.id);
    tenantInLinks(me.tenants.length > 1 ? tenant.id : null);
  }
  const may = (view) => !view.roles || me.is_super_admin || view.roles.includes(tenant?.role);
  const views = VIEWS.filter(may);
  useShortcuts(views, () => setHelps(true));
  useEffect(() => {
    // On a phone the views are one line to be pushed sideways.
    document.querySelector(".rail [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [here.path[0]]);

  if (!tenant) {
    return html`<main class="alone"><h1>Nothing to see</h1>
      ${me.tenants.length > 0
        ? html`<p>${name} does not belong to the tenant of this address. <a href="now">Go to ${me.tenants[0].name}</a>.</p>`
        : html`<p>${name} belongs to no tenant yet. An admin of one must add you.</p>`}
      <p><button class="button" onClick=${logOut}>Log out</button></p></main>`;
  }
  const visitor = { name, actor: me.actor, tenant, role: tenant.role, isSuper: me.is_super_admin };
  const [first = "now", ...rest] = here.path;
  const view = VIEWS.find((each) => each.path === first);
  const shown = view && may(view) ? view : NOWHERE;
  return html`<${Visitor.Provider} value=${visitor}>
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <nav class="rail" aria-label="Views">
      <${Link} to="now" class="brand" aria-label="Baton: now"><${Logo} /><span>Baton</span><//>
      <ul>${views.map((each) => html`<li><${Link} to=${each.path} aria-current=${each === view ? "page" : undefined}>${each.name}<//></li>`)}</ul>
    </nav>
    <div class="top">
      <span class="who">
        ${me.tenants.length > 1
          ? html`<label class="hidden" for="tenant">Tenant</label><select id="tenant" value=${tenant.id} onChange=${(event) => changeTenant(event.target.value)}>
              ${me.tenants.map((each) => html`<option value=${each.id} selected=${each.id === tenant.id}>${each.name}</option>`)}</select>`
          : html`<strong>${tenant.name}</strong>`}
        <span class="quiet">${name}, ${me.is_super_admin ? "super admin" : tenant.role}</span>
      </span>
      <span class="spring"></span>
      <button type="button" class="button plain" onClick=${() => setHelps(true)}>Keys</button>
      <button type="button" class="button plain" onClick=${logOut}>Log out</button>
    </div>
    <main id="main" tabindex="-1" ref=${main} key=${tenant.id}><${View} of=${shown} path=${rest} query=${here.query} /></main>
    <${Said} />
    ${helps && html`<${Keys} views=${views} onClose=${() => setHelps(false)} />`}
  <//>`;
}

// Who may act in more tenants than he was told of may name one of them; the API decides.
function tenantOf(me, id) {
  return me.tenants.find((each) => each.id === id) ?? (me.more_tenants ? { id, name: id, role: "viewer" } : undefined);
}

function changeTenant(id) {
  const [view = "now"] = place().path; // what is open in one tenant is not there in another
  tenantInLinks(id);
  go(view);
}

const Logo = () => html`<svg class="logo" viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
  <rect class="logo-back" width="32" height="32" rx="7" /><rect class="logo-baton" x="5" y="13" width="22" height="6" rx="3" transform="rotate(-32 16 16)" />
  <rect class="logo-grip" x="5" y="13" width="8" height="6" rx="3" transform="rotate(-32 16 16)" /></svg>`;

// `g` and a letter goes to a view, `/` to the filter, `?` tells all of it.
function useShortcuts(views, help) {
  useEffect(() => {
    let goes = false;
    const listener = (event) => {
      if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.target.closest("input, select, textarea")) return;
      const view = goes && views.find((each) => each.key === event.key);
      goes = event.key === "g" && !goes;
      if (view) go(view.path);
      else if (event.key === "?") help();
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

const Keys = ({ views, onClose }) => html`<${Dialog} title="Keys" onClose=${onClose}>
  <dl class="keys">
    ${views.map((each) => html`<div><dt><kbd>g</kbd> <kbd>${each.key}</kbd></dt><dd>${each.name}</dd></div>`)}
    <div><dt><kbd>/</kbd></dt><dd>to the filter</dd></div>
    <div><dt><kbd>?</kbd></dt><dd>these keys</dd></div>
    <div><dt><kbd>Esc</kbd></dt><dd>close a dialog</dd></div>
  </dl>
  <div class="buttons"><button type="button" class="button main" onClick=${onClose}>Close</button></div>
<//>`;

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
