// One run: a header (status, cause, next action, progress) that stays, and tabs below it.
import { get, now, post } from "../api.js";
import { brief, duration, instant, number, plural, sentence, timeOfDay, words } from "../format.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { kindOf, laneName, phaseName, withLaneNames } from "../kinds.js";
import { follow } from "../live.js";
import { Action, Actor, Ago, Cell, Elapsed, Empty, Heading, Json, Link, Loading, NONE, Pages, Progress, Ribbon, STARTS, Section, Status, Table, Tabs, Trouble, Until, Why, laneState, rootCause, runName, useMay } from "../parts.js";
import { FixConnection, OpenGateOf, RunNow } from "./fixes.js";
import NotFound from "./not_found.js";

const PAGE_LANES = 100;
const ALIKE = 3; // so many lanes that wait for the same are one line
const MOST_LINES = 500;

export default function Run({ id, tab }) {
  const { run, lines, state, problem, reload } = useRun(id);
  if (run === null) return problem ? html`<${Heading} title=${problem.status === 404 ? "Run not found" : "Run"} /><${Trouble} problem=${problem} />` : html`<${Loading} />`;
  const kind = kindOf(run.kind);
  const tabs = [{ path: "", title: "Overview", View: Overview }, ...kind.tabs, { path: "timeline", title: "Timeline", View: Timeline }, { path: "parameters", title: "Parameters", View: Parameters }];
  const open = tab.length > 1 ? undefined : tabs.find((each) => each.path === (tab[0] ?? ""));
  if (!open) return html`<${NotFound} />`;
  return html`
    <${Heading} title=${runName(run)}><${Actions} run=${run} kind=${kind} reload=${reload} /><//>
    <${Head} run=${run} reload=${reload} state=${run.finished_at && state === "live" ? "ended" : state} />
    <${Trouble} problem=${problem?.status === 404 ? problem : null} />
    <${Trouble} problem=${kind.problem} />
    <${Tabs} label="Run" below=${`runs/${run.id}`} tabs=${tabs} at=${open.path} />
    <${open.View} key=${open.path} run=${run} lines=${lines} reload=${reload} />`;
}

// The truth is GET /runs/{id}; the stream tells when to look, and every line once.
function useRun(id) {
  const [run, setRun] = useState(null);
  const [lines, setLines] = useState([]);
  const [state, setState] = useState("live");
  const [problem, setProblem] = useState(null);
  const stream = useRef(null);

  const reload = async () => {
    try {
      const told = await get(`runs/${encodeURIComponent(id)}`);
      setRun(told);
      setProblem(null);
      if (!told.finished_at) stream.current?.again(); // it may have ended before, and someone retried it
    } catch (error) {
      setProblem(error);
    }
  };
  useEffect(() => {
    reload();
    stream.current = follow(id, {
      onSnapshot: (told) => {
        setRun((before) => (before === null ? before : { ...before, ...told }));
      },
      onLine: (line) => {
        setLines((before) => [...before.slice(-MOST_LINES), line]);
        if (["succeeded", "failed", "canceled"].includes(line.type)) reload();
      },
      onState: setState,
    });
    const timer = setInterval(() => document.visibilityState === "visible" && reload(), 10_000);
    return () => {
      clearInterval(timer);
      stream.current.close();
    };
  }, [id]);
  return { run, lines, state, problem, reload };
}

// --- the header

const STREAM = { live: "Live", ended: "Ended", paused: "Paused while this tab is hidden", lost: "Connection lost; reconnecting" };

function Head({ run, state, reload }) {
  const isOpen = !run.finished_at;
  const cause = run.error && rootCause(run.error);
  return html`<div class="run-head">
    <p class="run-state"><span aria-live="polite"><${Status} of=${run.state} /></span>
      ${run.outcome && run.outcome !== run.status && html`<span>${words(run.outcome)}</span>`}
      ${isOpen && run.cancel_requested_at && !isUndeployed(run) ? html`<span>${kindOf(run.kind).words.canceling ?? "Canceling: each lane stops at its next step."}</span>` : isOpen && run.why && html`<${Why} of=${{ ...run.why, until: null }} />`}
      <span class="spring"></span><span class=${`live live-${state}`} role="status">${STREAM[state]}</span></p>
    ${cause && html`<div class="error-box"><div><p><strong>${withLaneNames(run.kind, cause.message)}</strong></p>
      ${cause.outer && html`<p>${withLaneNames(run.kind, cause.outer)}</p>`}
      <p class="quiet">${cause.laneKey && html`<span title=${cause.laneKey}>${cause.lanes > 1 ? `${plural(cause.lanes, "lane")}, first ` : "Lane "}${laneName(run.kind, cause.laneKey)}</span> · `}${cause.code && html`<code>${cause.code}</code>`}${run.fingerprint && html` · <${Link} to=${`failures?cause=${run.fingerprint}`}>Runs with this cause<//>`}</p></div>
      ${run.fix && run.finished_at && html`<div class="error-fix"><${FixConnection} id=${run.fix.target} run=${run.id} onDone=${reload} /></div>`}</div>`}
    <${Next} run=${run} reload=${reload} />
    ${(run.progress.lanes > 1 || run.progress.rows) && html`<${Progress} run=${run} />`}
  </div>`;
}

