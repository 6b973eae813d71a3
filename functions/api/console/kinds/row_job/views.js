// A row job at work: how far it is, its rows, what can be done to them, and the pace that the controllers found.
import { ask, get, now, post } from "../../api.js";
import { about, bytes, moment, number, plural, timeOfDay } from "../../format.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Action, Answer, Bar, Cell, Empty, Field, Link, NONE, Pages, STARTS, Section, Status, Table, Trouble, useMay, useTurn } from "../../parts.js";
import { go } from "../../router.js";

export const STATUSES = {
  DONE: ["succeeded", "Found"], NOT_FOUND: ["canceled", "Not found"], ERROR: ["failed", "Failed"], SKIPPED: ["canceled", "Skipped"],
  PENDING: ["queued", "Waiting"], PROCESSING: ["running", "At work"],
};
const ENDED = ["DONE", "NOT_FOUND", "ERROR"]; // what was skipped has nothing to search for until it is fixed
const PAGE = 50;

// --- how far it is

const WINDOW_MS = 60_000;
// Rows per second over the last minute that somebody looked; null until it is known.
function useRate(job) {
  const seen = useRef([]);
  if (job && seen.current.at(-1)?.ended !== job.processed_items) seen.current.push({ at: now(), ended: job.processed_items });
  if (job && job.processed_items < (seen.current[0]?.ended ?? 0)) seen.current = []; // rows were opened again
  seen.current = seen.current.filter((each, n, all) => n === all.length - 1 || now() - each.at < WINDOW_MS);
  const [first, last] = [seen.current[0], seen.current.at(-1)];
  return first && last.at > first.at ? (last.ended - first.ended) / ((now() - first.at) / 1000) : null;
}

// Rows that are not read yet are guessed from how far the file is.
const expected = (job) => (job.read_done || !job.read_bytes || !job.size ? job.total_items : Math.max(job.total_items, Math.round((job.read_rows * job.size) / job.read_bytes)));

// `hasEta`: the head of the page says when.
function Far({ job, isOver, hasEta }) {
  const known = useRate(job);
  const rate = isOver || job.queue_state === "PAUSED" ? null : known; // of work that goes on
  const all = expected(job);
  const upTo = job.canary === null ? all : Math.min(all, job.canary);
  const left = Math.max(0, upTo - job.processed_items);
  const eta = !hasEta && rate > 0 && left > 0 ? ` · ETA ${about(left / rate)}` : "";
  const tone = { DONE: "succeeded", FAILED: "failed", PAUSED: "paused" }[job.queue_state] ?? "";
  return html`<div class="barrier">
    <p><strong>${all === 0 ? "No rows yet" : `${number(job.processed_items)} of ${job.read_done ? "" : "about "}${plural(all, "row")}`}</strong> <span class="quiet">${all === 0 ? "" : "processed"}${rate > 0 ? ` · ${rate >= 10 ? number(Math.round(rate)) : rate.toFixed(1)} a second` : ""}${eta}</span></p>
    <${Bar} done=${job.processed_items} all=${all} label="Rows processed" tone=${tone} />
    ${!job.read_done && job.size > 0 && html`<p class="quiet">Reading the file: ${bytes(job.read_bytes)} of ${bytes(job.size)}</p><${Bar} done=${job.read_bytes} all=${job.size} label="File read" />`}
  </div>`;
}

const COUNTS = { done: "DONE", not_found: "NOT_FOUND", errors: "ERROR", skipped: "SKIPPED", pending: "PENDING", processing: "PROCESSING" };

// A scan has no rows of its own.
const SCANNED = "This run looks for files. A file that two scans have found unchanged is taken, and its job is a run of its own.";
// The same for an export, which belongs to a job.
export const ofJob = (View) => (props) => {
  const { scan, export: job } = props.run.params;
  if (scan) return html`<${Empty}><p>${SCANNED}</p><//>`;
  if (job) return html`<${Empty}><p>This run writes rows to a file. <${Link} to=${`runs/${job}/files`}>Go to job<//></p><//>`;
  return html`<${View} ...${props} />`;
};
export const Rows = ofJob(JobRows);
export const Pace = ofJob(JobPace);

