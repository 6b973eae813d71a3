// Runs of all kinds: filters that live in the address, a list without an end, and one action on all that match.
import { get, post } from "../api.js";
import { number, plural, sentence, words } from "../format.js";
import { html, useEffect, useState } from "../vendor/preact.js";
import { deployedKinds, kindOf, withLaneNames } from "../kinds.js";
import { STARTS, NONE, Ago, Bar, Cell, Dialog, Empty, Field, Heading, Link, Pages, Progress, Section, Status, Table, Trouble, Until, Why, runName, say, useMay, useVisitor } from "../parts.js";
import { go, queryOf } from "../router.js";
import Run from "./run.js";

const STATUSES = ["queued", "running", "paused", "succeeded", "failed", "canceled"];
const FILTERS = ["kind", "status", "label", "source", "created_by", "created_from", "created_before", "finished_from", "finished_before"];
const COLUMNS = ["Run", "Status", "Cause", "Progress", "Last commit", "Next step"];

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
  const list = html`<${Filters} filter=${filter} fixed=${fixed} at=${at} />
    <${Table} caption="Runs, newest first" columns=${COLUMNS} className="runs">
      <${Pages} key=${asked} load=${load} row=${row} columns=${COLUMNS.length}
        empty=${html`<${Empty}>${isFiltered ? html`<p>No run matches. <${Link} to=${at}>Show all<//>.</p>` : html`<${None} text=${empty} kind=${fixed.kind} />`}<//>`} />
    <//>`;
  return html`<${Heading} title=${title}>${children}${mayAct && html`<${Bulk} filter=${filter} />`}<//>
    ${lead}${name ? html`<${Section} title=${name}>${list}<//>` : list}`;
}

// There is nothing: how to start something, for those who may.
export function None({ text, kind }) {
  const mayStart = useMay(STARTS);
  const kinds = kind ? [kindOf(kind)] : deployedKinds();
  return html`<p>${text}${mayStart && kinds.length > 0 && html` Start one: ${kinds.map((each, n) => html`${n > 0 ? ", " : ""}<${Link} to=${`work/${each.name}/new`}>${each.title}<//>`)}.`}</p>`;
}

// Failed runs by cause: errors that differ only in ids, numbers and times are one.
export const Causes = ({ of }) => html`<${Table} caption="Failures by cause" columns=${["Error", { name: "Runs", className: "count" }, "Latest", "Kind", "Fingerprint"]}><tbody>${of.map((group) => html`<tr key=${`${group.kind} ${group.fingerprint}`}>
  <${Cell} className="long"><${Link} to=${`runs/${group.run_id}`}>${withLaneNames(group.kind, group.message || group.code)}<//><//><${Cell} name="Runs" className="count">${number(group.count)}<//>
  <${Cell} name="Latest"><${Ago} at=${group.last_at} /><//><${Cell} name="Kind">${kindOf(group.kind).title}<//><${Cell} name="Fingerprint"><code>${group.fingerprint}</code><//></tr>`)}</tbody><//>`;

const isCanceling = (run) => run.cancel_requested_at && !run.finished_at;

const row = (run) => html`<tr key=${run.id}>
  <${Cell} className="long"><${Link} to=${`runs/${run.id}`} class="name">${runName(run)}<//> <span class="quiet">${run.label ? kindOf(run.kind).title : ""} <${Ago} at=${run.created_at} /></span><//>
  <${Cell} name="Status"><${Status} of=${run.state} />${isCanceling(run) && html` <span class="quiet">canceling</span>`}${run.outcome && run.outcome !== run.status && html` <span class="quiet">${words(run.outcome)}</span>`}<//>
  <${Cell} name="Cause" className="long">${run.finished_at ? (run.error ? html`<span class="error-line">${withLaneNames(run.kind, run.error.message ?? run.error.code)}</span>` : NONE) : html`<${Why} of=${run.why ?? (run.state === "stalled" ? { code: "stalled", sentence: "Overdue; retried automatically." } : null)} />`}<//>
  <${Cell} name="Progress"><${Progress} run=${run} /><//>
  <${Cell} name="Last commit">${run.progress.more_lanes ? NONE : html`<${Ago} at=${run.progress.moved_at} />`}<//>
  <${Cell} name="Next step">${run.finished_at || run.progress.more_lanes || !run.progress.next_due_at || run.status === "paused" ? NONE : run.state === "stalled" ? "overdue" : html`<${Until} at=${run.progress.next_due_at} />`}<//>
</tr>`;

