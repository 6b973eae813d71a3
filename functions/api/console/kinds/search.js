// Saved searches; runs of this kind are their cycles. The contract is in ../kinds.js.
import { get, post } from "../api.js";
import { moment, number, plural, sentence, words } from "../format.js";
import { html, useState } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { Action, Ago, Answer, Badge, Cell, Empty, Heading, Json, Link, MANAGES, NewRun, Pages, Section, Status, Table, later, useMay, useTurn } from "../parts.js";

const DAY_MS = 86_400_000;
const STATE = { SUCCESS: "succeeded", ERROR: "failed", RUNNING: "running", IDLE: "waiting" };
const WORD = { SUCCESS: "Success", ERROR: "Error", RUNNING: "Running", IDLE: "Idle" };
const AT = "work/search/saved";

// What stops an account stops all its searches, though one alone has met it.
const trouble = (search) => search.held_because ?? search.problem?.message;
const State = ({ of }) => html`<${Status} of=${of.paused ? "paused" : STATE[of.status]}>${of.paused ? "Paused" : WORD[of.status]}<//>`;
const Fresh = ({ of }) => (of.fresh ? html`<span class="quiet">Fresh</span>` : html`<${Badge} kind="failed">Not fresh<//>`);

function Saved({ path }) {
  return path[0] ? html`<${One} key=${path[0]} id=${path[0]} />` : html`<${All} />`;
}

const COLUMNS = ["Name", "Client", "Status", "Freshness", "Last success"];

const Add = later(async () => (await import("./search/add.js")).default);

function All() {
  const may = useMay(MANAGES);
  const [turn, again] = useTurn();
  const load = async (cursor) => {
    const { searches, next } = await get("searches", { cursor, limit: 50 });
    return { rows: searches, next };
  };
  const row = (each) => html`<tr key=${each.id}>
    <${Cell}><${Link} to=${`${AT}/${each.id}`}>${each.name}<//><//>
    <${Cell} name="Client">${each.client}<//>
    <${Cell} name="Status"><${State} of=${each} />${trouble(each) && html` <span class="error-line">${trouble(each)}</span>`}<//>
    <${Cell} name="Freshness"><${Fresh} of=${each} /><//>
    <${Cell} name="Last success"><${Ago} at=${each.last_success_at} /><//></tr>`;
  return html`<${Heading} title="Saved searches">${may && html`<${Add} again=${again} />`}<//>
    <${Clients} />
    <${Table} caption="Saved searches by name" columns=${COLUMNS}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${COLUMNS.length} empty=${html`<${Empty}><p>No saved searches yet. ${may ? html`Add one here or with <code>baton search add</code>.` : "An admin can add one."}</p><//>`} />
    <//>`;
}

