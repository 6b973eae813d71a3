// Every view is a URL below the page's base: `runs?status=failed`, `runs/<id>`.
import { useEffect, useState } from "./vendor/preact.js";

const listeners = new Set();
const base = () => new URL(".", document.baseURI).pathname;

export function place() {
  const path = location.pathname.startsWith(base()) ? location.pathname.slice(base().length) : "";
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(location.search) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// `to` is a path below the base with its query. `quiet`: same view, other query. `replace`: the old address is forgotten.
export function go(to, { quiet = false, replace = false } = {}) {
  const url = new URL(withTenant(to), document.baseURI);
  if (url.href === location.href) return;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  for (const listener of listeners) listener();
  if (!quiet) scrollTo(0, 0);
}

// A link that is handed on must lead its reader into the same tenant. One that names a tenant leads there.
let tenant = null;
export const tenantInLinks = (id) => {
  tenant = id;
};
export function withTenant(to) {
  if (tenant === null) return to;
  const url = new URL(to, document.baseURI);
  if (!url.searchParams.has("tenant")) url.searchParams.set("tenant", tenant);
  return url.href;
}

export function usePlace() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    listeners.add(listener);
    addEventListener("popstate", listener);
    return () => {
      listeners.delete(listener);
      removeEventListener("popstate", listener);
    };
  }, []);
  return place();
}

// Plain links are enough: a click on one that stays inside does not load the page again.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (link.target || url.origin !== location.origin || !url.pathname.startsWith(base())) return;
  event.preventDefault();
  go(url.href);
});

export function queryOf(values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value) query.set(name, value);
  const text = query.toString();
  return text === "" ? "" : `?${text}`;
}