// Nothing moves it, not even a cancel that was requested before: only canceling it now ends it.
const isUndeployed = (run) => run.why?.code === "not_deployed";

// What happens next by itself, and what someone can do.
function Next({ run, reload }) {
  const { why } = run;
  const at = why?.until ? html`<${Until} at=${why.until} />` : "later";
  const said = {
    queued: () => "Starts when a worker is free.",
    retrying: () => html`Next attempt ${why?.until ? at : "is running now"}. ${why?.until && html`<${RunNow} run=${run.id} onDone=${reload} />`}`,
    throttled: () => html`Continues ${at}, or when <${Link} to="rate-limits">the rate limit<//> is opened. ${why?.held_by && html`<${OpenGateOf} id=${why.held_by} onDone=${reload} />`}`,
    waiting: () => {
      const then = kindOf(run.kind).continues(why?.sentence); // looking again by itself changes nothing
      return then ? `Continues ${then}.` : html`Continues ${at}. ${why?.until && html`<${RunNow} run=${run.id} onDone=${reload} />`}`;
    },
    paused: () => "Resume it to continue.",
    stalled: () => isUndeployed(run) && "Continues when its kind is deployed again.", // of what is overdue, `why` says all
    failed: () => kindOf(run.kind).words.failed ?? "Fix the cause, then retry: failed work resumes from its last step.",
    canceled: () => (kindOf(run.kind).words.retry ? "Retry it to run it again." : "Retry it to resume from its last step."),
  }[run.state];
  const next = !(run.cancel_requested_at && !run.finished_at) && said?.();
  return next ? html`<p class="next"><span class="quiet">Next</span> <span>${next}</span></p>` : null;
}

function Actions({ run, kind, reload }) {
  const mayAct = useMay(STARTS);
  const action = (name) => async (reason) => {
    await post(`runs/${run.id}/${name}`, { reason });
    await reload();
  };
  const isOpen = !run.finished_at && !run.cancel_requested_at;
  return html`
    ${kind.Actions && html`<${kind.Actions} run=${run} reload=${reload} />`}
    ${mayAct && isOpen && run.status !== "paused" && html`<${Action} label="Pause" title="Pause run" explains="No new step starts until someone resumes the run. Steps that are running finish." action=${action("pause")} done="Paused." />`}
    ${mayAct && run.status === "paused" && html`<${Action} label="Resume" title="Resume run" tone="main" explains="The run continues where it was paused. Deadlines move by the length of the pause." action=${action("resume")} done="Resumed." />`}
    ${mayAct && (isOpen || isUndeployed(run)) && html`<${Action} label=${`Cancel ${kind.one?.toLowerCase() ?? "run"}`} tone="danger" explains=${kind.words.cancel ?? "Every lane stops at its next step, which runs now. Committed work stays."} action=${action("cancel")} done="Canceling." />`}
    ${mayAct && run.finished_at && run.status !== "succeeded" && html`<${Action} label="Retry" title="Retry run" tone="main" explains=${kind.words.retry ?? "Resumes failed and canceled work from its last step."} action=${action("retry")} done="Retrying." />`}`;
}

// --- the tabs

