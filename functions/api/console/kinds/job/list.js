// The queue: how it stands, and its jobs, newest first.
import { get, post } from "../../api.js";
import { duration, number, shortId } from "../../format.js";
import { html } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Action, Ago, Answer, Cell, Elapsed, Empty, Heading, Link, NONE, Pages, STARTS, Status, Table, opensOnClick, useMay, useTurn } from "../../parts.js";
import { go, queryOf } from "../../router.js";
import { Bulk } from "../../views/bulk.js";
import { local } from "../../views/runs.js";

const STATUSES = { queued: "Queued", running: "Running", succeeded: "Succeeded", dead_letter: "Dead letter", failed: "Failed", canceled: "Canceled" };
const SOURCES = { manual: "Manual", event: "Event", schedule: "Schedule", system: "System" };
const FILTERS = ["status", "source", "created_after", "created_before"];
const COLUMNS = ["Job", "Status", "Details", "Attempts", "Source", "Queued", "Run time", "Worker", { name: "", className: "actions" }];
const AT = "work/job";

export default function Jobs({ query }) {
  const mayAct = useMay(STARTS);
  const [turn, again] = useTurn();
  const definitions = useDefinitions();
  const summary = useAnswer("jobs/summary", {}, 5);
  const filter = Object.fromEntries(FILTERS.map((each) => [each, query.get(each) ?? ""]));
  const isFiltered = Object.values(filter).some(Boolean);
  const load = async (cursor) => {
    const { jobs, next } = await get("jobs", { ...filter, cursor, limit: 50 });
    return { rows: jobs, next };
  };
  const row = (job) => html`<tr key=${job.id} class="opens" onClick=${opensOnClick}>
    <${Cell}><${Link} to=${`runs/${job.id}/attempts`} class="name">${job.definition_key}<//> <code class="quiet" title=${job.id}>${shortId(job.id)}</code><//>
    <${Cell} name="Status"><${Status} of=${stateOf(job)} />${job.cancel_requested_at && !job.finished_at && html` <span class="quiet">canceling</span>`}<//>
    <${Cell} name="Details">${job.last_error && job.status !== "succeeded" ? html`<span class="error-line" title=${job.last_error}>${job.last_error}</span>` : NONE}<//>
    <${Cell} name="Attempts" className="nowrap">${job.attempt_count} of ${Math.max(job.max_attempts, job.attempt_count)}<//>
    <${Cell} name="Source">${SOURCES[job.source]}<//>
    <${Cell} name="Queued"><${Ago} at=${job.queued_at} isBrief /><//>
    <${Cell} name="Run time">${job.started_at && job.status !== "queued" ? html`<${Elapsed} from=${job.started_at} to=${job.finished_at} isBrief />` : NONE}<//>
    <${Cell} name="Worker" className="worker">${job.claimed_by_worker ? html`<code title=${job.claimed_by_worker}>${hostOf(job.claimed_by_worker)}</code>` : NONE}<//>
    <${Cell} className="actions">
      ${mayAct && !job.finished_at && !job.cancel_requested_at && html`<${Action} label="Cancel" title=${`Cancel ${job.definition_key}`} tone="danger" explains="A waiting job ends at once; a running command is stopped."
        action=${async (reason) => { await post(`jobs/${job.id}/cancel`, { reason }); again(); }} done="Canceling." />`}
      ${mayAct && job.finished_at && job.status !== "succeeded" && html`<${Action} label="Retry" title=${`Retry ${job.definition_key}`} explains="Runs the command again, with fresh attempts. They are numbered on."
        action=${async (reason) => { await post(`jobs/${job.id}/retry`, { reason }); again(); }} done="Queued again." />`}
    <//></tr>`;
  return html`<${Heading} title="Jobs">${mayAct && html`<${Bulk} label="Retry dead letters" filter=${{ kind: "job", outcome: "dead_letter" }} actions=${["retry"]} what=${["job", "jobs"]} onDone=${again}
        explains="Queues every job again whose attempts are used up, with fresh attempts. Fix the cause first." labels=${definitions} labelName="Definition" />
      <${Link} to=${`${AT}/new`} class="button main">Add job<//>`}<//>
    <${Answer} of=${summary}>${(of) => html`<${Cards} of=${of} />`}<//>
    <${Filters} filter=${filter} />
    <${Table} caption="Jobs, newest first" columns=${COLUMNS} className="jobs lines-table">
      <${Pages} key=${JSON.stringify(filter)} turn=${turn} load=${load} row=${row} columns=${COLUMNS.length}
        empty=${html`<${Empty}>${isFiltered ? html`<p>No job matches. <${Link} to=${AT}>Show all<//>.</p>` : html`<p>No jobs yet.${mayAct && html` <${Link} to=${`${AT}/new`}>Add one<//>, or use <code>baton job add</code>.`}</p>`}<//>`} />
    <//>`;
}

// A worker's ID is host:pid:boot, after whose token it is if it comes through the API; the host is what people know.
export const hostOf = (worker) => worker.slice(worker.lastIndexOf("/") + 1).split(":")[0];
const stateOf = (job) => (job.status === "queued" && Date.parse(job.scheduled_for) > Date.now() + 1000 ? (job.attempt_count > 0 ? "retrying" : "waiting") : job.status);

function useDefinitions() {
  const { data } = useAnswer("admin/jobs/definitions", {}, 0);
  return data?.definitions.map((each) => each.key) ?? [];
}

function Cards({ of }) {
  const card = (status, tone) => html`<div class=${`figure ${of[status] > 0 && tone ? `figure-${tone}` : ""}`}><dt>${STATUSES[status]}</dt>
    <dd><${Link} to=${`${AT}${queryOf({ status })}`}>${number(of[status])}${of.more.includes(status) ? "+" : ""}<//></dd></div>`;
  const spread = (found) => (found ? html`<span class="quiet">p50</span> ${seconds(found.p50)} <span class="quiet">p95</span> ${seconds(found.p95)}` : NONE);
  const rate = (value) => (value === 0 ? "0" : value >= 10 ? number(Math.round(value)) : value >= 0.1 ? value.toFixed(1) : "<0.1");
  const { per_minute: rates } = of;
  return html`<dl class="figures">${card("queued")}${card("running")}${card("succeeded")}${card("failed", "failed")}${card("dead_letter", "failed")}</dl>
    <dl class="facts rates">
      <div><dt>Oldest queued</dt><dd>${of.oldest_queued_age_s === null ? "none" : duration(of.oldest_queued_age_s)}</dd></div>
      <div><dt title="From when it could run to when it did: half of the jobs within this time, 95 % within that one">Wait in queue</dt><dd>${spread(of.queue_latency)}</dd></div>
      <div><dt>Run time</dt><dd>${spread(of.run_time)}</dd></div>
      <div><dt title="Per minute, over the last hour">Jobs per minute</dt><dd>${rate(rates.enqueued)} added, ${rate(rates.succeeded)} succeeded, ${rate(rates.dead_letter)} dead</dd></div>
      <div><dt title="Per minute, over the last hour">Attempts per minute</dt><dd>${rate(rates.failed)} failed, ${rate(rates.retried)} retried</dd></div>
    </dl>`;
}

const seconds = (value) => (value < 10 ? `${value.toFixed(1)} s` : duration(value));

function Filters({ filter }) {
  const set = (name) => (event) => {
    const value = event.target.type === "datetime-local" && event.target.value ? new Date(event.target.value).toISOString() : event.target.value;
    go(`${AT}${queryOf({ ...filter, [name]: value })}`, { quiet: true });
  };
  const choice = (name, label, values, first = false) => html`<label>${label}<select data-filter=${first || undefined} value=${filter[name]} onChange=${set(name)}>
    <option value="">Any</option>${Object.entries(values).map(([value, text]) => html`<option value=${value} selected=${filter[name] === value}>${text}</option>`)}</select></label>`;
  const time = (name, label) => html`<label>${label}<input type="datetime-local" value=${local(filter[name])} onChange=${set(name)} /></label>`;
  return html`<form class="filters" role="search" aria-label="Filter jobs" onSubmit=${(event) => event.preventDefault()}>
    ${choice("status", "Status", STATUSES, true)}${choice("source", "Source", SOURCES)}${time("created_after", "Added after")}${time("created_before", "Added before")}
    ${Object.values(filter).some(Boolean) && html`<${Link} to=${AT} class="button plain">Clear<//>`}</form>`;
}