function JobRows({ run, reload }) {
  const isOver = run.finished_at !== null;
  const mayAct = useMay(STARTS);
  const [turn, changed] = useTurn();
  const job = useAnswer(`row-jobs/${run.id}`, {}, isOver ? 15 : 2, turn);
  const again = async () => {
    changed();
    await reload();
  };
  return html`<${Answer} of=${job}>${(found) => html`
    <${Far} job=${found} isOver=${isOver} hasEta=${run.eta !== null} />
    ${found.canary !== null && !isOver && html`<div class="warning"><p>Only the first ${plural(found.canary, "row")} are processed until you say so.</p>
      ${mayAct && html`<${Action} label="Process all rows" tone="main" explains="All rows of the file are processed." action=${async (reason) => { await post(`row-jobs/${run.id}/promote`, { reason }); await again(); }} done="Processing all rows." />`}</div>`}
    <dl class="figures">${Object.entries(COUNTS).map(([name, status]) => html`<div key=${name} class=${`figure ${status === "ERROR" && found[name] > 0 ? "figure-failed" : ""}`}><dt>${STATUSES[status][1]}</dt><dd>${number(found[name])}</dd></div>`)}</dl>
    <${List} ...${{ run, isOver, mayAct, turn, again }} />`}<//>`;
}

// --- its rows

const COLUMNS = ["Row", "Product", "Status", { name: "Attempts", className: "count" }, { name: "Price", className: "count" }, "Best offer", "Last error"];

const SORTS = { row_no: "in the order of the file", updated_at: "oldest change first", "-updated_at": "latest change first" };

function List({ run, isOver, mayAct, turn, again }) {
  const [status, setStatus] = useState("");
  const [order, setOrder] = useState("row_no");
  const sort = status && order === "row_no" ? "updated_at" : order; // a filtered list is in the order of changes
  const [chosen, choose, chooseNone] = useChosen();
  const load = async (cursor) => {
    const { columns: names, items, next } = await get(`row-jobs/${run.id}/items`, { statuses: status, sort, cursor, limit: PAGE });
    return { rows: items.map((item) => ({ ...item, shown: Object.fromEntries(names.map((name, n) => [name, item.cells[n]])) })), next };
  };
  const done = async () => {
    chooseNone();
    await again();
  };
  const remove = async () => {
    await ask("DELETE", `row-jobs/${run.id}`);
    go("work/row_job");
  };
  const side = html`<label class="inline">Show <select value=${status} onChange=${(event) => setStatus(event.target.value)}>
      <option value="">all</option>${Object.entries(STATUSES).map(([each, [, text]]) => html`<option value=${each} selected=${each === status}>${text.toLowerCase()}</option>`)}</select></label>
    <label class="inline">Order <select value=${sort} onChange=${(event) => setOrder(event.target.value)}>${Object.entries(SORTS).map(([each, text]) => html`<option value=${each} selected=${each === sort} disabled=${each === "row_no" && status !== ""}>${text}</option>`)}</select></label>
    ${mayAct && html`${chosen.size > 0 ? html`<${Reprocess} key="some" jobs=${jobsOf(chosen)} onDone=${done} />` : html`<${Reprocess} key="all" jobs=${[{ id: run.id }]} onDone=${done} />`}
      ${isOver && html`<${Action} label="Delete job" tone="danger" reason="" explains="The job is gone at once, and its rows follow. The run stays as a record." action=${remove} done="Deleted." />`}`}`;
  const columns = mayAct ? [{ name: "", className: "pick" }, ...COLUMNS] : COLUMNS;
  const note = sort === "row_no" ? SORTS[sort] : `${SORTS[sort]} · live: rows move while they are worked on`;
  return html`<${Section} title="Rows" note=${note} side=${side}>
    <${Table} caption="Rows of the file" columns=${columns} className="rows">
      <${Pages} key=${`${status} ${sort}`} turn=${turn} load=${load} columns=${columns.length} every_s=${isOver ? 0 : 3} row=${(row) => html`<${Row} key=${row.row_no} ...${{ run, row, mayAct, chosen, choose, again }} />`}
        empty=${html`<${Empty}><p>${status ? "No row is in this state." : "No rows yet."}</p><//>`} />
    <//>
  <//>`;
}