function Overview({ run, reload }) {
  const facts = [
    ["Kind", kindOf(run.kind).title],
    ...kindOf(run.kind).facts(run),
    ["Started", html`${brief(run.created_at)} <span class="quiet">(<${Ago} at=${run.created_at} />)</span>`],
    ["Elapsed", html`<${Elapsed} from=${run.started_at ?? run.created_at} to=${run.finished_at} />`],
    run.created_by && ["Started by", html`<${Actor} of=${run.created_by} />`],
    run.source && ["Source", html`<code>${run.source}</code>${run.source_ref && html` <code>${run.source_ref}</code>`}`],
    run.rate_per_minute && run.state === "running" && ["Throughput", `${number(Math.round(run.rate_per_minute))} steps per minute`],
    run.deadline_at && !run.finished_at && ["Deadline", Date.parse(run.deadline_at) < now() ? html`<${Ago} at=${run.deadline_at} />` : html`<${Until} at=${run.deadline_at} />`],
    run.epoch > 1 && ["Attempt", number(run.epoch)],
    ["Run ID", html`<code>${run.id}</code>`],
    run.correlation_id && ["Correlation ID", html`<code>${run.correlation_id}</code>`],
  ].filter(Boolean);
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Lanes} run=${run} reload=${reload} />`;
}

const LANE_COLUMNS = ["Lane", "Status", "Steps", "Cause", "Last commit", { name: "", className: "actions" }];
const SHOWN = { "": "all", active: "open", failed: "failed", done: "succeeded", canceled: "canceled" };

function Lanes({ run, reload }) {
  const mayAct = useMay(STARTS);
  const [status, setStatus] = useState(run.status === "failed" ? "failed" : ""); // the cause first
  const [turn, setTurn] = useState(0);
  const again = () => setTurn((n) => n + 1);
  const known = useRef(run);
  useEffect(() => {
    if (known.current !== run) again();
    known.current = run;
  }, [run.status, run.epoch]);
  const load = async (cursor) => {
    const { lanes, next } = await get(`runs/${run.id}/lanes`, { cursor, status, limit: PAGE_LANES, ribbon: 30 });
    return { rows: together(lanes), next };
  };
  const action = (lane, name) => async (reason) => {
    await post(`runs/${run.id}/lanes/${lane.id}/${name}`, { reason });
    again();
    await reload();
  };
  const choice = html`<label class="inline">Show <select value=${status} onChange=${(event) => setStatus(event.target.value)}>
    ${Object.entries(SHOWN).map(([each, text]) => html`<option value=${each} selected=${each === status}>${text}</option>`)}</select></label>`;
  return html`<${Section} title="Lanes" note="work in parallel; one bar per step, taller = slower, a gap is a wait" side=${choice}>
    <${Table} caption="Lanes with their latest steps" columns=${LANE_COLUMNS} className="lanes">
      <${Pages} key=${status} turn=${turn} load=${load} row=${(lane) => (lane.alike
        ? html`<${AlikeRow} key=${lane.alike[0].id} ...${{ lanes: lane.alike, run, mayAct, action, reload }} />`
        : html`<${LaneRow} key=${lane.id} ...${{ lane, run, mayAct, action }} />`)} columns=${LANE_COLUMNS.length} every_s=${run.finished_at ? 0 : 3}
        empty=${html`<${Empty}><p>${status ? `No ${SHOWN[status]} lanes.` : "No lanes."}</p><//>`} />
    <//>
  <//>`;
}

// Lanes that wait for the same stand together, where the first of them would.
function together(lanes) {
  const same = new Map();
  for (const lane of lanes) {
    if (lane.status !== "active" || !lane.why || ["at_work", "queued"].includes(lane.why.code)) continue;
    const key = `${lane.why.code} ${lane.why.held_by} ${lane.fingerprint}`;
    same.set(key, [...(same.get(key) ?? []), lane]);
  }
  const folded = new Map([...same.values()].filter((alike) => alike.length >= ALIKE).flatMap((alike) => alike.map((lane) => [lane.id, alike])));
  return lanes.filter((lane) => !folded.has(lane.id) || folded.get(lane.id)[0] === lane).map((lane) => (folded.has(lane.id) ? { alike: folded.get(lane.id) } : lane));
}

// One line and one action; each lane of it on demand.
function AlikeRow({ lanes, run, mayAct, action, reload }) {
  const [isOpen, setOpen] = useState(false);
  const [first] = lanes;
  const names = lanes.slice(0, 2).map((lane) => laneName(run.kind, lane.key)).join(", ");
  const soonest = lanes.map((lane) => lane.why.until).filter(Boolean).sort()[0] ?? null;
  return html`<tr class="lane">
    <${Cell}><button type="button" class="button plain fold-button" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)} title=${`${names}, …`}>${plural(lanes.length, "lane")}</button><//>
    <${Cell} name="Status"><${Status} of=${laneState(first)} /><//>
    <td data-name="Cause" class="long" colspan="2"><${Why} of=${{ ...first.why, until: soonest }} /></td>
    <${Cell} name="Last commit"><${Ago} at=${lanes.map((lane) => lane.updated_at).sort().at(-1)} /><//>
    <${Cell} className="actions">${first.why.code === "gate" ? html`<${OpenGateOf} id=${first.why.held_by} onDone=${reload} />` : wakes(first.why) && html`<${RunNow} run=${run.id} onDone=${reload} />`}<//></tr>
    ${isOpen && lanes.map((lane) => html`<${LaneRow} key=${lane.id} ...${{ lane, run, mayAct: false, action }} />`)}`;
}

// Not what an action of its kind frees: it would look again, and wait again.
const wakes = (why) => why?.action === "wake" || why?.code === "gate";

