// What needs attention now, each with what fixes it. On a good day this page is almost empty.
import { now } from "../api.js";
import { duration, number, plural, timeOfDay } from "../format.js";
import { html } from "../vendor/preact.js";
import { kindOf, laneName, manyOf, withLaneNames } from "../kinds.js";
import { useAnswer } from "../live.js";
import { NONE, Ago, Answer, Cell, Empty, Heading, Link, Named, Section, Status, Table, Until, repairName, runName, useNamed, useTurn } from "../parts.js";
import { FixConnection, OpenGate, Resume, RetryCause, RunNow } from "./fixes.js";
import { Bulk } from "./bulk.js";
import { None } from "./runs.js";

const OLD_TICK_S = 180;
const COUNT = { name: "Runs", className: "count" };
const ACTIONS = { name: "", className: "actions" };

export default function Overview() {
  const [turn, again] = useTurn();
  const answer = useAnswer("now", {}, 5, turn);
  return html`<${Heading} title="Overview" /><${Answer} of=${answer}>${(data) => html`<${Told} of=${data} again=${again} />`}<//>`;
}

// What an open run waits for, by code: the word for it, and whether somebody should look at it.
const WAITS = {
  retrying: ["retrying", true], gate: ["throttled", true],
  paused: ["paused", false], due_later: ["waiting", false], queued: ["queued", false], inactive: ["waiting", false], unsent: ["queued", false],
};