function Row({ run, row, mayAct, chosen, choose, again }) {
  const [tone, word] = row.status === "PENDING" && row.attempts > 0 ? ["retrying", "Retried later"] : STATUSES[row.status];
  const { found_title: title, retailer, url, price, currency } = row.shown;
  const { title: product, brand, sku } = row.input_summary;
  return html`<tr>
    ${mayAct && html`<${Pick} isFree=${ENDED.includes(row.status)} job=${run.id} no=${row.row_no} ...${{ chosen, choose }} />`}
    <${Cell} name="Row">${number(row.row_no)}<//>
    <${Cell} name="Product" className="long">${product ?? sku ?? NONE}${brand && html` <span class="quiet">${brand}</span>`}<//>
    <${Cell} name="Status" className="nowrap"><${Status} of=${tone}>${word}<//><//>
    <${Cell} name="Attempts" className="count">${row.attempts > 0 ? number(row.attempts) : NONE}<//>
    <${Cell} name="Price" className="count nowrap">${price ? `${price} ${currency}` : NONE}<//>
    <${Cell} name="Best offer" className="long">${title ? html`<span>${/^https?:/.test(url) ? html`<a href=${url} target="_blank" rel="noopener noreferrer">${title}</a>` : title}${retailer && html` <span class="quiet">${retailer}</span>`}</span>` : NONE}<//>
    <${Cell} name="Last error" className="long">${row.last_error ? html`<span class=${row.status === "ERROR" ? "error-line" : "quiet"}>${row.last_error}</span>` : NONE}
      ${mayAct && FIXABLE.includes(row.status) && run.params.job_type !== "image" && html` <${Fix} run=${run} row=${row} again=${again} />`}<//></tr>`;
}

// --- a row that failed, fixed in place

const FIXABLE = ["NOT_FOUND", "ERROR", "SKIPPED"];

function Fix({ run, row, again }) {
  const held = useRef(null);
  const send = async (reason, fields) => {
    const input = Object.fromEntries([...fields].filter(([name]) => name.startsWith("cell:")).map(([name, value]) => [name.slice(5), value]));
    const told = await post(`row-jobs/${run.id}/fix`, { rows: [{ row_no: row.row_no, hash: held.current.hash, input }], reason });
    if (told.unmatched.length > 0) throw new Error(told.unmatched[0].message);
    await again();
    return told;
  };
  return html`<${Action} label="Fix" title=${`Fix row ${row.row_no}`} explains="Change what the row was read from. It is searched for again." action=${send}
    done=${(told) => (told.fixed ? "Fixed. The row will be processed again." : "Nothing was changed.")}><${Cells} run=${run} row=${row} held=${held} /><//>`;
}

function Cells({ run, row, held }) {
  const job = useAnswer(`row-jobs/${run.id}`, {}, 0);
  const detail = useAnswer(`row-jobs/${run.id}/items/${row.row_no}`, {}, 0);
  held.current = detail.data;
  return html`<${Answer} of=${job}>${({ columns }) => html`<${Answer} of=${detail}>${({ input }) => (columns ?? []).map((column) => html`<${Field} label=${column} key=${column}>
    ${(id) => html`<input id=${id} name=${`cell:${column}`} autocomplete="off" defaultValue=${input[column] ?? ""} />`}<//>`)}<//>`}<//>`;
}

// --- working on rows again: counted first, as it is chosen

const AGAIN = { ERROR: "Failed", NOT_FOUND: "Not found", DONE: "Found" };

// Rows that were chosen, of one job or of several.
export function useChosen() {
  const [chosen, setChosen] = useState(() => new Map());
  const choose = (key, value) => (event) => setChosen((before) => {
    const after = new Map(before);
    if (event.target.checked) after.set(key, value);
    else after.delete(key);
    return after;
  });
  return [chosen, choose, () => setChosen(new Map())];
}