function Clients() {
  const answer = useAnswer("search-clients", {}, 5);
  const may = useMay(MANAGES);
  const move = (name, what) => async (reason) => {
    await post(`search-clients/${name}/${what}`, { reason });
  };
  return html`<${Answer} of=${answer}>${({ clients }) => html`${clients.filter((each) => each.searches > 0).map((each) => html`<p key=${each.name}>
    <strong>${each.title}</strong>: ${plural(each.searches, "search", "searches")}
    ${each.paused_until ? html` <${Badge} kind="stuck">paused<//> <span class="quiet">${each.reason}</span>` : ""}
    ${may && (each.paused_until
      ? html` <${Action} label="Resume client" title=${`Resume ${each.title}`} explains="Its searches continue with the next cycle." action=${move(each.name, "resume")} done=${`${each.title} resumed.`} />`
      : html` <${Action} label="Pause client" title=${`Pause ${each.title}`} explains="Its searches wait until you resume it." action=${move(each.name, "pause")} done=${`${each.title} paused.`} />`)}
  </p>`)}`}<//>`;
}

function One({ id }) {
  const [turn, again] = useTurn();
  const answer = useAnswer(`searches/${id}`, {}, 5);
  const may = useMay(MANAGES);
  const move = (what) => async (reason) => {
    await post(`searches/${id}/${what}`, { reason });
    again();
  };
  return html`${answer.data === null && html`<${Heading} title="Saved search" />`}<${Answer} of=${answer}>${(told) => html`
    <${Heading} title=${told.name}>${may && html`<${Action} label=${told.paused ? "Resume" : "Pause"} title=${`${told.paused ? "Resume" : "Pause"} ${told.name}`}
      explains=${told.paused ? "It reads what it has missed." : "Nothing is read until you resume it."} action=${move(told.paused ? "resume" : "pause")} done=${told.paused ? "Resumed." : "Paused."} />`}<//>
    <dl class="facts">
      <div><dt>Status</dt><dd><${State} of=${told} /> <${Fresh} of=${told} /></dd></div>
      ${trouble(told) && html`<div><dt>${told.held_because ? "Waits" : "Error"}</dt><dd>${trouble(told)}</dd></div>`}
      <div><dt>Parameters</dt><dd>${Object.entries(told.params).map(([name, value]) => `${words(name)}: ${value}`).join("; ") || "none"}</dd></div>
      <div><dt>Last run</dt><dd><${Ago} at=${told.last_run_at} /></dd></div>
      <div><dt>Last success</dt><dd><${Ago} at=${told.last_success_at} /></dd></div>
      <div><dt>Read up to</dt><dd>${told.high_watermark ? moment(told.high_watermark) : "not read yet"}</dd></div>
      <div><dt>History read back to</dt><dd>${told.last_processed_date ?? "not read yet"}${told.history_open ? " (in progress)" : ""}</dd></div>
    </dl>
    <${Calendar} of=${told} onDone=${again} />
    ${told.in_quarantine > 0 && html`<${Quarantine} id=${id} turn=${turn} onDone=${again} />`}
    <${Runs} id=${id} />
    <${Offers} id=${id} />`}<//>`;
}

// One cell a day. A click starts the range, a second one ends it.
const WEEKS = 10;
const LEGEND = ["covered", "partly covered", "not covered", "unclean"];
const MONTH = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const label = (day, first) => (day === first || new Date(day).getUTCDate() === 1 ? MONTH.format(day) : new Date(day).getUTCDate());
// Days begin where the board is, and one of them may have 23 or 25 hours. A day is kept as the moment when it begins in UTC.
const clocks = new Map();
const clockOf = (zone) => clocks.get(zone) ?? clocks.set(zone, new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "medium" })).get(zone);
const ahead = (time, zone) => Date.parse(`${clockOf(zone).format(time).replace(" ", "T")}Z`) - Math.floor(time / 1000) * 1000;
const dayOf = (time, zone) => Math.floor((time + ahead(time, zone)) / DAY_MS) * DAY_MS;
const begins = (day, zone) => day - ahead(day - ahead(day, zone), zone);
const within = (ranges, from, to) => ranges.some((each) => Date.parse(each.start) <= from && to <= Date.parse(each.end));
const touches = (ranges, from, to) => ranges.some((each) => Date.parse(each.start) < to && from < Date.parse(each.end));

function Calendar({ of, onDone }) {
  const [first, setFirst] = useState(null);
  const [last, setLast] = useState(null);
  const [until, setUntil] = useState(0); // when it was chosen: a range that grew with the clock would be another one with every look
  const may = useMay(MANAGES);
  const today = dayOf(Date.now(), of.zone);
  const days = Array.from({ length: WEEKS * 7 }, (_, n) => today - (WEEKS * 7 - 1 - n) * DAY_MS);
  const pick = (day) => {
    if (first === null || last !== null) {
      setFirst(day);
      setLast(null);
    } else {
      setFirst(Math.min(first, day));
      setLast(Math.max(first, day));
      setUntil(Date.now() - 60_000);
    }
  };
  const choose = ({ start, end }) => {
    setFirst(dayOf(Date.parse(start), of.zone));
    setLast(dayOf(Date.parse(end) - 1, of.zone));
    setUntil(Date.now() - 60_000);
  };
  const state = (day) => {
    const [from, to] = [begins(day, of.zone), begins(day + DAY_MS, of.zone)];
    return touches(of.unclean, from, to) ? "unclean" : within(of.covered, from, Math.min(to, Date.now())) ? "covered" : touches(of.covered, from, to) ? "partly covered" : "not covered";
  };
  const name = (day) => new Date(day).toISOString().slice(0, 10);
  const chosen = (day) => first !== null && day >= first && day <= (last ?? first);
  return html`<${Section} title="Coverage" note=${`days in ${of.zone}; select the first and the last day to backfill`}>
    <div class="calendar" role="group" aria-label="Covered days">${days.map((day) => html`<button type="button" key=${day} class=${`day day-${state(day).replace(" ", "-")}`} aria-pressed=${chosen(day)}
      aria-label=${`${name(day)}: ${state(day)}`} onClick=${() => pick(day)}>${label(day, days[0])}</button>`)}</div>
    <p class="quiet">${LEGEND.map((each) => html`<span class=${`day day-${each.replace(" ", "-")}`} aria-hidden="true"> </span> ${each} `)}</p>
    ${of.gaps.length > 0 && html`<p class="quiet">${plural(of.gaps.length, "gap")}${of.gaps.length > 5 ? ", the first 5" : ""}: ${of.gaps.slice(0, 5).map((each) => html`${`${moment(each.start)} – ${moment(each.end)}`} ${may && html`<button type="button" class="button" onClick=${() => choose(each)}>Fill gap</button> `}`)}</p>`}
    ${may && last !== null && html`<${Backfill} id=${of.id} start=${begins(first, of.zone)} end=${Math.min(begins(last + DAY_MS, of.zone), until)} onDone=${onDone} />`}
  <//>`;
}