function Told({ of, again }) {
  const waiting = of.waiting.map((each) => ({ ...each, state: WAITS[each.code]?.[0] ?? "waiting", isBad: WAITS[each.code]?.[1] ?? false }));
  const [bad, calm] = [waiting.filter((each) => each.isBad), waiting.filter((each) => !each.isBad)];
  const open = of.open.queued + of.open.running + of.open.paused;
  const said = verdict(of, open);
  const held = new Set(waiting.map((each) => each.held_by));
  const idle = of.gates.filter((gate) => !held.has(gate.key));
  return html`
    <p class=${`verdict verdict-${said.tone}`} role="status"><span class="mark" aria-hidden="true">${{ good: "✓", bad: "!", calm: "·" }[said.tone]}</span>${said.text}</p>
    <dl class="figures">
      <${Figure} name="Stalled" value=${of.states.stalled ?? 0} more=${of.open.more} tone="late" to="runs?state=stalled" />
      <${Figure} name="Failed in 24 h" value=${of.failing.count} more=${of.failing.more} tone="failed" to="failures" />
      ${["retrying", "throttled", "waiting", "running"].map((state) => html`<${Figure} key=${state} name=${state} value=${of.states[state] ?? 0} more=${of.open.more} tone=${state} to=${`runs?state=${state}`} />`)}
    </dl>
    ${(of.failing.count > 0 || bad.length > 0 || of.late.count > 0) && html`<${Section} title="Needs attention" note="grouped by cause" side=${html`<${Link} to="failures">All failures<//>`}>
      <${Table} caption="What needs attention" columns=${["Status", "Cause", COUNT, "When", ACTIONS]} className="lines-table attention"><tbody>
        ${of.failing.groups.map((each) => html`<${Failed} key=${`${each.kind} ${each.fingerprint}`} of=${each} again=${again} />`)}
        ${bad.map((each) => html`<${Wait} key=${each.code + each.held_by} of=${each} gates=${of.gates} again=${again} />`)}
        ${of.late.runs.map((run) => html`<tr key=${run.id}>
          <${Cell} className="nowrap"><${Status} of="stalled">Overdue<//><//>
          <${Cell} name="Cause" className="long"><${Link} to=${`runs/${run.id}`} class="cause" title=${run.sentence}>${run.sentence}<//><span class="below">${runName(run)}</span><//>
          <${Cell} name="Runs" className="count">1<//><${Cell} name="When"><${Ago} at=${run.since} isBrief /><//>
          <${Cell} className="actions"><${RunNow} run=${run.id} name=${runName(run)} onDone=${again} /><//></tr>`)}
      </tbody><//>
    <//>`}
    ${calm.length > 0 && html`<${Section} title="Waiting" note="grouped by what for">
      <${Table} caption="Open runs by what they wait for" columns=${["Status", "Waiting for", COUNT, "Continues", ACTIONS]} className="lines-table attention"><tbody>
        ${calm.map((each) => html`<${Wait} key=${each.code + each.held_by + each.sentence} of=${each} gates=${of.gates} again=${again} />`)}</tbody><//>
    <//>`}
    ${idle.length > 0 && html`<${Section} title="Closed rate limits" note="no run is waiting for them" side=${html`<${Link} to="rate-limits">All rate limits<//>`}>
      <${Table} caption="Closed rate limits" columns=${["Rate limit", "State", "Opens", "Reason", ACTIONS]}><tbody>${idle.map((gate) => html`<tr key=${gate.key + gate.is_shared}>
        <${Cell}><strong><${Named} of=${gate.key} /></strong>${gate.is_shared && html` <span class="quiet">all tenants</span>`}<//><${Cell} name="State"><${Status} of=${gate.state} /><//>
        <${Cell} name="Opens">${gate.until ? html`<${Until} at=${gate.until} exact />` : NONE}<//><${Cell} name="Reason" className="long">${gate.reason ?? NONE}<//>
        <${Cell} className="actions"><${OpenGate} gate=${gate} label="Open" onDone=${again} /><//></tr>`)}</tbody><//>
    <//>`}
    <${Throughput} of=${of.throughput} />
    ${of.kinds.length > 1 && html`<${Section} title="Open runs by kind">
      <${Table} caption="Open runs by kind" columns=${["Kind", { name: "Running", className: "count" }, { name: "Queued", className: "count" }, { name: "Paused", className: "count" }]}><tbody>${of.kinds.map((each) => html`<tr key=${each.kind}>
        <${Cell}><${Link} to=${kindOf(each.kind).isDeployed ? `work/${each.kind}` : `runs?kind=${encodeURIComponent(each.kind)}`}>${manyOf(kindOf(each.kind))}<//><//>
        ${["running", "queued", "paused"].map((status) => html`<${Cell} name=${status} className="count">${number(each[status])}${each.more ? "+" : ""}<//>`)}</tr>`)}</tbody><//>
    <//>`}
    ${of.repairs.length > 0 && html`<details class="fold"><summary>Fixed automatically in the last 24 hours: ${of.repairs.length === 10 ? "the last 10 repairs" : plural(of.repairs.length, "repair")}</summary>
      <${Table} caption="Recent repairs" columns=${["When", "What happened", "Run", "Lane"]}><tbody>${of.repairs.map((repair) => html`<tr>
        <${Cell}><${Ago} at=${repair.at} /><//><${Cell} name="What happened">${repairName(repair.why)}<//>
        <${Cell} name="Run"><${Link} to=${`runs/${repair.run_id}`}>${kindOf(repair.kind).title}<//><//><${Cell} name="Lane">${laneName(repair.kind, repair.lane_key)}<//></tr>`)}</tbody><//>
    </details>`}
    ${open === 0 && of.failing.count === 0 && html`<${Empty}><${None} text="No runs are open." /><//>`}`;
}

function Failed({ of, again }) {
  const text = withLaneNames(of.kind, of.message || of.code || "Unknown error");
  const filter = { kind: of.kind, status: "failed", fingerprint: of.fingerprint };
  return html`<tr>
    <${Cell} className="nowrap"><${Status} of="failed" /><//>
    <${Cell} name="Cause" className="long"><${Link} to=${of.count === 1 ? `runs/${of.run_id}` : `failures?cause=${of.fingerprint}`} class="cause" title=${text}>${text}<//>
      <span class="below">${kindOf(of.kind).title}${of.lane_key ? ` · ${laneName(of.kind, of.lane_key)}` : ""}</span><//>
    <${Cell} name="Runs" className="count">${number(of.count)}<//><${Cell} name="When"><${Ago} at=${of.last_at} isBrief /><//>
    <${Cell} className="actions">${of.fix ? html`<${FixConnection} id=${of.fix.target} run=${of.count === 1 ? of.run_id : null} filter=${filter} onDone=${again} />` : html`<${RetryCause} cause=${of} onDone=${again} />`}<//></tr>`;
}

// One line and one action, however many runs wait for the same.
function Wait({ of, gates, again }) {
  const isOne = of.runs === 1;
  const text = useNamed(of.sentence);
  const name = isOne && runName({ ...of, id: of.run_id });
  const place = kindOf(of.kind).waits[of.code];
  const then = kindOf(of.kind).continues(of.sentence);
  const gate = of.code === "gate" && gates.find((each) => each.key === of.held_by);
  const action = {
    gate: () => gate && html`<${OpenGate} gate=${gate} onDone=${again} />`,
    retrying: () => (isOne ? html`<${RunNow} run=${of.run_id} name=${name} onDone=${again} />` : html`<${Bulk} label="Run now" filter=${{}} actions=${["wake"]} onDone=${again} explains="The next attempt of everything that is retrying runs now instead of later." />`),
    paused: () => (isOne ? html`<${Resume} run=${of.run_id} name=${name} onDone=${again} />` : html`<${Bulk} label="Resume" filter=${{ status: "paused" }} actions=${["resume"]} onDone=${again} />`),
    due_later: () => isOne && !then && html`<${RunNow} run=${of.run_id} name=${name} onDone=${again} />`,
    unsent: () => isOne && html`<${RunNow} run=${of.run_id} name=${name} onDone=${again} />`,
  }[of.code]?.() ?? (place && html`<${Link} to=${place.path ? `work/${of.kind}/${place.path}` : `work/${of.kind}`} class="button">${place.label}<//>`);
  const list = { paused: "runs?status=paused", queued: "runs?status=queued" }[of.code] ?? `runs?state=${of.state}`;
  return html`<tr>
    <${Cell} className="nowrap"><${Status} of=${of.state} /><//>
    <${Cell} name="Cause" className="long"><${Link} to=${isOne ? `runs/${of.run_id}` : list} class="cause" title=${text}>${text}<//>${isOne && html`<span class="below">${name}</span>`}<//>
    <${Cell} name="Runs" className="count">${number(of.runs)}<//>
    <${Cell} name="Continues">${then ? html`<span class="quiet">${then}</span>` : of.until ? html`<${Until} at=${of.until} />` : html`<span class="quiet">${{ paused: "when resumed", queued: "when free", inactive: "when it is active" }[of.code] ?? "now"}</span>`}<//>
    <${Cell} className="actions">${action || null}<//></tr>`;
}

// Good news needs proof: a run counts as moving when it has committed a step in the last minutes, not when one is due. A scheduler
// that has never run is only missed where something has waited for it.
function verdict(of, open) {
  const waited_s = of.oldest_open === null ? 0 : (now() - Date.parse(of.oldest_open)) / 1000;
  if (of.tick_age_s === null ? waited_s > OLD_TICK_S : of.tick_age_s > OLD_TICK_S) {
    return { tone: "bad", text: `The scheduler ${of.tick_age_s === null ? "hasn't run yet" : `last ran ${duration(of.tick_age_s)} ago`}, so lost messages aren't repaired. Check the function tick and its schedule.` };
  }
  const { retrying = 0, throttled = 0 } = of.states;
  const bad = [
    of.late.count && `${plural(of.late.count, "run")} overdue`, retrying && `${plural(retrying, "run")} retrying`, throttled && `${plural(throttled, "run")} throttled`,
    of.failing.count && `${plural(of.failing.count, "run")} failed in the last 24 hours`,
  ].filter(Boolean);
  if (bad.length) return { tone: "bad", text: `${bad.join(", ")}.` };
  if (open === 0) return { tone: "calm", text: "Nothing is running." };
  if (of.moving === 0) return { tone: "calm", text: `Nothing is overdue or failed, but ${open === 1 ? "the open run hasn't" : `none of the ${number(open)} open runs have`} made progress in the last 5 minutes.` };
  return { tone: "good", text: `All is well: ${plural(of.moving, "run")} made progress in the last 5 minutes, nothing is overdue, nothing failed.` };
}

const Figure = ({ name, value, more, tone, to }) => html`<div class=${`figure ${value > 0 && tone ? `figure-${tone}` : ""}`}>
  <dt>${name}</dt><dd><${Link} to=${to}>${number(value)}${more && value > 0 ? "+" : ""}<//></dd></div>`;

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
