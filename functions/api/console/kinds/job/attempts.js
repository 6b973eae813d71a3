// The attempts of a job, newest first, each with its log. That of a running one is live.
import { duration, plural } from "../../format.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Ago, Answer, Cell, Elapsed, Empty, Section, Status, Table, Until } from "../../parts.js";

const SHOWN = 20;

export default function Attempts({ run }) {
  const isOver = run.finished_at !== null;
  const job = useAnswer(`jobs/${run.id}`, {}, isOver ? 30 : 3);
  const answer = useAnswer(`jobs/${run.id}/attempts`, { limit: SHOWN }, isOver ? 30 : 3);
  return html`<${Answer} of=${job}>${(told) => html`<${Facts} of=${told} />`}<//>
    <${Answer} of=${answer}>${({ attempts, next }) => html`<${Section} title="Attempts" note=${attempts.length ? `${plural(attempts.length, "attempt")}${next ? " shown; more in the API" : ""}, newest first` : null}>
      ${attempts.length === 0 ? html`<${Empty}><p>${isOver ? "The job ended before it was started." : "Not started yet."}</p><//>`
        : attempts.map((each, n) => html`<${Attempt} key=${each.attempt_no} id=${run.id} of=${each} isFirst=${n === 0} />`)}<//>`}<//>`;
}

function Facts({ of }) {
  const facts = [
    of.why && ["Now", html`${of.why.sentence}${of.why.until && html` <${Until} at=${of.why.until} />`}`],
    ["Priority", of.priority],
    of.why?.queue && ["Queue", of.why.queue],
    of.why && !of.started_at && ["Workers for this queue", of.why.workers],
    of.dedupe_key && ["Dedupe key", html`<code>${of.dedupe_key}</code>`],
  ].filter(Boolean);
  return html`<dl class="facts job-facts">${facts.map(([name, value]) => html`<div class=${name === "Now" ? "wide" : undefined}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${Object.keys(of.payload).length > 0 && html`<${Section} title="Arguments"><${Table} caption="Arguments" columns=${["Name", "Value"]}><tbody>${Object.entries(of.payload).map(([name, value]) => html`<tr key=${name}>
      <${Cell}><code>${name}</code><//><${Cell} name="Value" className="long">${typeof value === "string" ? value : JSON.stringify(value)}<//></tr>`)}</tbody><//><//>`}`;
}

function Attempt({ id, of, isFirst }) {
  const [isOpen, setOpen] = useState(isFirst);
  const isRunning = of.status === "running";
  return html`<details class="attempt" open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}>
    <summary><span class="name">Attempt ${of.attempt_no}</span> <${Status} of=${of.status} />
      <span class="quiet">${isRunning ? html`for <${Elapsed} from=${of.started_at} />` : html`<${Ago} at=${of.started_at} />, ran ${duration((Date.parse(of.finished_at) - Date.parse(of.started_at)) / 1000)}`}</span>
      ${of.exit_code !== null && html`<span class="quiet">exit code ${of.exit_code}</span>`}</summary>
    ${of.error_text && html`<p class="error-line">${of.error_text}</p>`}
    <p class="quiet">Worker <code>${of.worker_id}</code>${of.pid ? html`, process ${of.pid}` : ""}</p>
    ${isOpen && html`<${Logs} id=${id} of=${of} isRunning=${isRunning} />`}</details>`;
}

function Logs({ id, of, isRunning }) {
  // Asked once more when it has ended: the last lines come with the end.
  const answer = useAnswer(`jobs/${id}/attempts/${of.attempt_no}`, {}, isRunning ? 2 : 0);
  return html`<${Answer} of=${answer}>${(told) => html`<${Log} name="Output" of=${told.stdout_tail} isRunning=${isRunning} /><${Log} name="Errors" of=${told.stderr_tail} isRunning=${isRunning} />`}<//>`;
}

// Stays at the end while somebody looks at the end.
function Log({ name, of, isRunning }) {
  const frame = useRef(null);
  const follows = useRef(true);
  useEffect(() => {
    if (frame.current && follows.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [of]);
  if (!of) return name === "Output" ? html`<p class="quiet">${isRunning ? "Nothing printed yet." : "It printed nothing."}</p>` : null;
  const scrolled = ({ target }) => {
    follows.current = target.scrollTop + target.clientHeight >= target.scrollHeight - 8;
  };
  return html`<figure class="log"><figcaption>${name} <span class="quiet">${of.length >= 60_000 ? "the last 64 KB" : ""}</span></figcaption>
    <pre tabindex="0" role="log" aria-label=${name} aria-live="off" ref=${frame} onScroll=${scrolled}>${of}</pre></figure>`;
}
