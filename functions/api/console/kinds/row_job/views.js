// A row job at work: how far it is, its rows, what can be done to them, and the pace that the controllers found.
import { ask, get, now, post } from "../../api.js";
import { about, bytes, moment, number, plural, timeOfDay } from "../../format.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Action, Answer, Bar, Cell, Empty, NONE, Pages, STARTS, Section, Status, Table, Trouble, useMay, useTurn } from "../../parts.js";
import { go } from "../../router.js";

const STATUSES = {
  DONE: ["succeeded", "Found"], NOT_FOUND: ["canceled", "Not found"], ERROR: ["failed", "Failed"], SKIPPED: ["canceled", "Skipped"],
  PENDING: ["queued", "Waiting"], PROCESSING: ["running", "At work"],
};
const ENDED = ["DONE", "NOT_FOUND", "ERROR", "SKIPPED"];
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

function Far({ job, isOver }) {
  const known = useRate(job);
  const rate = isOver || job.queue_state === "PAUSED" ? null : known; // of work that goes on
  const all = expected(job);
  const upTo = job.canary === null ? all : Math.min(all, job.canary);
  const left = Math.max(0, upTo - job.processed_items);
  const eta = rate > 0 && left > 0 ? ` · ETA ${about(left / rate)}` : "";
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
export const Rows = (props) => (props.run.params.scan ? html`<${Empty}><p>${SCANNED}</p><//>` : html`<${JobRows} ...${props} />`);
export const Pace = (props) => (props.run.params.scan ? html`<${Empty}><p>${SCANNED}</p><//>` : html`<${JobPace} ...${props} />`);

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
    <${Far} job=${found} isOver=${isOver} />
    ${found.canary !== null && !isOver && html`<div class="warning"><p>Only the first ${plural(found.canary, "row")} are worked on until you promote the job.</p>
      ${mayAct && html`<${Action} label="Promote" title="Promote the job" tone="main" explains="All rows of the file are worked on." action=${async (reason) => { await post(`row-jobs/${run.id}/promote`, { reason }); await again(); }} done="Promoted." />`}</div>`}
    <dl class="figures">${Object.entries(COUNTS).map(([name, status]) => html`<div key=${name} class=${`figure ${status === "ERROR" && found[name] > 0 ? "figure-failed" : ""}`}><dt>${STATUSES[status][1]}</dt><dd>${number(found[name])}</dd></div>`)}</dl>
    <${List} ...${{ run, isOver, mayAct, turn, again }} />`}<//>`;
}

// --- its rows

const COLUMNS = ["Row", "Product", "Status", { name: "Attempts", className: "count" }, { name: "Price", className: "count" }, "Best offer", "Last error"];

function List({ run, isOver, mayAct, turn, again }) {
  const [status, setStatus] = useState("");
  const [chosen, setChosen] = useState(() => new Set());
  const load = async (cursor) => {
    const { items, next } = await get(`row-jobs/${run.id}/items`, { statuses: status, cursor, limit: PAGE });
    return { rows: items, next };
  };
  const choose = (no) => (event) => setChosen((before) => {
    const after = new Set(before);
    if (event.target.checked) after.add(no);
    else after.delete(no);
    return after;
  });
  const done = async () => {
    setChosen(new Set());
    await again();
  };
  const remove = async () => {
    await ask("DELETE", `row-jobs/${run.id}`);
    go("work/row_job");
  };
  const side = html`<label class="inline">Show <select value=${status} onChange=${(event) => setStatus(event.target.value)}>
      <option value="">all</option>${Object.entries(STATUSES).map(([each, [, text]]) => html`<option value=${each} selected=${each === status}>${text.toLowerCase()}</option>`)}</select></label>
    ${mayAct && html`${chosen.size > 0 ? html`<${Reprocess} key="some" run=${run} rows=${[...chosen]} onDone=${done} />` : html`<${Reprocess} key="all" run=${run} onDone=${done} />`}
      ${isOver && html`<${Action} label="Delete job" tone="danger" reason="" explains="The job is gone at once, and its rows follow. The run stays as a record." action=${remove} done="Deleted." />`}`}`;
  const columns = mayAct ? [{ name: "", className: "pick" }, ...COLUMNS] : COLUMNS;
  return html`<${Section} title="Rows" note="in the order of the file" side=${side}>
    <${Table} caption="Rows of the file" columns=${columns} className="rows">
      <${Pages} key=${status} turn=${turn} load=${load} columns=${columns.length} every_s=${isOver ? 0 : 3} row=${(row) => html`<${Row} key=${row.row_no} ...${{ row, mayAct, isChosen: chosen.has(row.row_no), choose }} />`}
        empty=${html`<${Empty}><p>${status ? "No row is in this state." : "No rows yet."}</p><//>`} />
    <//>
  <//>`;
}

