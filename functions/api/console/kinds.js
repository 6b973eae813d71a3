// The kinds of work, as the console knows them.
//
// The server says which kinds are deployed and which of them have a file here (the meta element `baton-kinds`). A kind
// joins by one file, `kinds/<kind>.js`; nothing else is edited. Its default export is an object; every part is optional:
//
//   title     "Row job": what a run of it is called
//   many      "Row jobs": its entry under Work and its first page. Default: its title
//   one       "Job": one run of it, in the menu New and the title of its form. Default: its title
//   listTitle "Jobs": the tab of its first page, where it has more pages. Default: Runs
//   New       component: the form at work/<kind>/new. `NewRun` of parts.js does the sending
//   List      component ({ query }): the first page, work/<kind>. Default: `RunList` with the runs of this kind
//   pages     [{ path, title, roles, View }]: more pages, shown as tabs beside the list at work/<kind>/<path>.
//             View ({ kind, path, query }) gets the rest of the path; `roles` says who sees it (STARTS, MANAGES; default: all)
//   tabs      [{ path, title, View }]: tabs of a run beside Overview, Timeline and Parameters, at runs/<id>/<path>.
//             View ({ run, reload }): `run` is GET /runs/{id}, kept up to date
//   Actions   component ({ run, reload }): buttons beside Pause, Cancel run and Retry
//   facts     (run) => [[name, value], …]: what the Overview of a run says about it, from `run.params`
//   words     { retry, failed, cancel, canceling }: what these actions mean for a run of it, where the general words do not fit
//   continues (sentence) => "when you promote it", or null: what ends a wait that no time ends, by the sentence of its `why`
//   waits     { queued: { path, label } }: by the code of a wait, the page of this kind that has what ends it
//   laneName  (key) => "$200 – $2,000", or null for a key it does not know
//   phaseName (key) => "Crawl": the phase that a lane belongs to, for the timeline. Default: its lane's name
//   moved     (path, kind) => new path, or null: old addresses that keep working. `path` is an array of its parts
//
// What views are made of is in parts.js, live.js, format.js and api.js; styles are in style.css. A file is loaded with the
// page, so keep it small: put what is large (an editor, charts) into kinds/<kind>/<name>.js and import() it when needed.
// A kind without a file has a list, a form that takes JSON, and lanes under their own keys. See docs/console.md.
import { sentence } from "./format.js";

const told = (name) => JSON.parse(document.querySelector(`meta[name="${name}"]`).content);
const FILES = told("baton-kinds");
const OFF = told("baton-off"); // pages that this deployment has turned off, and what the API says there
const known = new Map();

const GENERAL = { one: null, many: null, listTitle: "Runs", words: {}, New: null, List: null, pages: [], tabs: [], Actions: null, facts: () => [], continues: () => null, waits: {}, laneName: () => null, phaseName: () => null, moved: () => null, problem: null };
const general = (name) => ({ ...GENERAL, name, title: sentence(name), isDeployed: name in FILES });
export const whyOff = (kind, path) => OFF[`${kind.name}/${path}`] ?? null;
export const manyOf = (kind) => kind.many ?? kind.title;

// Before anything is drawn. A file that cannot be loaded costs its kind its own view, and nobody else anything.
export const loadKinds = () => Promise.all(Object.entries(FILES).map(async ([name, file]) => {
  known.set(name, general(name));
  if (file === null) return;
  try {
    const module = await import(`./${file}`);
    known.set(name, { ...general(name), ...module.default });
  } catch (error) {
    known.set(name, { ...general(name), problem: new Error(`The view of this kind couldn't be loaded, so the general one is shown: ${error.message}`) });
  }
}));

export const deployedKinds = () => [...known.values()];
// Runs outlive what was deployed when they started: a kind that is gone still has a name.
export const kindOf = (name) => known.get(name) ?? general(name);

// A kind's names are for people; a key it cannot name is still a key.
export function laneName(kind, key) {
  try {
    return kindOf(kind).laneName(key) ?? key;
  } catch {
    return key;
  }
}

export function phaseName(kind, key) {
  try {
    return kindOf(kind).phaseName(key) ?? laneName(kind, key);
  } catch {
    return key;
  }
}

// An error may name lanes by their keys.
export const withLaneNames = (kind, text) => text.replace(/[\w-]+:[\w.#-]*\w/g, (key) => laneName(kind, key));