export function jobsOf(chosen) {
  const jobs = new Map();
  for (const [job, no] of chosen.values()) jobs.set(job, [...(jobs.get(job) ?? []), no]);
  return [...jobs].map(([id, rows]) => ({ id, rows }));
}

export function Pick({ isFree, job, no, chosen, choose }) {
  const key = `${job} ${no}`;
  return html`<${Cell} className="pick">${isFree && html`<input type="checkbox" aria-label=${`Choose row ${no}`} checked=${chosen.has(key)} onChange=${choose(key, [job, no])} />`}<//>`;
}

export function Reprocess({ jobs, onDone }) {
  const wanted = useRef(null);
  const count = jobs.reduce((sum, { rows }) => sum + (rows?.length ?? 0), 0);
  const label = count > 0 ? `Reprocess ${plural(count, "chosen row")}` : "Reprocess rows";
  const send = async (reason) => {
    let rows = 0;
    for (const { id, body } of wanted.current) rows += (await post(`row-jobs/${id}/reprocess`, { ...body, reason })).rows;
    await onDone();
    return { rows };
  };
  return html`<${Action} label=${label} title="Reprocess rows" explains="Rows are searched for again, and the job goes on if it has ended." action=${send} done=${(told) => `${plural(told.rows, "row")} will be processed again.`}>
    <${Wanted} jobs=${jobs} wanted=${wanted} /><//>`;
}

function Wanted({ jobs, wanted }) {
  const [statuses, setStatuses] = useState(["ERROR", "NOT_FOUND"]);
  const [isAlsoRefused, setAlsoRefused] = useState(false);
  const [told, setTold] = useState({ count: null, problem: null });
  const isSome = jobs.some(({ rows }) => rows);
  wanted.current = jobs.map(({ id, rows }) => ({ id, body: rows ? { scope: "items", item_ids: rows } : { scope: "job", statuses, permanent: isAlsoRefused } }));
  const asked = JSON.stringify(wanted.current);
  useEffect(() => {
    let isOld = false;
    if (!isSome && statuses.length === 0) return setTold({ count: 0, problem: null });
    Promise.all(wanted.current.map(({ id, body }) => post(`row-jobs/${id}/reprocess`, { ...body, dry_run: true }))).then(
      (all) => isOld || setTold({ count: all.reduce((sum, { rows }) => sum + rows, 0), problem: null }),
      (problem) => isOld || setTold({ count: null, problem }),
    );
    return () => {
      isOld = true;
    };
  }, [asked]);
  const toggle = (status) => (event) => setStatuses(event.target.checked ? [...statuses, status] : statuses.filter((each) => each !== status));
  return html`${!isSome && html`<fieldset><legend>Which rows</legend>
      ${Object.entries(AGAIN).map(([status, text]) => html`<label class="check" key=${status}><input type="checkbox" checked=${statuses.includes(status)} onChange=${toggle(status)} />${text}</label>`)}
      <label class="check"><input type="checkbox" checked=${isAlsoRefused} onChange=${(event) => setAlsoRefused(event.target.checked)} />Also rows that were refused for what is in them</label>
    </fieldset>`}
    <p class="preview" role="status">${told.count === null ? (told.problem ? "Nothing would be processed." : "Counting…") : told.count === 0 ? "No row matches." : `${plural(told.count, "row")} would be processed again.`}</p>
    <${Trouble} problem=${told.problem} />`;
}

// --- the pace

const REASONS = {
  grow: ["good", "Went well: faster"], recover: ["good", "Back to what went well before"], paying: ["", "Waits until rejected calls are made up for"],
  throttled: ["bad", "The provider said to wait (429)"], failing: ["bad", "Too many calls failed"], slow: ["bad", "The provider got slow"],
  shut: ["bad", "Nothing got through: left alone for a while"], draining: ["", "Lets the provider catch up"], rebased: ["", "Slower is the new usual"],
  unused: ["", "Not used up: stays as it is"], hold: ["", "Too early to say"],
};
const HEIGHT = 160;
const WIDTH = 600;
const PAD = 8;

