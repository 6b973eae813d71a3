// Rows that wait or are being worked on: those of one job, and those of all jobs. Both lists are live.
import { get } from "../../api.js";
import { number, shortId } from "../../format.js";
import { html, useState } from "../../vendor/preact.js";
import { Actor, Ago, Bar, Cell, Empty, Heading, Link, MANAGES, NONE, Pages, STARTS, Section, Status, Table, useMay, useTurn, useVisitor } from "../../parts.js";
import { go, queryOf } from "../../router.js";
import { local } from "../../views/runs.js";
import { Pick, Reprocess, STATUSES, jobsOf, ofJob, useChosen } from "./views.js";

const PAGE = 50;
const OPEN = ["PENDING", "PROCESSING"];
const LIVE = "live: rows leave the list while you look";
const PICK = { name: "", className: "pick" };
const comesAgain = (row) => row.status === "PENDING" && row.attempts > 0; // it waits for its time, and need not
const COLUMNS = ["Row", "Product", "Status", { name: "Attempts", className: "count" }, "Locked by", "Changed"];

const Cells = ({ row }) => {
  const [tone, word] = comesAgain(row) ? ["retrying", "Retried later"] : STATUSES[row.status];
  const { title, brand, sku } = row.input_summary;
  return html`<${Cell} name="Row">${number(row.row_no)}<//>
    <${Cell} name="Product" className="long">${title ?? sku ?? NONE}${brand && html` <span class="quiet">${brand}</span>`}<//>
    <${Cell} name="Status" className="nowrap"><${Status} of=${tone}>${word}<//><//>
    <${Cell} name="Attempts" className="count">${row.attempts > 0 ? number(row.attempts) : NONE}<//>
    <${Cell} name="Locked by">${row.locked_by ? html`<code title=${row.locked_by}>${shortId(row.locked_by)}</code>` : NONE}<//>
    <${Cell} name="Changed"><${Ago} at=${row.updated_at} /><//>`;
};

const States = ({ value, onChange }) => html`<label class="inline">Show <select value=${value} onChange=${(event) => onChange(event.target.value)}>
  <option value="">all</option>${OPEN.map((each) => html`<option value=${each} selected=${each === value}>${STATUSES[each][1].toLowerCase()}</option>`)}</select></label>`;

export const Pending = ofJob(({ run, reload }) => {
  const [status, setStatus] = useState("");
  const mayAct = useMay(STARTS);
  const [turn, changed] = useTurn();
  const [chosen, choose, chooseNone] = useChosen();
  const done = async () => {
    chooseNone();
    changed();
    await reload();
  };
  const columns = mayAct ? [PICK, ...COLUMNS] : COLUMNS;
  const side = html`<${States} value=${status} onChange=${setStatus} />${chosen.size > 0 && html`<${Reprocess} jobs=${jobsOf(chosen)} onDone=${done} />`}`;
  const load = async (cursor) => {
    const { items, next } = await get(`row-jobs/${run.id}/items`, { statuses: status || OPEN.join(","), sort: "updated_at", cursor, limit: PAGE });
    return { rows: items, next };
  };
  return html`<${Section} title="Pending" note=${LIVE} side=${side}>
    <${Table} caption="Rows that are pending" columns=${columns}>
      <${Pages} key=${status} turn=${turn} load=${load} columns=${columns.length} every_s=${run.finished_at === null ? 3 : 0} row=${(row) => html`<tr key=${row.row_no}>${mayAct && html`<${Pick} isFree=${comesAgain(row)} job=${run.id} no=${row.row_no} ...${{ chosen, choose }} />`}<${Cells} row=${row} /></tr>`}
        empty=${html`<${Empty}><p>No row waits, and none is being worked on.</p><//>`} />
    <//>
  <//>`;
});

// --- of all jobs

const TYPES = { csv: "CSV", image: "Images" };
const FILTERS = ["statuses", "job_type", "job_id", "user_id", "tenants", "updated_from", "updated_before"];
const AT = "work/row_job/pending";
const JOBS = { PAUSED: ["paused", "Paused"], FAILED: ["failed", "Ended"], DONE: ["succeeded", "Done"], QUEUED: ["queued", "Queued"], RUNNING: ["running", "Running"] };