function Filters({ filter, fixed, at }) {
  const { actor, role, isSuper } = useVisitor();
  const isWide = ["source", "created_by", "created_from", "created_before", "finished_from", "finished_before"].some((name) => filter[name]);
  const [more, setMore] = useState(isWide);
  const unfixed = () => Object.fromEntries(Object.entries(filter).filter(([name]) => !(name in fixed)));
  const set = (name) => (event) => {
    const value = event.target.type === "datetime-local" && event.target.value ? new Date(event.target.value).toISOString() : event.target.value.trim();
    go(`${at}${queryOf({ ...unfixed(), [name]: value })}`, { quiet: true });
  };
  const mine = filter.created_by === actor;
  const seesAll = role !== "member" || isSuper;
  const choice = (name, label, values) => html`<label>${label}<select value=${filter[name]} onChange=${set(name)}>
    <option value="">Any</option>${values.map(([value, text]) => html`<option value=${value} selected=${filter[name] === value}>${text}</option>`)}</select></label>`;
  const text = (name, label, first = false) => html`<label>${label}<input type="search" data-filter=${first || undefined} value=${filter[name]} maxlength="200" onChange=${set(name)} /></label>`;
  const time = (name, label) => html`<label>${label}<input type="datetime-local" value=${local(filter[name])} onChange=${set(name)} /></label>`;
  return html`<form class="filters" role="search" aria-label="Filter runs" onSubmit=${(event) => event.preventDefault()}>
    ${!("kind" in fixed) && choice("kind", "Kind", deployedKinds().map((each) => [each.name, each.title]))}
    ${!("status" in fixed) && choice("status", "Status", STATUSES.map((each) => [each, sentence(each)]))}
    ${text("label", "Label", true)}
    ${seesAll && html`<button type="button" class="button plain" aria-pressed=${mine} onClick=${() => go(`${at}${queryOf({ ...unfixed(), created_by: mine ? "" : actor })}`, { quiet: true })}>My runs</button>`}
    ${more
      ? html`${text("source", "Source")}${text("created_by", "Started by")}${time("created_from", "Started after")}${time("created_before", "Started before")}${time("finished_from", "Ended after")}${time("finished_before", "Ended before")}`
      : html`<button type="button" class="button plain" onClick=${() => setMore(true)}>More filters</button>`}
    ${Object.entries(filter).some(([name, value]) => value && !(name in fixed)) && html`<${Link} to=${at} class="button plain">Clear<//>`}
  </form>`;
}

export function local(text) {
  if (!text) return "";
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

// --- one action on every run of the filter: counted first, then applied in batches

const BULK = { cancel: "Cancel", pause: "Pause", resume: "Resume", retry: "Retry" };

// `actions`: those that are offered. `labels`: what may be chosen as a label, to narrow the filter. `what`: one and many of them.
export function Bulk({ filter, label = "Bulk actions", ...rest }) {
  const [isOpen, setOpen] = useState(false);
  return html`<button type="button" class="button" onClick=${() => setOpen(true)}>${label}</button>
    ${isOpen && html`<${Dialog} title=${label} onClose=${() => setOpen(false)}><${BulkForm} filter=${filter} ...${rest} onClose=${() => setOpen(false)} /><//>`}`;
}

function BulkForm({ filter, actions = Object.keys(BULK), what = ["run", "runs"], explains = null, labels = null, labelName = "Label", onDone = () => {}, onClose }) {
  const [action, setAction] = useState(actions[0]);
  const [chosen, setChosen] = useState("");
  const [reason, setReason] = useState("");
  const [preview, setPreview] = useState(null);
  const [work, setWork] = useState(null);
  const [problem, setProblem] = useState(null);
  const [stop] = useState({ asked: false });
  const named = Object.fromEntries(Object.entries({ ...filter, ...(chosen ? { label: chosen } : {}) }).filter(([, value]) => value));
  const ask = (mode, token) => post("runs/bulk", { action, filter: named, reason, mode, token });
  const change = (set) => (event) => {
    set(event.target.value);
    setPreview(null);
  };

  useEffect(() => () => {
    stop.asked = true; // closing the dialog stops it
  }, []);

  const submit = async (event) => {
    event.preventDefault();
    setProblem(null);
    let [done, refused] = [0, 0];
    try {
      if (preview === null) return setPreview(await ask("preview", null));
      let token = preview.next;
      while (token !== null && !stop.asked) {
        setWork({ done, refused, all: preview.count });
        const answer = await ask("apply", token);
        done += answer.done;
        refused += Object.values(answer.refused).reduce((sum, n) => sum + n, 0);
        token = answer.next;
      }
      onDone();
      say(`${BULK[action]}: ${plural(done, ...what)} done${refused ? `, ${refused} skipped because they had changed` : ""}${token === null ? "" : "; stopped before the rest"}.`);
      onClose();
    } catch (error) {
      if (done > 0) say(`${BULK[action]}: ${plural(done, ...what)} done, then an error stopped it. ${error.message}`, "bad");
      setWork(null);
      setPreview(null);
      setProblem(error);
    }
    return undefined;
  };

  if (work) {
    return html`<p role="status">${plural(work.done + work.refused, ...what)} of ${work.all}…</p><${Bar} done=${work.done + work.refused} all=${work.all} label="Done" />
      <div class="buttons"><button type="button" class="button" onClick=${() => { stop.asked = true; }}>Stop after this batch</button></div>`;
  }
  return html`<form onSubmit=${submit}>
    <p class="quiet">${explains ?? (Object.keys(named).length === 0 ? "All runs in this tenant." : Object.entries(named).map(([name, value]) => `${words(name)}: ${value}`).join(", "))}</p>
    ${labels && html`<${Field} label=${labelName}>${(id) => html`<select id=${id} value=${chosen} onChange=${change(setChosen)}><option value="">All</option>${labels.map((each) => html`<option value=${each}>${each}</option>`)}</select>`}<//>`}
    ${actions.length > 1 && html`<${Field} label="Action">${(id) => html`<select id=${id} value=${action} onChange=${change(setAction)}>${actions.map((value) => html`<option value=${value}>${BULK[value]}</option>`)}</select>`}<//>`}
    <${Field} label="Reason" hint="Kept in each run's timeline and in the audit log.">${(id) => html`<input id=${id} required maxlength="500" autocomplete="off" value=${reason} onInput=${change(setReason)} />`}<//>
    <${Trouble} problem=${problem} />
    ${preview && html`<p role="status" class="preview">${preview.count === 0 ? `There are no ${what[1]} to ${action}.` : html`This will ${action} <strong>${plural(preview.count, ...what)}</strong>. ${sentence(what[1])} that start from now on are not affected.`}</p>`}
    <div class="buttons">
      <button type="button" class="button" onClick=${onClose}>Back</button>
      ${preview && preview.count > 0
        ? html`<button type="submit" key="apply" class=${`button ${action === "cancel" ? "danger" : "main"}`}>${BULK[action]} ${plural(preview.count, ...what)}</button>`
        : html`<button type="submit" key="preview" class="button main">Preview</button>`}
    </div>
  </form>`;
}
