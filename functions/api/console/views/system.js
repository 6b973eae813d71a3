// System health: does the scheduler run, is anything unsent, what was repaired, how large are the tables.
import { bytes, duration, number, plural } from "../format.js";
import { html } from "../vendor/preact.js";
import { kindOf, laneName } from "../kinds.js";
import { useAnswer } from "../live.js";
import { Ago, Answer, Cell, Heading, Link, Section, Status, Table, repairName } from "../parts.js";

const OLD_TICK_S = 180;
const OVERDUE_MS = 120_000;
const OLD_SWEEP_S = 3_600; // it runs every 15 minutes; the alarm waits as long

export default function System() {
  const answer = useAnswer("system", {}, 10);
  return html`<${Heading} title="System" /><${Answer} of=${answer}>${(of) => html`
    <dl class="signs">
      <${Sign} name="Scheduler" good=${of.tick_age_s !== null && of.tick_age_s <= OLD_TICK_S}>${of.tick_age_s === null ? "Not run yet. Check the schedule of the function tick." : `Ran ${duration(of.tick_age_s)} ago`}<//>
      <${Sign} name="Cleanup" good=${of.sweep_age_s === null || of.sweep_age_s <= OLD_SWEEP_S}>${of.sweep_age_s === null ? "Not run yet" : `Ran ${duration(of.sweep_age_s)} ago`}<//>
      <${Sign} name="Unsent messages" good=${of.unsent === 0}>${of.unsent === 0 ? "None" : `${number(of.unsent)}, sent automatically`}<//>
      <${Sign} name="Overdue steps" good=${!isOverdue(of)}>${!isOverdue(of) ? "None" : html`Oldest <${Ago} at=${of.oldest_due} />`}<//>
      <${Sign} name="Messages given up in 24 h" good=${of.dead_letters.count === 0}>${number(of.dead_letters.count)}<//>
      <${Sign} name="Deliveries given up" good=${of.unheard.count === 0}>${number(of.unheard.count)}<//>
      <${Sign} name="Repairs in 24 h" good=${true}>${number(of.repairs.count)}<//>
      <${Sign} name="Database schema" good=${true}>${of.schema}<//>
    </dl>
    ${of.dead_letters.latest.length > 0 && html`<${Section} title="Messages given up" note="in dead-letter queues; their steps are retried automatically">
      <${Lanes} caption="Messages given up" rows=${of.dead_letters.latest} what=${() => "Given up"} /><//>`}
    ${of.unheard.latest.length > 0 && html`<${Section} title="Deliveries given up" note="something happened, and what should have reacted failed each time">
      <${Unheard} rows=${of.unheard.latest} /><//>`}
    ${of.repairs.by.length > 0 && html`<${Section} title="Repairs" note="fixed automatically in the last 24 hours" side=${html`<span class="quiet">${of.repairs.by.map((each) => `${repairName(each.why).split(";")[0]}: ${number(each.count)}`).join(" · ")}</span>`}>
      <${Lanes} caption="Recent repairs" rows=${of.repairs.latest} what=${(each) => repairName(each.why)} /><//>`}
    ${of.everywhere && html`<${Everywhere} of=${of.everywhere} />`}`}<//>`;
}

// A step that was due a moment ago is on its way.
const isOverdue = (of) => of.oldest_due !== null && Date.parse(of.now) - Date.parse(of.oldest_due) > OVERDUE_MS;

const Sign = ({ name, good, children }) => html`<div class="sign"><dt>${name}</dt><dd><${Status} of=${good ? "succeeded" : "stalled"}>${children}<//></dd></div>`;

const Lanes = ({ caption, rows, what }) => html`<${Table} caption=${caption} columns=${["When", "What happened", "Run", "Lane"]}><tbody>${rows.map((each) => html`<tr>
  <${Cell}><${Ago} at=${each.at} /><//><${Cell} name="What happened">${what(each)}<//><${Cell} name="Run"><${Link} to=${`runs/${each.run_id}`}>${kindOf(each.kind).title}<//><//><${Cell} name="Lane">${laneName(each.kind, each.lane_key)}<//></tr>`)}</tbody><//>`;

const Unheard = ({ rows }) => html`<${Table} caption="Deliveries given up" columns=${["When", "What happened", "What should have reacted", "Reason"]}><tbody>${rows.map((each) => html`<tr>
  <${Cell}><${Ago} at=${each.at} /><//><${Cell} name="What happened"><code>${each.signal}</code><//><${Cell} name="What should have reacted"><code>${each.listener}</code>, ${plural(each.attempts, "attempt")}<//><${Cell} name="Reason">${each.error?.message}<//></tr>`)}</tbody><//>`;

const Everywhere = ({ of }) => html`<${Section} title="All tenants" note=${`${plural(of.tenants, "tenant")}, ${plural(of.open_runs, "open run")}, ${number(of.unsent)} unsent, ${plural(of.signals_waiting, "signal")} waiting`}>
  <${Tables} of=${of.tables.slice(0, LARGEST)} />
  ${of.tables.length > LARGEST && html`<details class="fold"><summary>${plural(of.tables.length - LARGEST, "smaller table")}</summary><${Tables} of=${of.tables.slice(LARGEST)} /></details>`}
<//>`;

const LARGEST = 15;
const Tables = ({ of }) => html`<${Table} caption="Tables by size" columns=${["Table", { name: "Size", className: "count" }, { name: "Rows (approx.)", className: "count" }, { name: "Dead rows", className: "count" }]}><tbody>${of.map((table) => html`<tr key=${table.name}>
    <${Cell}><code>${table.name}</code><//><${Cell} name="Size" className="count">${bytes(table.bytes)}<//><${Cell} name="Rows" className="count">${number(table.rows)}<//><${Cell} name="Dead rows" className="count">${number(table.dead_rows)}<//></tr>`)}</tbody><//>`;
