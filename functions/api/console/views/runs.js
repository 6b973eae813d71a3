// Runs of all kinds: filters that live in the address, a list without an end, and one action on all that match.
import { get } from "../api.js";
import { words } from "../format.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { deployedKinds, kindOf, withLaneNames } from "../kinds.js";
import { Actor, Ago, Cell, Elapsed, Empty, Heading, Left, Link, NONE, Pages, Progress, STARTS, STATE_WORDS, Section, Status, Table, Why, opensOnClick, rootCause, runName, useMay, useVisitor } from "../parts.js";
import { go, queryOf } from "../router.js";
import { Bulk } from "./bulk.js";
import Run from "./run.js";

// What a run is doing now is told of each; the other words are filters that can be counted, and acted on in bulk.
const DOING = ["running", "retrying", "throttled", "waiting", "stalled"];
const SIFTS = ["q", "state"];
const FILTERS = ["q", "kind", "status", "state", "fingerprint", "label", "source", "created_by", "created_from", "created_before", "finished_from", "finished_before"];
const COLUMNS = ["Run", "Kind", "Status", "Details", "Progress", "Started", "Duration", "Started by"];

export default function Runs({ path, query }) {
  const [id, ...tab] = path;
  if (id !== undefined) return html`<${Run} key=${id} id=${id} tab=${tab} />`;
  return html`<${RunList} title="Runs" query=${query} />`;
}

// `fixed`: what every run here has; it is not offered as a filter. `lead`: what comes before the list. `name`: the list's own title.
export function RunList({ title, query, fixed = {}, at = "runs", lead = null, name = null, empty = "No runs yet.", children }) {
  const filter = { ...Object.fromEntries(FILTERS.map((each) => [each, query.get(each) ?? ""])), ...fixed };
  const asked = JSON.stringify(filter);
  const mayAct = useMay(STARTS);
  const isFiltered = Object.entries(filter).some(([each, value]) => value && !(each in fixed));
  const load = async (cursor) => {
    const { runs, next } = await get("runs", { ...filter, cursor, limit: 50 });
    return { rows: runs, next };
  };
  const columns = COLUMNS.filter((each) => each !== "Kind" || !fixed.kind);
  const list = html`<${Filters} filter=${filter} fixed=${fixed} at=${at} />
    <${Table} caption="Runs, newest first" columns=${columns} className=${`runs lines-table ${fixed.kind ? "runs-of-kind" : ""}`}>
      <${Pages} key=${asked} load=${load} row=${(run) => row(run, !fixed.kind)} columns=${columns.length}
        empty=${html`<${Empty}>${isFiltered ? html`<p>No run matches. <${Link} to=${at}>Show all<//>.</p>` : fixed.status ? html`<p>${empty}</p>` : html`<${None} text=${empty} kind=${fixed.kind} />`}<//>`} />
    <//>`;
  return html`<${Heading} title=${title}>${children}${mayAct && !SIFTS.some((each) => filter[each]) && html`<${Bulk} filter=${filter} />`}<//>
    ${lead}${name ? html`<${Section} title=${name}>${list}<//>` : list}`;
}

// There is nothing: how to start something, for those who may.
export function None({ text, kind }) {
  const mayStart = useMay(STARTS);
  const kinds = kind ? [kindOf(kind)] : deployedKinds();
  return html`<p>${text}${mayStart && kinds.length > 0 && html` Start one: ${kinds.map((each, n) => html`${n > 0 ? ", " : ""}<${Link} to=${`work/${each.name}/new`}>${each.one ?? each.title}<//>`)}.`}</p>`;
}

const isCanceling = (run) => run.cancel_requested_at && !run.finished_at;

// One line: why it waits or failed; else what came out of it.
function Details({ run }) {
  if (run.finished_at) {
    const cause = run.status === "failed" ? rootCause(run.error) : null;
    const text = cause ? withLaneNames(run.kind, cause.message) : "";
    if (cause) return html`<span class="error-line" title=${text}>${text}</span>`;
    return run.outcome && run.outcome !== run.status ? html`<span class="quiet">${words(run.outcome)}</span>` : NONE;
  }
  if (isCanceling(run)) return html`<span class="quiet">Canceling</span>`;
  if (run.state === "running") return run.eta ? html`<span class="quiet">ETA <${Left} at=${run.eta} /></span>` : NONE;
  return html`<${Why} of=${run.why} />`;
}