function Backfill({ id, start, end, onDone }) {
  const range = { start: new Date(start).toISOString(), end: new Date(end).toISOString() };
  const estimate = useAnswer(`searches/${id}/backfill`, range, 0);
  return html`<${Answer} of=${estimate}>${(told) => html`<p>About ${plural(told.offers, "offer")}, ${plural(told.requests, "request")} in ${plural(told.cycles, "cycle")}${told.covered_already ? "; this range is covered already" : ""}.
    <${Action} label="Start backfill" explains="Reads this range again. The watermark doesn't move." reason="" action=${async () => {
      await post(`searches/${id}/backfill`, range);
      onDone();
    }} done="Backfill started." /></p>`}<//>`;
}

function Quarantine({ id, turn, onDone }) {
  const may = useMay(MANAGES);
  const load = async (cursor) => {
    const { records, next } = await get(`searches/${id}/quarantine`, { cursor, limit: 20 });
    return { rows: records, next };
  };
  const move = (record, what) => async (reason) => {
    await post(`searches/${id}/quarantine/${record}/${what}`, { reason });
    onDone();
  };
  const row = (each) => html`<tr key=${each.id}>
    <${Cell}>${each.key}<details><summary>Record</summary><${Json} of=${each.payload} /></details><//>
    <${Cell} name="Problem">${each.problem}<//>
    <${Cell} name="Seen"><${Ago} at=${each.seen_at} /> <span class="quiet">${plural(each.times, "time")}</span><//>
    <${Cell} name="Actions" className="actions">${each.replay_at ? html`<span class="quiet">replay requested</span>` : may && html`<${Action} label="Replay" explains="Reads the record again with the next cycle." action=${move(each.id, "replay")} done="Replay requested." />
      <${Action} label="Accept" explains="Its window counts as clean without this record." action=${move(each.id, "accept")} done="Accepted." />`}<//></tr>`;
  return html`<${Section} title="Quarantine" note="records that couldn't be read as offers">
    <${Table} caption="Quarantined records" columns=${["Record", "Problem", "Seen", "Actions"]}><${Pages} load=${load} row=${row} columns=${4} turn=${turn} empty=${html`<${Empty}><p>Nothing in quarantine.</p><//>`} /><//><//>`;
}

function Runs({ id }) {
  const load = async (cursor) => {
    const { runs, next } = await get(`searches/${id}/runs`, { cursor, limit: 10 });
    return { rows: runs, next };
  };
  const row = (each) => html`<tr key=${each.id}>
    <${Cell}><${Link} to=${`runs/${each.run_id}`}><${Ago} at=${each.started_at} /><//><//>
    <${Cell} name="Window">${words(each.purpose)}, ${moment(each.window_from)} – ${moment(each.window_to)}<//>
    <${Cell} name="Stopped by">${each.stop_reason ? words(each.stop_reason) : "still running"}${each.problem && html` <span class="error-line">${each.problem.message}</span>`}<//>
    <${Cell} name="Read">${plural(each.offers_fetched, "offer")} on ${plural(each.pages_fetched, "page")}<//></tr>`;
  return html`<${Section} title="Executions">
    <${Table} caption="Executions, newest first" columns=${["Started", "Window", "Stopped by", "Read"]}><${Pages} load=${load} row=${row} columns=${4} empty=${html`<${Empty}><p>Not run yet.</p><//>`} /><//><//>`;
}