function LaneRow({ lane, run, mayAct, action }) {
  const error = lane.last_error;
  const name = laneName(run.kind, lane.key);
  const mayRestart = ["failed", "canceled"].includes(lane.status) && (!run.finished_at || !lane.holds_run);
  return html`<tr class="lane">
    <${Cell}><span class="name lane-key" title=${lane.key}>${name}</span>${!lane.holds_run && html` <span class="quiet" title="The run can end before this lane does">in the background</span>`}<//>
    <${Cell} name="Status"><${Status} of=${laneState(lane)} />${lane.attempts > 0 && lane.status === "active" && html` <span class="quiet nowrap">attempt ${lane.attempts + 1}</span>`}<//>
    <${Cell} name="Steps" className="steps"><div class="ribbon-line"><span class="quiet" title=${plural(lane.steps, "step")}>${number(lane.steps)}</span><${Ribbon} steps=${lane.ribbon} label=${`Lane ${name}`} /></div><//>
    <${Cell} name="Cause" className="long">${lane.status === "active" ? html`<${Why} of=${lane.why} />` : error && lane.status !== "done" ? html`<span class="error-line">${error.message ?? error.code}</span> <code class="quiet">${lane.fingerprint ?? ""}</code>` : NONE}<//>
    <${Cell} name="Last commit"><${Ago} at=${lane.updated_at} /><//>
    <${Cell} className="actions">
      ${mayAct && lane.status === "active" && wakes(lane.why) && html`<${Action} label="Run now" title=${`Run now: ${name}`} explains="Its next step runs now instead of later. A rate limit that is closed stays closed." action=${action(lane, "wake")} done="Running now." />`}
      ${mayAct && mayRestart && html`<${Action} label="Restart" title=${`Restart ${name}`} explains="Resumes this lane from its last step." action=${action(lane, "restart")} done="Restarted." />`}
    <//></tr>`;
}

const LINES = {
  accepted: "Created", running: "Started", phase: "Next phase", cancel_requested: "Cancel requested", retried: "Retried",
  lane_woken: "Run now", lane_restarted: "Lane restarted", woken: "Run now", first_failure: "First failure", recovered: "Recovered",
};

function Timeline({ run, lines }) {
  return html`<${Section} title="Timeline" note=${lines.length === 0 ? null : `${plural(lines.length, "event")}, newest first`}>
      ${lines.length === 0 ? html`<${Empty}><p>No events yet.</p><//>` : html`<ol class="lines" reversed tabindex="0" aria-label="Events">
        ${lines.toReversed().map((line) => html`<li key=${line.n} class=${`line line-${line.type}`}>
          <time datetime=${line.at} title=${instant(line.at)}>${timeOfDay(line.at)}</time>
          <span class="line-type">${LINES[line.type] ?? sentence(line.type)}</span>
          <span class="line-data">${line.data.by && html`by <${Actor} of=${line.data.by} />`} ${line.data.by && said(line.data) && "· "}${(TOLD[line.type] ?? said)(line.data, run.kind)}</span></li>`)}
      </ol>`}
    <//>
    ${run.remote_calls?.length > 0 && html`<${Calls} of=${run.remote_calls} />`}`;
}

// Lines that are more than the sum of their fields.
const TOLD = {
  accepted: ({ lanes }) => plural(lanes, "lane"),
  phase: ({ lanes, first }, kind) => `${first ? `${phaseName(kind, first)}: ` : ""}${plural(lanes, "lane")}`,
  first_failure: ({ lane, error }, kind) => `${laneName(kind, lane)}: ${error?.message ?? "unknown error"}`,
  recovered: ({ lane, attempts }, kind) => `${laneName(kind, lane)}, after ${plural(attempts, "failed attempt")}`,
};
const said = ({ by, ...data }) => Object.entries(data).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${words(name)}: ${value.message ?? (typeof value === "object" ? JSON.stringify(value) : value)}`).join(" · ");

const Calls = ({ of }) => html`<${Section} title="Remote calls" note="calls that must not happen twice">
  <${Table} caption="Remote calls" columns=${["Key", "Kind", "Remote ID", "Requested", "Answered", "Cleaned up"]}><tbody>${of.map((call) => html`<tr key=${`${call.epoch} ${call.key}`}>
    <${Cell}><code>${call.key}</code><//><${Cell} name="Kind">${words(call.kind)}<//><${Cell} name="Remote ID">${call.remote_id ? html`<code>${call.remote_id}</code>` : NONE}<//>
    <${Cell} name="Requested"><${Ago} at=${call.intended_at} /><//><${Cell} name="Answered">${call.confirmed_at ? `after ${duration((Date.parse(call.confirmed_at) - Date.parse(call.intended_at)) / 1000)}` : html`<span class="quiet">no answer yet</span>`}<//>
    <${Cell} name="Cleaned up">${call.leaves_asset ? html`<${Ago} at=${call.cleaned_at} none="not yet" />` : html`<span class="quiet">nothing to clean up</span>`}<//></tr>`)}</tbody><//>
<//>`;

const Parameters = ({ run }) => html`<${Section} title="Parameters" note="secrets are masked"><${Json} of=${run.params} /><//>`;
