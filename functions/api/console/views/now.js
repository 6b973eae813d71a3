// What needs somebody now. On a good day this page is almost empty.
import { number, plural, timeOfDay, words } from "../format.js";
import { html } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { ACTS, NONE, Ago, Answer, Cell, Empty, Heading, Link, Section, Status, Table, Until, runName, useMay } from "../parts.js";

const OLD_TICK_S = 180;
const COUNT = { name: "Runs", className: "count" };
const IDLE = ["at_work"]; // a lane at work is no lane that waits

export default function Now() {
  const answer = useAnswer("now", {}, 5);
  return html`<${Heading} title="Now" /><${Answer} of=${answer}>${(data) => html`<${Told} of=${data} />`}<//>`;
}

function Told({ of }) {
  const waiting = of.waiting.filter((each) => !IDLE.includes(each.code));
  const held = waiting.reduce((sum, each) => sum + each.runs, 0);
  const open = of.open.queued + of.open.running + of.open.paused;
  const sick = of.tick_age_s === null || of.tick_age_s > OLD_TICK_S;
  const mayStart = useMay(ACTS);
  return html`
    <p class=${`verdict ${sick || of.late.count || of.failing.count ? "bad" : ""}`}>${verdict(of, open, sick)}</p>
    <dl class="figures">
      <${Figure} name="Late" value=${of.late.count} more=${of.late.more} tone="late" />
      <${Figure} name="Failed in 24 h" value=${of.failing.count} more=${of.failing.more} tone="failed" to=${`runs?status=failed&finished_from=${encodeURIComponent(aDayBefore(of.now))}`} />
      <${Figure} name="Waiting" value=${held} />
      <${Figure} name="Open" value=${open} more=${of.open.more} />
    </dl>
    <${Throughput} of=${of.throughput} />
    ${of.late.count > 0 && html`<${Section} title="Late" note="a turn was due and nobody took it; the tick mends that">
      <${Table} caption="Late runs" columns=${["Run", "Since", "Why"]}><tbody>${of.late.runs.map((run) => html`<tr key=${run.id}>
        <${Cell}><${Link} to=${`runs/${run.id}`}>${runName(run)}<//><//><${Cell} name="Since"><${Ago} at=${run.since} /><//><${Cell} name="Why">${run.sentence ?? "–"}<//></tr>`)}</tbody><//>
    <//>`}
    ${of.failing.groups.length > 0 && html`<${Section} title="Failing" note="runs that failed in the last day, by what they died of">
      <${Table} caption="Failures by cause" columns=${["Error", COUNT, "Last", "Kind", "Fingerprint"]}><tbody>${of.failing.groups.map((group) => html`<tr key=${group.fingerprint}>
        <${Cell} className="long"><${Link} to=${`runs/${group.run_id}`}>${group.message || group.code}<//><//><${Cell} name="Runs" className="count">${number(group.count)}<//>
        <${Cell} name="Last"><${Ago} at=${group.last_at} /><//><${Cell} name="Kind">${words(group.kind)}<//><${Cell} name="Fingerprint"><code>${group.fingerprint}</code><//></tr>`)}</tbody><//>
    <//>`}
    ${waiting.length > 0 && html`<${Section} title="Waiting, by cause">
      <${Table} caption="Open runs by what they wait for" columns=${["Cause", COUNT, "Until", "Held by"]}><tbody>${waiting.map((each) => html`<tr key=${each.code + each.held_by}>
        <${Cell} className="long"><${Link} to=${`runs/${each.run_id}`}>${each.sentence}<//><//><${Cell} name="Runs" className="count">${number(each.runs)}<//>
        <${Cell} name="Until">${each.until ? html`<${Until} at=${each.until} />` : html`<span class="quiet">until somebody acts</span>`}<//>
        <${Cell} name="Held by">${each.held_by ? html`<code>${each.held_by}</code>` : NONE}<//></tr>`)}</tbody><//>
    <//>`}
    ${of.gates.length > 0 && html`<${Section} title="Closed gates" side=${html`<${Link} to="gates">All gates<//>`}>
      <${Table} caption="Gates that are not open" columns=${["Gate", "State", "Opens", "Reason"]}><tbody>${of.gates.map((gate) => html`<tr key=${gate.key + gate.is_shared}>
        <${Cell}><code>${gate.key}</code>${gate.is_shared && html` <span class="quiet">all tenants</span>`}<//><${Cell} name="State"><${Status} of=${gate.state} /><//>
        <${Cell} name="Opens">${gate.until && html`<${Until} at=${gate.until} exact />`}<//><${Cell} name="Reason" className="long">${gate.reason ?? "–"}<//></tr>`)}</tbody><//>
    <//>`}
    ${of.repairs.length > 0 && html`<${Section} title="Latest repairs" note="what the tick set right in the last day">
      <${Table} caption="Latest repairs" columns=${["When", "What was wrong", "Run", "Lane"]}><tbody>${of.repairs.map((repair) => html`<tr>
        <${Cell}><${Ago} at=${repair.at} /><//><${Cell} name="Wrong">${words(repair.why)}<//>
        <${Cell} name="Run"><${Link} to=${`runs/${repair.run_id}`}>${words(repair.kind)}<//><//><${Cell} name="Lane"><code>${repair.lane_key}</code><//></tr>`)}</tbody><//>
    <//>`}
    ${open === 0 && of.failing.count === 0 && html`<${Empty}>
      <p>Nothing runs now.${mayStart && html` <${Link} to="ingestions/start">Start a page ingestion<//>, or with the command: <code>baton ingest</code>.`}</p>
    <//>`}`;
}

function verdict(of, open, sick) {
  if (sick) return "The tick is not coming: nothing is repaired until it does. Look at the function tick and its schedule.";
  const bad = [of.late.count && `${plural(of.late.count, "run")} late`, of.failing.count && `${plural(of.failing.count, "run")} failed in the last day`].filter(Boolean);
  if (bad.length) return `${bad.join(", ")}.`;
  if (open === 0) return "All is quiet.";
  if (of.moving === 0) return `Nothing late, nothing failed; ${open === 1 ? "the one open run waits" : `all ${number(open)} open runs wait`}.`;
  return `All is well: ${plural(of.moving, "run")} moving, nothing late, nothing failed.`;
}

const aDayBefore = (time) => new Date(Date.parse(time) - 86_400_000).toISOString();

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
  return html`<${Section} title="Steps per minute" note=${`${plural(total, "step")} in the last hour${failed ? `, ${number(failed)} of them failed` : ""}`}>
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
      <div class="axis quiet"><span>an hour ago</span><span>peak ${number(most)}</span><span>now</span></div>
    </div>
  <//>`;
}