function Offers({ id }) {
  const load = async (cursor) => {
    const { offers, next } = await get(`searches/${id}/offers`, { cursor, limit: 20 });
    return { rows: offers, next };
  };
  const row = (each) => html`<tr key=${each.external_id}>
    <${Cell}>${each.title}${each.repost_of && html` <${Badge} kind="drift">repost<//>`}<//>
    <${Cell} name="Company">${each.company ?? "hidden"}<//><${Cell} name="Place">${each.location}<//><${Cell} name="Updated"><${Ago} at=${each.updated_at} /><//></tr>`;
  return html`<${Section} title="Offers">
    <${Table} caption="Offers, newest first" columns=${["Title", "Company", "Place", "Updated"]}><${Pages} load=${load} row=${row} columns=${4} every_s=${30} empty=${html`<${Empty}><p>No offers found yet.</p><//>`} /><//><//>`;
}

function Companies() {
  const load = async (cursor) => {
    const { companies, next } = await get("search-companies", { cursor, limit: 50 });
    return { rows: companies, next };
  };
  const row = (each) => html`<tr key=${each.id}><${Cell}>${each.name}<//><${Cell} name="Client">${each.client}<//>
    <${Cell} name="Open offers">${number(each.open_offers)}<//><${Cell} name="Feedback">${each.feedback ? sentence(each.feedback) : ""}<//><${Cell} name="Last seen"><${Ago} at=${each.last_seen_at} /><//></tr>`;
  return html`<${Heading} title="Companies" />
    <${Table} caption="Companies, first seen first" columns=${["Name", "Client", "Open offers", "Feedback", "Last seen"]}><${Pages} load=${load} row=${row} columns=${5} every_s=${30} empty=${html`<${Empty}><p>No companies yet.</p><//>`} /><//>`;
}

const NIGHT = { synced: "succeeded", failed: "failed", missed: "failed", running: "running", waiting: "waiting", canceled: "canceled" };
const NIGHTS = ["Night", "Status", "Rows", "Feedback"];

function Sheets() {
  const answer = useAnswer("search-sheets", {}, 30);
  const row = (each) => html`<tr key=${each.night}>
    <${Cell}><${Link} to=${`runs/${each.run_id}`}>${each.night}<//><//>
    <${Cell} name="Status"><${Status} of=${NIGHT[each.status]}>${sentence(each.status)}<//>${each.problem && html` <span class="error-line">${each.problem.message}</span>`}<//>
    <${Cell} name="Rows">${number(each.rows_written)} written, ${number(each.rows_cleared)} cleared<//>
    <${Cell} name="Feedback">${number(each.feedback_read)} read, ${number(each.feedback_ignored)} ignored<//></tr>`;
  return html`<${Heading} title="Sheets" /><${Answer} of=${answer}>${({ sheets }) => (sheets.length === 0
    ? html`<${Empty}><p>No sheets yet. Add one with <code>baton search sheet</code>.</p><//>`
    : sheets.map((each) => html`<${Section} key=${each.id} title=${each.tab} note=${`${each.opens.slice(0, 5)} – ${each.closes.slice(0, 5)}, ${each.zone}`}>
      <${Table} caption=${`Nights of ${each.tab}, newest first`} columns=${NIGHTS}><tbody>${each.nights.map(row)}</tbody><//><//>`))}<//>`;
}

// Cycles start by themselves; what people want to add is a search.
const New = ({ kind }) => html`<${NewRun} kind=${kind} request=${() => ({ path: "runs", body: { kind: kind.name, params: {} } })} verb=${["Start a cycle", "Starting…", "Started."]}>
  <p>A cycle reads every saved search that is due. Cycles start by themselves; this starts one now.</p>
  <p>To add a search, go to <${Link} to=${AT}>Saved searches<//>.</p><//>`;

export default {
  title: "Search cycle",
  many: "Searches",
  listTitle: "Cycles",
  New,
  pages: [{ path: "saved", title: "Saved searches", View: Saved }, { path: "companies", title: "Companies", View: Companies }, { path: "sheets", title: "Sheets", View: Sheets }],
  laneName: (key) => ({ cycle: "Cycle", sheet: "Sheet" })[key] ?? null,
};