function JobPace({ run }) {
  const isOver = run.finished_at !== null;
  const answer = useAnswer(`row-jobs/${run.id}/pace`, { limit: 200 }, isOver ? 30 : 5);
  const [domain, setDomain] = useState(null);
  return html`<${Answer} of=${answer}>${({ decisions }) => {
    const domains = [...new Set(decisions.map((each) => each.domain))];
    const shown = domains.includes(domain) ? domain : domains[0];
    const moves = decisions.filter((each) => each.domain === shown);
    const side = domains.length > 1 && html`<label class="inline">Domain <select value=${shown} onChange=${(event) => setDomain(event.target.value)}>${domains.map((each) => html`<option value=${each} selected=${each === shown}>${nameOf(each)}</option>`)}</select></label>`;
    return html`<${Section} title="Pace" note="calls a second that all functions share, found by the answers" side=${side}>
      ${moves.length === 0 ? html`<${Empty}><p>No decision yet: the pace is decided again every few seconds while calls are made.</p><//>` : html`<${Chart} moves=${moves.toReversed()} domain=${shown} /><${Moves} moves=${moves} />`}
    <//>`;
  }}<//>`;
}

const nameOf = (domain) => (domain === "any" ? "any retailer" : domain);
const perSecond = (rate) => (rate >= 10 ? number(Math.round(rate)) : rate.toFixed(rate < 1 ? 2 : 1));

function Chart({ moves, domain }) {
  const [from, to] = [Date.parse(moves[0].at), Date.parse(moves.at(-1).at)];
  const top = Math.max(...moves.flatMap((each) => [each.rate_before, each.rate_after])) * 1.1;
  const x = (at) => PAD + ((WIDTH - 2 * PAD) * (Date.parse(at) - from)) / Math.max(1, to - from);
  const y = (rate) => HEIGHT - PAD - ((HEIGHT - 2 * PAD) * rate) / top;
  const line = moves.map((each, n) => `${n ? "L" : "M"}${x(each.at)},${y(each.rate_before)} L${x(each.at)},${y(each.rate_after)}`).join(" ");
  const bad = moves.filter((each) => REASONS[each.reason]?.[0] === "bad").length;
  const summary = `Pace of ${nameOf(domain)}: from ${perSecond(moves[0].rate_before)} to ${perSecond(moves.at(-1).rate_after)} calls a second in ${plural(moves.length, "decision")}, ${bad} of them slower`;
  return html`<figure class="pace"><svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${summary}>
      <path class="pace-line" d=${line} />
      ${moves.map((each, n) => html`<circle key=${n} class=${`pace-move pace-${REASONS[each.reason]?.[0] || "calm"}`} cx=${x(each.at)} cy=${y(each.rate_after)} r="3.5"><title>${`${timeOfDay(each.at)}: ${perSecond(each.rate_after)} a second. ${REASONS[each.reason]?.[1] ?? each.reason}`}</title></circle>`)}
    </svg><figcaption class="axis quiet"><span>${timeOfDay(moves[0].at)}</span><span>up to ${perSecond(top / 1.1)} a second</span><span>${timeOfDay(moves.at(-1).at)}</span></figcaption></figure>`;
}

const MOVES = ["Time", "Pace", "Why", "Seen"];
const seen = (of) => [of.ok && `${number(of.ok)} answered`, of.throttled && `${number(of.throttled)} rejected`, of.failed && `${number(of.failed)} failed`, of.slow && `${number(of.slow)} too slow`].filter(Boolean).join(", ");

function Moves({ moves }) {
  return html`<${Table} caption="Decisions, newest first" columns=${MOVES}><tbody>
    ${moves.slice(0, 100).map((each, n) => html`<tr key=${n}><${Cell} name="Time"><time datetime=${each.at} title=${moment(each.at)}>${timeOfDay(each.at)}</time><//>
      <${Cell} name="Pace" className="nowrap">${perSecond(each.rate_before)} → ${perSecond(each.rate_after)}<//>
      <${Cell} name="Why">${REASONS[each.reason]?.[1] ?? each.reason} <code class="quiet">${each.reason}</code><//>
      <${Cell} name="Seen">${seen(each.seen) || NONE}<//></tr>`)}</tbody><//>`;
}