const row = (run, withKind) => html`<tr key=${run.id} class="opens" onClick=${opensOnClick}>
  <${Cell}><${Link} to=${`runs/${run.id}`} class="name" title=${`${runName(run)} · ${run.id}`}>${runName(run)}<//><//>
  ${withKind && html`<${Cell} name="Kind">${kindOf(run.kind).title}<//>`}
  <${Cell} name="Status"><${Status} of=${run.state} /><//>
  <${Cell} name="Details"><${Details} run=${run} /><//>
  <${Cell} name="Progress"><${Progress} run=${run} isBrief /><//>
  <${Cell} name="Started"><${Ago} at=${run.created_at} isBrief /><//>
  <${Cell} name="Duration">${run.started_at ? html`<${Elapsed} from=${run.started_at} to=${run.finished_at} isBrief />` : NONE}<//>
  <${Cell} name="Started by">${run.created_by ? html`<${Actor} of=${run.created_by} isBrief />` : NONE}<//>
</tr>`;

function Filters({ filter, fixed, at }) {
  const { actor, role, isSuper } = useVisitor();
  const isWide = ["label", "source", "created_by", "created_from", "created_before", "finished_from", "finished_before"].some((name) => filter[name]);
  const [more, setMore] = useState(isWide);
  const unfixed = () => Object.fromEntries(Object.entries(filter).filter(([name]) => !(name in fixed)));
  const change = (given) => go(`${at}${queryOf({ ...unfixed(), ...given })}`, { quiet: true, replace: "q" in given });
  const set = (name) => (event) => {
    change({ [name]: event.target.type === "datetime-local" && event.target.value ? new Date(event.target.value).toISOString() : event.target.value.trim() });
  };
  const mine = filter.created_by === actor;
  const seesAll = role !== "member" || isSuper;
  const choice = (name, label, values) => html`<label>${label}<select value=${filter[name]} onChange=${set(name)}>
    <option value="">Any</option>${values.map(([value, text]) => html`<option value=${value} selected=${filter[name] === value}>${text}</option>`)}</select></label>`;
  const text = (name, label) => html`<label>${label}<input type="search" value=${filter[name]} maxlength="200" onChange=${set(name)} /></label>`;
  const time = (name, label) => html`<label>${label}<input type="datetime-local" value=${local(filter[name])} onChange=${set(name)} /></label>`;
  return html`<form class="filters" role="search" aria-label="Filter runs" onSubmit=${(event) => event.preventDefault()}>
    <${Search} value=${filter.q} onChange=${(value) => change({ q: value })} />
    ${!("kind" in fixed) && choice("kind", "Kind", deployedKinds().map((each) => [each.name, each.title]))}
    ${!("status" in fixed) && html`<label>Status<select value=${filter.state || filter.status} onChange=${(event) => change({ state: "", status: "", [DOING.includes(event.target.value) ? "state" : "status"]: event.target.value })}>
      <option value="">Any</option>${Object.entries(STATE_WORDS).map(([value, word]) => html`<option value=${value} selected=${(filter.state || filter.status) === value}>${word}</option>`)}</select></label>`}
    ${filter.fingerprint && html`<span class="chip">Cause <code>${filter.fingerprint}</code> <button type="button" class="button plain" aria-label="Show every cause" onClick=${() => change({ fingerprint: "" })}>✕</button></span>`}
    ${seesAll && html`<button type="button" class="button plain" aria-pressed=${mine} onClick=${() => go(`${at}${queryOf({ ...unfixed(), created_by: mine ? "" : actor })}`, { quiet: true })}>My runs</button>`}
    ${more
      ? html`${text("label", "Exact label")}${text("source", "Source")}${text("created_by", "Started by")}${time("created_from", "Started after")}${time("created_before", "Started before")}${time("finished_from", "Ended after")}${time("finished_before", "Ended before")}`
      : html`<button type="button" class="button plain" onClick=${() => setMore(true)}>More filters</button>`}
    ${Object.entries(filter).some(([name, value]) => value && !(name in fixed)) && html`<${Link} to=${at} class="button plain">Clear<//>`}
  </form>`;
}

// A part of the label or of the ID. It is asked for when the typing pauses.
function Search({ value, onChange }) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = (event) => {
    const said = event.target.value;
    setText(said);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(said.trim()), 250);
  };
  return html`<label class="search-field">Search<input type="search" data-filter placeholder="Label or ID" maxlength="200" autocomplete="off" value=${text} onInput=${typed} /></label>`;
}

export function local(text) {
  if (!text) return "";
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
