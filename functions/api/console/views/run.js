// One run: what it is now, why it waits, what its lanes did, every line of its history, and the acts that move it.
import { get, post } from "../api.js";
import { duration, moment, number, plural, timeOfDay, words } from "../format.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { KINDS } from "./kinds.js";
import { follow } from "../live.js";
import { ACTS, NONE, Act, Actor, Ago, Cell, Empty, Heading, Json, Link, Loading, Pages, Progress, Ribbon, Section, Status, Table, Took, Trouble, Until, Why, runName, useMay } from "../parts.js";

const LANES = 25;
const MOST_LINES = 500;

export default function Run({ id }) {
  const { run, lines, state, problem, reload } = useRun(id);
  if (run === null) return problem ? html`<${Heading} title="Run" /><${Trouble} problem=${problem} />` : html`<${Loading} />`;
  return html`
    <${Heading} title=${runName(run)}><${Acts} run=${run} reload=${reload} /><//>
    <${Head} run=${run} state=${state} />
    <${Trouble} problem=${problem?.status === 404 ? problem : null} />
    <${Lanes} run=${run} reload=${reload} />
    <${Lines} lines=${lines} />
    ${run.remote_calls?.length > 0 && html`<${Calls} of=${run.remote_calls} />`}
    <${Section} title="Parameters" note="what looks like a secret is masked"><${Json} of=${run.params} /><//>`;
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
      if (!told.finished_at) stream.current?.again(); // it may have ended before, and somebody retried it
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

const STATES = { live: "live", ended: "ended", paused: "not watched while this tab is hidden", lost: "connection lost, trying again" };

function Head({ run, state }) {
  const facts = [
    ["Kind", words(run.kind)],
    ["Begun", html`<${Ago} at=${run.created_at} />`],
    ["Took", html`<${Took} from=${run.started_at ?? run.created_at} to=${run.finished_at} />`],
    run.created_by && ["By", html`<${Actor} of=${run.created_by} />`],
    run.source && ["Source", html`<code>${run.source}</code>${run.source_ref && html` <code>${run.source_ref}</code>`}`],
    run.rate_per_minute && run.status === "running" && ["Pace", `${number(Math.round(run.rate_per_minute))} steps a minute`],
    run.eta && run.status === "running" && ["Done", html`<${Until} at=${run.eta} />`],
    run.deadline_at && !run.finished_at && ["Deadline", html`<${Until} at=${run.deadline_at} />`],
    run.epoch > 1 && ["Try", number(run.epoch)],
    ["Id", html`<code>${run.id}</code>`],
    run.correlation_id && ["In the logs", html`<code>${run.correlation_id}</code>`],
  ].filter(Boolean);
  return html`<div class="run-head">
    <p class="run-state"><span aria-live="polite"><${Status} of=${run.status}>${run.cancel_requested_at && !run.finished_at ? "being canceled" : undefined}<//></span>
      ${run.outcome && run.outcome !== run.status && html`<span>${words(run.outcome)}</span>`}
      ${!run.finished_at && run.why && html`<${Why} of=${run.why} />${run.why.code === "gate" && html`<${Link} to="gates">Gates<//>`}`}
      <span class="spring"></span><span class=${`live live-${state}`} role="status">${STATES[state]}</span></p>
    <${Progress} run=${run} />
    ${run.error && html`<div class="error-box"><p><strong>${run.error.message ?? run.error.code}</strong></p>
      <p class="quiet">${run.error.code && html`code <code>${run.error.code}</code>`}${run.fingerprint && html` · fingerprint <code>${run.fingerprint}</code>`}</p></div>`}
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
  </div>`;
}

function Acts({ run, reload }) {
  const mayAct = useMay(ACTS);
  const view = KINDS[run.kind]?.view;
  const act = (name) => async (reason) => {
    await post(`runs/${run.id}/${name}`, { reason });
    await reload();
  };
  const isOpen = !run.finished_at && !run.cancel_requested_at;
  return html`
    ${view && html`<${Link} to=${view.to(run.id)} class="button">${view.name}<//>`}
    ${mayAct && isOpen && run.status !== "paused" && html`<${Act} label="Pause" explains="No lane takes a new turn until somebody resumes the run. Steps at work come to their end." act=${act("pause")} done="Paused." />`}
    ${mayAct && run.status === "paused" && html`<${Act} label="Resume" explains="It goes on where the pause began; deadlines move by the time it took." act=${act("resume")} done="Resumed." />`}
    ${mayAct && isOpen && html`<${Act} label="Cancel" title="Cancel this run" tone="danger" explains="Every lane stops at its next turn, which is due now. What was committed stays." act=${act("cancel")} done="It is being canceled." />`}
    ${mayAct && run.finished_at && run.status !== "succeeded" && html`<${Act} label="Retry" explains="A new try: what failed or was canceled goes on where it stopped." act=${act("retry")} done="It goes on." />`}`;
}

const LANE_COLUMNS = ["Lane", "Status", "Steps", "Waits for", "Last commit", { name: "", className: "acts" }];

function Lanes({ run, reload }) {
  const mayAct = useMay(ACTS);
  const [status, setStatus] = useState(run.status === "failed" ? "failed" : ""); // the cause first
  const [turn, setTurn] = useState(0);
  const again = () => setTurn((n) => n + 1);
  const known = useRef(run);
  useEffect(() => {
    if (known.current !== run) again();
    known.current = run;
  }, [run.status, run.epoch]);
  const load = async (cursor) => {
    const { lanes, next } = await get(`runs/${run.id}/lanes`, { cursor, status, limit: LANES, ribbon: 60 });
    return { rows: lanes, next };
  };
  const act = (lane, name) => async (reason) => {
    await post(`runs/${run.id}/lanes/${lane.id}/${name}`, { reason });
    again();
    await reload();
  };
  const choice = html`<label class="inline">Show <select value=${status} onChange=${(event) => setStatus(event.target.value)}>
    ${["", "active", "failed", "done", "canceled"].map((each) => html`<option value=${each} selected=${each === status}>${each || "all lanes"}</option>`)}</select></label>`;
  return html`<${Section} title="Lanes" note="one tick per step; its height is the time it took, a gap is a wait" side=${choice}>
    <${Table} caption="Lanes with their latest steps" columns=${LANE_COLUMNS} className="lanes">
      <${Pages} key=${status} turn=${turn} load=${load} row=${(lane) => html`<${LaneRow} key=${lane.id} ...${{ lane, run, mayAct, act }} />`} columns=${LANE_COLUMNS.length} every_s=${run.finished_at ? 0 : 3}
        empty=${html`<${Empty}><p>${status ? `No lane is ${status}.` : "No lanes."}</p><//>`} />
    <//>
  <//>`;
}

const WAKES = ["due_later", "retrying", "gate", "unsent"];

function LaneRow({ lane, run, mayAct, act }) {
  const error = lane.last_error;
  return html`<tr class="lane">
    <${Cell}><code class="name lane-key">${lane.key}</code>${!lane.holds_run && html` <span class="quiet">does not hold the run</span>`}<//>
    <${Cell} name="Status"><${Status} of=${lane.status} />${lane.attempts > 0 && html` <span class="quiet nowrap">attempt ${lane.attempts + 1}</span>`} <div class="quiet nowrap">${plural(lane.steps, "step")}</div><//>
    <${Cell} name="Steps" className="steps"><${Ribbon} steps=${lane.ribbon} label=${`Lane ${lane.key}`} /><//>
    <${Cell} name="Waits for" className="long">${lane.status === "active" ? html`<${Why} of=${lane.why} />` : error ? html`<span class="error-line">${error.message ?? error.code}</span> <code class="quiet">${lane.fingerprint ?? ""}</code>` : NONE}<//>
    <${Cell} name="Last commit"><${Ago} at=${lane.updated_at} /><//>
    <${Cell} className="acts">
      ${mayAct && lane.status === "active" && WAKES.includes(lane.why?.code) && html`<${Act} label="Wake" title=${`Wake ${lane.key}`} explains="Its next turn is due now. A gate that is closed stays closed." act=${act(lane, "wake")} done="Woken." />`}
      ${mayAct && ["failed", "canceled"].includes(lane.status) && !run.finished_at && html`<${Act} label="Restart" title=${`Restart ${lane.key}`} explains="A new try of this lane, at the place where it stopped." act=${act(lane, "restart")} done="Restarted." />`}
    <//></tr>`;
}

function Lines({ lines }) {
  return html`<${Section} title="History" note=${lines.length === 0 ? null : `${plural(lines.length, "line")}, the newest first`}>
    ${lines.length === 0 ? html`<${Empty}><p>No lines yet.</p><//>` : html`<ol class="lines" reversed tabindex="0" aria-label="Lines of the history">
      ${lines.toReversed().map((line) => html`<li key=${line.n} class=${`line line-${line.type}`}>
        <time datetime=${line.at} title=${moment(line.at)}>${timeOfDay(line.at)}</time>
        <span class="line-type">${words(line.type)}</span>
        <span class="line-data">${said(line.data)}</span></li>`)}
    </ol>`}
  <//>`;
}

const said = (data) => Object.entries(data).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${words(name)}: ${value.message ?? (typeof value === "object" ? JSON.stringify(value) : value)}`).join(" · ");

const Calls = ({ of }) => html`<${Section} title="Remote calls" note="each happens once, whatever is delivered twice">
  <${Table} caption="Remote calls" columns=${["Key", "Kind", "Remote id", "Intended", "Answered", "Cleaned"]}><tbody>${of.map((call) => html`<tr key=${`${call.epoch} ${call.key}`}>
    <${Cell}><code>${call.key}</code><//><${Cell} name="Kind">${words(call.kind)}<//><${Cell} name="Remote id">${call.remote_id ? html`<code>${call.remote_id}</code>` : "–"}<//>
    <${Cell} name="Intended"><${Ago} at=${call.intended_at} /><//><${Cell} name="Answered">${call.confirmed_at ? `after ${duration((Date.parse(call.confirmed_at) - Date.parse(call.intended_at)) / 1000)}` : html`<span class="quiet">no answer yet</span>`}<//>
    <${Cell} name="Cleaned">${call.leaves_asset ? html`<${Ago} at=${call.cleaned_at} none="not yet" />` : html`<span class="quiet">leaves nothing</span>`}<//></tr>`)}</tbody><//>
<//>`;
