// What needs attention now. On a good day this page is almost empty.
import { number, plural, timeOfDay } from "../format.js";
import { html } from "../vendor/preact.js";
import { kindOf, laneName } from "../kinds.js";
import { useAnswer } from "../live.js";
import { NONE, Ago, Answer, Cell, Empty, Heading, Link, Section, Status, Table, Until, repairName, runName } from "../parts.js";
import { Causes, None } from "./runs.js";

const OLD_TICK_S = 180;
const COUNT = { name: "Runs", className: "count" };
const IDLE = ["at_work"]; // a run at work does not wait

export default function Overview() {
  const answer = useAnswer("now", {}, 5);
  return html`<${Heading} title="Overview" /><${Answer} of=${answer}>${(data) => html`<${Told} of=${data} />`}<//>`;
}

function Told({ of }) {
  const waiting = of.waiting.filter((each) => !IDLE.includes(each.code));
  const held = waiting.reduce((sum, each) => sum + each.runs, 0);
  const open = of.open.queued + of.open.running + of.open.paused;
  const isDown = of.tick_age_s === null || of.tick_age_s > OLD_TICK_S;
  return html`
    <p class=${`verdict ${isDown || of.late.count || of.failing.count ? "bad" : ""}`}>${verdict(of, open, isDown)}</p>
    <dl class="figures">
      <${Figure} name="Overdue" value=${of.late.count} more=${of.late.more} tone="late" />
      <${Figure} name="Failed in 24 h" value=${of.failing.count} more=${of.failing.more} tone="failed" to="failures" />
      <${Figure} name="Waiting" value=${held} />
      <${Figure} name="Open" value=${open} more=${of.open.more} to="runs" />
    </dl>
    <${Throughput} of=${of.throughput} />
    ${of.kinds.length > 1 && html`<${Section} title="By kind">
      <${Table} caption="Open runs by kind" columns=${["Kind", { name: "Running", className: "count" }, { name: "Queued", className: "count" }, { name: "Paused", className: "count" }]}><tbody>${of.kinds.map((each) => html`<tr key=${each.kind}>
        <${Cell}><${Link} to=${kindOf(each.kind).isDeployed ? `work/${each.kind}` : `runs?kind=${encodeURIComponent(each.kind)}`}>${kindOf(each.kind).title}<//><//>
        ${["running", "queued", "paused"].map((status) => html`<${Cell} name=${status} className="count">${number(each[status])}${each.more ? "+" : ""}<//>`)}</tr>`)}</tbody><//>
    <//>`}
    ${of.late.count > 0 && html`<${Section} title="Overdue" note="retried automatically">
      <${Table} caption="Overdue runs" columns=${["Run", "Since", "Cause"]}><tbody>${of.late.runs.map((run) => html`<tr key=${run.id}>
        <${Cell}><${Link} to=${`runs/${run.id}`}>${runName(run)}<//><//><${Cell} name="Since"><${Ago} at=${run.since} /><//><${Cell} name="Cause">${run.sentence ?? NONE}<//></tr>`)}</tbody><//>
    <//>`}
    ${of.failing.groups.length > 0 && html`<${Section} title="Failed in the last 24 hours" note="grouped by cause" side=${html`<${Link} to="failures">All failures<//>`}><${Causes} of=${of.failing.groups} /><//>`}
    ${waiting.length > 0 && html`<${Section} title="Waiting" note="grouped by cause">
      <${Table} caption="Open runs by what they wait for" columns=${["Cause", COUNT, "Continues", "Blocked by"]}><tbody>${waiting.map((each) => html`<tr key=${each.code + each.held_by}>
        <${Cell} className="long"><${Link} to=${`runs/${each.run_id}`}>${each.sentence}<//><//><${Cell} name="Runs" className="count">${number(each.runs)}<//>
        <${Cell} name="Continues">${each.until ? html`<${Until} at=${each.until} />` : html`<span class="quiet">needs action</span>`}<//>
        <${Cell} name="Blocked by">${each.held_by ? html`<code>${each.held_by}</code>` : NONE}<//></tr>`)}</tbody><//>
    <//>`}
    ${of.gates.length > 0 && html`<${Section} title="Rate limits" note="those that are closed" side=${html`<${Link} to="rate-limits">All rate limits<//>`}>
      <${Table} caption="Rate limits that are closed" columns=${["Rate limit", "State", "Opens", "Reason"]}><tbody>${of.gates.map((gate) => html`<tr key=${gate.key + gate.is_shared}>
        <${Cell}><code>${gate.key}</code>${gate.is_shared && html` <span class="quiet">all tenants</span>`}<//><${Cell} name="State"><${Status} of=${gate.state} /><//>
        <${Cell} name="Opens">${gate.until ? html`<${Until} at=${gate.until} exact />` : NONE}<//><${Cell} name="Reason" className="long">${gate.reason ?? NONE}<//></tr>`)}</tbody><//>
    <//>`}
    ${of.repairs.length > 0 && html`<${Section} title="Recent repairs" note="fixed automatically in the last 24 hours">
      <${Table} caption="Recent repairs" columns=${["When", "What happened", "Run", "Lane"]}><tbody>${of.repairs.map((repair) => html`<tr>
        <${Cell}><${Ago} at=${repair.at} /><//><${Cell} name="What happened">${repairName(repair.why)}<//>
        <${Cell} name="Run"><${Link} to=${`runs/${repair.run_id}`}>${kindOf(repair.kind).title}<//><//><${Cell} name="Lane">${laneName(repair.kind, repair.lane_key)}<//></tr>`)}</tbody><//>
    <//>`}
    ${open === 0 && of.failing.count === 0 && html`<${Empty}><${None} text="No runs are open." /><//>`}`;
}

// Good news needs proof: a run counts as moving when it has committed a step in the last minutes, not when one is due.
function verdict(of, open, isDown) {
  if (isDown) return "The scheduler has stopped, so lost messages aren't repaired. Check the function tick and its schedule.";
  const bad = [of.late.count && `${plural(of.late.count, "run")} overdue`, of.failing.count && `${plural(of.failing.count, "run")} failed in the last 24 hours`].filter(Boolean);
  if (bad.length) return `${bad.join(", ")}.`;
  if (open === 0) return "Nothing is running.";
  if (of.moving === 0) return `Nothing is overdue or failed, but ${open === 1 ? "the open run hasn't" : `none of the ${number(open)} open runs have`} made progress in the last 5 minutes.`;
  return `All is well: ${plural(of.moving, "run")} made progress in the last 5 minutes, nothing is overdue, nothing failed.`;
}

const Figure = ({ name, value, more, tone, to }) => html`<div class=${`figure ${value > 0 && tone ? `figure-${tone}` : ""}`}>
  <dt>${name}</dt><dd>${to && value > 0 ? html`<${Link} to=${to}>${number(value)}${more ? "+" : ""}<//>` : html`${number(value)}${more ? "+" : ""}`}</dd></div>`;

// Steps of each minute of the last hour; those that failed stand on the ground, in their colour.
function Throughput({ of }) {
  const most = Math.max(...of.map((minute) => minute.steps), 1);
  const total = of.reduce((sum, minute) => sum + minute.steps, 0);
  const failed = of.reduce((sum, minute) => sum + minute.failed, 0);
  if (total === 0) return null;
  const [width, height] = [10, 56];
  const label = `Steps per minute over the last hour: ${plural(total, "step")}, ${number(failed)} failed, at most ${number(most)} in a minute`;
  return html`<${Section} title="Throughput" note=${`${plural(total, "step")} in the last hour${failed ? `, ${number(failed)} failed` : ""}`}>
    <div class="throughput" role="img" aria-label=${label}>
      <svg viewBox=${`0 0 ${of.length * width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
        ${of.map((minute, n) => {
          const all = (minute.steps / most) * (height - 2);
          const bad = (minute.failed / most) * (height - 2);
          return html`<g><title>${`${timeOfDay(minute.minute)}: ${minute.steps} steps, ${minute.failed} failed, ${number(minute.rows)} rows`}</title>
            <rect class="minute" x=${n * width + 1} y=${height - all} width=${width - 2} height=${all} />
            <rect class="minute-failed" x=${n * width + 1} y=${height - bad} width=${width - 2} height=${bad} /></g>`;
        })}
      </svg>
      <div class="axis quiet"><span>an hour ago</span><span>peak: ${plural(most, "step")} per minute</span><span>now</span></div>
    </div>
  <//>`;
}