function Row({ row, mayAct, isChosen, choose }) {
  const [tone, word] = row.status === "PENDING" && row.attempts > 0 ? ["retrying", "Comes again"] : STATUSES[row.status];
  const best = row.result?.offers?.[0];
  const shop = best?.retailer ?? best?.domain;
  return html`<tr>
    ${mayAct && html`<${Cell} className="pick">${ENDED.includes(row.status) && html`<input type="checkbox" aria-label=${`Choose row ${row.row_no}`} checked=${isChosen} onChange=${choose(row.row_no)} />`}<//>`}
    <${Cell} name="Row">${number(row.row_no)}<//>
    <${Cell} name="Product" className="long">${row.title ?? row.sku ?? NONE}${row.brand && html` <span class="quiet">${row.brand}</span>`}<//>
    <${Cell} name="Status" className="nowrap"><${Status} of=${tone}>${word}<//><//>
    <${Cell} name="Attempts" className="count">${row.attempts > 0 ? number(row.attempts) : NONE}<//>
    <${Cell} name="Price" className="count nowrap">${row.price ? `${row.price} ${best?.currency ?? ""}` : NONE}<//>
    <${Cell} name="Best offer" className="long">${best ? html`<span>${/^https?:/.test(best.url ?? "") ? html`<a href=${best.url} target="_blank" rel="noopener noreferrer">${best.title}</a>` : best.title}${shop && html` <span class="quiet">${shop}</span>`}</span>` : NONE}<//>
    <${Cell} name="Last error" className="long">${row.last_error ? html`<span class=${row.status === "ERROR" ? "error-line" : "quiet"}>${row.last_error}</span>` : NONE}<//></tr>`;
}

// --- working on rows again: counted first, as it is chosen

const AGAIN = { ERROR: "Failed", NOT_FOUND: "Not found", SKIPPED: "Skipped", DONE: "Found" };

function Reprocess({ run, rows, onDone }) {
  const wanted = useRef(null);
  const label = rows ? `Reprocess ${plural(rows.length, "chosen row")}` : "Reprocess rows";
  const send = async (reason) => {
    const told = await post(`row-jobs/${run.id}/reprocess`, { ...wanted.current, reason });
    await onDone();
    return told;
  };
  return html`<${Action} label=${label} title="Reprocess rows" explains="Rows are searched for again, and the job goes on if it has ended." action=${send} done=${(told) => `${plural(told.rows, "row")} will be processed again.`}>
    <${Wanted} run=${run} rows=${rows} wanted=${wanted} /><//>`;
}

function Wanted({ run, rows, wanted }) {
  const [statuses, setStatuses] = useState(["ERROR", "NOT_FOUND"]);
  const [isAnew, setAnew] = useState(false);
  const [told, setTold] = useState({ count: null, problem: null });
  const body = rows ? { scope: "items", itemIds: rows } : { scope: "job", statuses, reset_attempts: isAnew };
  wanted.current = body;
  const asked = JSON.stringify(body);
  useEffect(() => {
    let isOld = false;
    if (!rows && statuses.length === 0) return setTold({ count: 0, problem: null });
    post(`row-jobs/${run.id}/reprocess`, { ...body, dry_run: true }).then(
      ({ rows: count }) => isOld || setTold({ count, problem: null }),
      (problem) => isOld || setTold({ count: null, problem }),
    );
    return () => {
      isOld = true;
    };
  }, [asked]);
  const toggle = (status) => (event) => setStatuses(event.target.checked ? [...statuses, status] : statuses.filter((each) => each !== status));
  return html`${!rows && html`<fieldset><legend>Which rows</legend>
      ${Object.entries(AGAIN).map(([status, text]) => html`<label class="check" key=${status}><input type="checkbox" checked=${statuses.includes(status)} onChange=${toggle(status)} />${text}</label>`)}
      <label class="check"><input type="checkbox" checked=${isAnew} onChange=${(event) => setAnew(event.target.checked)} />Also rows that have no attempts left</label>
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