export function Dashboard({ query }) {
  const isAdmin = useMay(MANAGES);
  const isSuper = Boolean(useVisitor().isSuper);
  const mayAct = useMay(STARTS);
  const [turn, changed] = useTurn();
  const [chosen, choose, chooseNone] = useChosen();
  const done = async () => {
    chooseNone();
    changed();
  };
  const filter = Object.fromEntries(FILTERS.map((each) => [each, query.get(each) ?? ""]).filter(([, value]) => value));
  const [count, setCount] = useState(null);
  const load = async (cursor) => {
    const { items, next, pending_count: counted } = await get("pending", { ...filter, cursor, limit: PAGE });
    if (counted) setCount(counted);
    return { rows: items, next };
  };
  const narrow = (changes) => go(`${AT}${queryOf(Object.fromEntries(Object.entries({ ...filter, ...changes }).filter(([, value]) => value)))}`, { replace: true });
  const picks = mayAct && filter.tenants !== "all"; // rows of other tenants are only shown here
  const columns = [...(picks ? [PICK] : []), "Job", ...COLUMNS, ...(filter.user_id === "all" ? ["Owner"] : [])];
  const row = (each) => html`<tr key=${`${each.job_id} ${each.row_no}`}>
    ${picks && html`<${Pick} isFree=${comesAgain(each)} job=${each.job_id} no=${each.row_no} ...${{ chosen, choose }} />`}
    <${Cell} name="Job" className="long"><${Link} to=${`runs/${each.job_id}/pending`} title="Go to job">${each.job_name}<//> <span class="badge">${TYPES[each.job_type] ?? each.job_type}</span>
      ${each.queue_state !== "RUNNING" && html` <${Status} of=${JOBS[each.queue_state][0]}>${JOBS[each.queue_state][1]}<//>`}
      ${each.tenant && html` <span class="quiet">${each.tenant}</span>`}
      ${each.progress && html`<div class="pill" title="As counted last"><${Bar} done=${each.progress.processed} all=${each.progress.total} label=${`Rows of ${each.job_name} processed`} /><span class="quiet">${number(each.progress.processed)} of ${number(each.progress.total)}</span></div>`}<//>
    <${Cells} row=${each} />${filter.user_id === "all" && html`<${Cell} name="Owner">${each.user_id ? html`<${Actor} of=${each.user_id} />` : NONE}<//>`}</tr>`;
  const told = count && !filter.job_id && !filter.tenants && `${number(count.count)}${count.more ? "+" : ""} pending, counted ${Math.round(count.age_s)} s ago · `;
  return html`<${Heading} title="Pending rows" />
    <div class="filters">
      <${States} value=${filter.statuses ?? ""} onChange=${(statuses) => narrow({ statuses })} />
      <label>Type <select onChange=${(event) => narrow({ job_type: event.target.value })}><option value="">all</option>${Object.entries(TYPES).map(([each, text]) => html`<option value=${each} selected=${each === filter.job_type}>${text}</option>`)}</select></label>
      <label>Job <input placeholder="Job ID" value=${filter.job_id ?? ""} onChange=${(event) => narrow({ job_id: event.target.value.trim() })} /></label>
      <label>Changed since <input type="datetime-local" value=${local(filter.updated_from)} onChange=${(event) => narrow({ updated_from: instant(event.target.value) })} /></label>
      <label>Changed before <input type="datetime-local" value=${local(filter.updated_before)} onChange=${(event) => narrow({ updated_before: instant(event.target.value) })} /></label>
      ${isAdmin && html`<label>Whose <select onChange=${(event) => narrow({ user_id: event.target.value && "all", tenants: event.target.value === "tenants" ? "all" : "" })}>
        <option value="">mine</option><option value="all" selected=${filter.user_id === "all" && !filter.tenants}>everybody's</option>${isSuper && html`<option value="tenants" selected=${filter.tenants === "all"}>of all tenants</option>`}</select></label>`}
    </div>
    <p class="quiet" role="status">${told}${LIVE}</p>
    ${picks && chosen.size > 0 && html`<p><${Reprocess} jobs=${jobsOf(chosen)} onDone=${done} /></p>`}
    <${Table} caption="Pending rows, oldest change first" columns=${columns}>
      <${Pages} key=${JSON.stringify(filter)} turn=${turn} load=${load} row=${row} columns=${columns.length} empty=${html`<${Empty}><p>No row waits, and none is being worked on.</p><//>`} />
    <//>`;
}

const instant = (text) => (text ? new Date(text).toISOString() : "");
