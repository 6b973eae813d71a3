// What starts jobs by itself: events and schedules, when they are due next, what came of them, and a way to try them.
import { ask, get, post } from "../../api.js";
import { moment, plural, sentence, shortId } from "../../format.js";
import { html, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Action, Ago, Answer, Cell, Empty, Field, Heading, Json, Link, NONE, Pages, Section, Status, Table, Trouble, Until, useTurn } from "../../parts.js";

const COLUMNS = ["Trigger", "Starts", "Next run", { name: "History", title: "Its last firings, newest on the right" }, "Status", { name: "", className: "actions" }];
const FIRINGS = ["Due", "Result", "Job", "Cause"];
const REASONS = {
  too_late: "Skipped: too late", missed: "Skipped: missed", superseded: "Skipped: a later one ran instead", over_cap: "Skipped: too many were missed",
  overlap: "Skipped: the job before was still running", loop: "Skipped: it would start itself again",
  switched_off: "Skipped: switched off before it was handled",
};
const RESULTS = { started: "Started a job", joined: "Joined a job", waiting: "Waits for the running job", refused: "Not started" };
const TONES = { started: "good", joined: "good", waiting: "wait", skipped: "skip", refused: "bad" };

const toneOf = (firing) => (firing.run_status === "failed" ? "bad" : TONES[firing.status]);
const resultOf = (firing) => REASONS[firing.reason] ?? RESULTS[firing.status];
const inZone = (text, zone) => new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short", timeZone: zone }).format(new Date(text));

export default function Triggers({ path = [] }) {
  return path.length > 0 ? html`<${One} id=${path[0]} />` : html`<${All} />`;
}

function All() {
  const [turn, again] = useTurn();
  const [zone, setZone] = useState(null);
  const load = async (cursor) => {
    const { triggers, timezone, next } = await get("jobs/triggers", { cursor, limit: 50 });
    setZone(timezone);
    return { rows: triggers, next };
  };
  const row = (each) => html`<tr key=${each.id} class=${each.is_enabled ? "" : "over"}>
    <${Cell} className="long"><${Link} to=${`work/job/triggers/${each.id}`} class="name">${each.label}<//><div class="quiet">starts <code>${each.definition_key}</code></div><//>
    <${Cell} name="Starts" className="long">${each.trigger_type === "event" ? html`on <code>${each.event_name}</code>` : html`<code>${each.cron_expr}</code><div class="quiet">${each.timezone}</div>`}<//>
    <${Cell} name="Next run">${each.next_fire_at ? html`<span title=${`${each.timezone}; your time: ${moment(each.next_fire_at)}`}>${inZone(each.next_fire_at, each.timezone)}</span><div class="quiet"><${Until} at=${each.next_fire_at} /></div>` : NONE}<//>
    <${Cell} name="History"><${Spark} of=${each.recent} /><//>
    <${Cell} name="Status"><${StatusOf} of=${each} /><//>
    <${Cell} className="actions"><${Switch} of=${each} again=${again} /><//></tr>`;
  return html`<${Heading} title="Triggers"><${Add} again=${again} /><//>
    <${Table} caption="Triggers" columns=${COLUMNS} className="triggers">
      <${Pages} turn=${turn} load=${load} row=${row} columns=${COLUMNS.length} every_s=${15}
        empty=${html`<${Empty}><p>No triggers yet. A trigger starts a job when something happens, or at set times. Add one here or with <code>baton trigger add</code>.</p><//>`} /><//>
    ${zone && html`<${Zone} of=${zone} again=${again} />`}`;
}

function Zone({ of, again }) {
  return html`<p class="quiet">New schedules use ${of}. <${Action} label="Change timezone" reason=${null} explains="Schedules that exist keep theirs." done="Saved."
    action=${async (_, given) => { await ask("PATCH", "tenant", { body: { timezone: given.get("timezone").trim() } }); again(); }}>
    <${ZoneField} value=${of} required=${true} /><//></p>`;
}

const ZoneField = ({ value, required = false }) => html`<${Field} label="Timezone" hint="As Europe/Madrid">${(id) => html`<input id=${id} name="timezone" list="zones" maxlength="64" autocomplete="off" required=${required} defaultValue=${value} />
  <datalist id="zones">${(Intl.supportedValuesOf?.("timeZone") ?? []).map((zone) => html`<option value=${zone} />`)}</datalist>`}<//>`;

function StatusOf({ of }) {
  if (of.problem) return html`<${Status} of="failed">Stopped<//><div class="quiet">${of.problem}</div>`;
  return html`<${Status} of=${of.is_enabled ? "succeeded" : "paused"}>${of.is_enabled ? "On" : "Off"}<//>`;
}

function Spark({ of }) {
  if (of.length === 0) return html`<span class="quiet">not run yet</span>`;
  const missed = of.filter((each) => each.status === "skipped").length;
  const text = `${plural(of.length, "firing")}, ${missed} skipped; last: ${resultOf(of[0])}`;
  return html`<span class="spark" role="img" aria-label=${text}>${[...of].reverse().map((each, n) => html`<span key=${n} class=${`spark-${toneOf(each)}`} title=${`${moment(each.fire_at)}: ${resultOf(each)}${each.count > 1 ? ` (${each.count} times)` : ""}`}></span>`)}</span>`;
}

function Switch({ of, again }) {
  const change = (is_enabled) => async () => { await ask("PATCH", `jobs/triggers/${of.id}`, { body: { is_enabled } }); again(); };
  return html`<${Action} label="Run now" title=${`Run ${of.label} now`} reason=${null} explains="Starts the job at once, whatever the schedule says." done="Started."
      action=${async (_, given) => {
        const told = await post(`jobs/triggers/${of.id}/run`, sample(given));
        if (told.problem) throw new Error(told.problem);
        again();
      }}>${of.trigger_type === "event" && html`<${SampleField} />`}<//>
    ${of.is_enabled
      ? html`<${Action} label="Turn off" title=${`Turn off ${of.label}`} reason=${null} explains="What happens while it is off starts nothing later." action=${change(false)} done="Turned off." />`
      : html`<${Action} label="Turn on" title=${`Turn on ${of.label}`} reason=${null} explains="It goes on from now." action=${change(true)} done="Turned on." />`}`;
}

const SampleField = () => html`<${Field} label="Event" hint="JSON: what {{event.…}} looks into">${(id) => html`<textarea id=${id} name="event" rows="5" required spellcheck=${false} defaultValue="{}"></textarea>`}<//>`;

function json(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: this isn't valid JSON. ${error.message}`);
  }
}
const sample = (given) => (given.get("event") === null ? {} : { event: json(given.get("event"), "Event") });

function Add({ again }) {
  const [type, setType] = useState("schedule");
  const definitions = useAnswer("admin/jobs/definitions", {}, 0);
  const send = async (_, given) => {
    const isEvent = given.get("trigger_type") === "event";
    const zone = given.get("timezone")?.trim();
    await post("jobs/triggers", {
      label: given.get("label"), trigger_type: given.get("trigger_type"), definition_key: given.get("definition_key"),
      payload_template: json(given.get("payload_template"), "Arguments"),
      ...(isEvent
        ? { event_name: given.get("event_name"), event_filter: json(given.get("event_filter") || "{}", "Only if"), dedupe_window_seconds: Number(given.get("dedupe_window_seconds")) }
        : { cron_expr: given.get("cron_expr"), ...(zone ? { timezone: zone } : {}), catch_up: given.get("catch_up"), overlap: given.get("overlap") }),
    });
    again();
  };
  const choice = (name, label, options) => html`<${Field} label=${label}>${(id) => html`<select id=${id} name=${name}>${options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`}<//>`;
  return html`<${Action} label="Add trigger" tone="main" reason=${null} explains="It is checked now, not when it fires." action=${send} done="Added.">
    <${Field} label="Label">${(id) => html`<input id=${id} name="label" required maxlength="200" autocomplete="off" />`}<//>
    <${Field} label="Job">${(id) => html`<select id=${id} name="definition_key" required>${(definitions.data?.definitions ?? []).filter((each) => each.is_active).map((each) => html`<option value=${each.key}>${each.key}</option>`)}</select>`}<//>
    <${Field} label="Starts">${(id) => html`<select id=${id} name="trigger_type" value=${type} onChange=${(event) => setType(event.target.value)}><option value="schedule">At set times</option><option value="event">When something happens</option></select>`}<//>
    ${type === "event"
      ? html`<${Field} label="Event" hint="As provider.folder.updated or job.succeeded">${(id) => html`<input id=${id} name="event_name" required maxlength="100" autocomplete="off" />`}<//>
        <${Field} label="Only if (optional)" hint='JSON: values that the event must have, as {"definition_key": "sync-dropbox"}'>${(id) => html`<input id=${id} name="event_filter" autocomplete="off" />`}<//>
        <${Field} label="Window in seconds" hint="Events with the same arguments share a job within it. None is lost.">${(id) => html`<input id=${id} name="dedupe_window_seconds" type="number" min="0" max="86400" required defaultValue="300" />`}<//>`
      : html`<${Times} />
        <div class="pair">${choice("catch_up", "Missed times", [["once", "Run once for all"], ["skip", "Skip"], ["all", "Run each"]])}
          ${choice("overlap", "Job before still running", [["queue", "Run after it"], ["skip", "Skip"]])}</div>`}
    <${Field} label="Arguments" hint="JSON. A value that is {{event.a.b}} or {{schedule.fire_at}} is replaced.">${(id) => html`<textarea id=${id} name="payload_template" rows="4" required spellcheck=${false} defaultValue="{}"></textarea>`}<//><//>`;
}

// What an expression means is shown while it is typed.
function Times() {
  const [cron, setCron] = useState("0 2 * * *");
  const [zone, setZone] = useState("");
  const [shown, setShown] = useState(null);
  const preview = async () => {
    try {
      setShown(await get("jobs/triggers/preview", { cron_expr: cron, ...(zone ? { timezone: zone } : {}) }));
    } catch (error) {
      setShown(error);
    }
  };
  return html`<div class="pair"><${Field} label="Schedule" hint="Minute, hour, day of month, month, day of week">${(id) => html`<input id=${id} name="cron_expr" required maxlength="100" autocomplete="off" value=${cron} onInput=${(event) => setCron(event.target.value)} />`}<//>
      <${Field} label="Timezone (optional)" hint="Default: the tenant's">${(id) => html`<input id=${id} name="timezone" maxlength="64" autocomplete="off" value=${zone} onInput=${(event) => setZone(event.target.value)} />`}<//></div>
    <button type="button" class="button" onClick=${preview}>Show next runs</button>
    ${shown instanceof Error ? html`<${Trouble} problem=${shown} />` : shown && html`<ol class="times" aria-label="Next runs">${shown.times.map((at) => html`<li key=${at}>${inZone(at, shown.timezone)}</li>`)}</ol>`}`;
}

function One({ id }) {
  const [turn, again] = useTurn();
  const answer = useAnswer(`jobs/triggers/${id}`, {}, 10, turn);
  return html`<${Answer} of=${answer}>${(of) => html`<${Heading} title=${of.label}><${Switch} of=${of} again=${again} />
      <${Action} label="Delete" title=${`Delete ${of.label}`} tone="danger" reason=${null} explains="Jobs that it has started go on." done="Deleted."
        action=${async () => { await ask("DELETE", `jobs/triggers/${id}`); again(); }} /><//>
    <p><${StatusOf} of=${of} /> starts <code>${of.definition_key}</code> ${of.trigger_type === "event" ? html`on <code>${of.event_name}</code>` : html`at <code>${of.cron_expr}</code> ${of.timezone}`}</p>
    ${of.trigger_type === "schedule" && html`<${Next} of=${of} turn=${turn} />`}
    <${Section} title="Try it" note="Shows the arguments that the job would get. Nothing is started."><${Tester} of=${of} /><//>
    <${Section} title="History" note="Newest first">
      <${Table} caption="Firings" columns=${FIRINGS}><${Pages} columns=${FIRINGS.length} turn=${turn} row=${firing} empty=${html`<p>Not run yet.</p>`}
        load=${async (cursor) => { const { firings, next } = await get(`jobs/triggers/${id}/firings`, { limit: 50, ...(cursor ? { cursor } : {}) }); return { rows: firings, next }; }} /><//><//>`}<//>`;
}

function Next({ of, turn }) {
  const answer = useAnswer(`jobs/triggers/${of.id}/next`, {}, 60, turn);
  return html`<${Section} title="Next runs" note=${of.timezone}><${Answer} of=${answer}>${({ times, timezone }) => (times.length === 0
    ? html`<p class="quiet">None: it is turned off.</p>`
    : html`<ol class="times" aria-label="Next runs">${times.map((at) => html`<li key=${at}>${inZone(at, timezone)}</li>`)}</ol>`)}<//><//>`;
}

const firing = (each) => html`<tr key=${each.id}>
  <${Cell}><${Ago} at=${each.fire_at} />${each.count > 1 && html`<div class="quiet">${plural(each.count, "time")}, until ${moment(each.through)}</div>`}<//>
  <${Cell} name="Result" className="long"><span class=${`spark-mark spark-${toneOf(each)}`} aria-hidden="true"></span> ${resultOf(each)}${each.problem && html`<div class="error-line">${each.problem}</div>`}<//>
  <${Cell} name="Job">${each.run_id ? html`<${Link} to=${`runs/${each.run_id}`}>${shortId(each.run_id)}<//> ${each.run_status && html`<${Status} of=${each.run_status} />`}` : NONE}<//>
  <${Cell} name="Cause">${sentence(each.cause)}<//></tr>`;

function Tester({ of }) {
  const [event, setEvent] = useState("{}");
  const [told, setTold] = useState(null);
  const test = async (submitted) => {
    submitted.preventDefault();
    try {
      setTold(await post(`jobs/triggers/${of.id}/test`, of.trigger_type === "event" ? { event: json(event, "Event") } : {}));
    } catch (error) {
      setTold(error);
    }
  };
  return html`<form onSubmit=${test}>
    ${of.trigger_type === "event" && html`<${Field} label="Sample event">${(id) => html`<textarea id=${id} rows="4" spellcheck=${false} value=${event} onInput=${({ target }) => setEvent(target.value)}></textarea>`}<//>`}
    <button class="button">Test</button></form>
    ${told instanceof Error ? html`<${Trouble} problem=${told} />` : told && html`<div role="status">${!told.matches && html`<p>The event doesn't pass the filter: nothing would start.</p>`}
      ${told.problem ? html`<p class="error-line">${told.problem}</p>` : told.matches && html`<p>The job would start with these arguments:</p>`}<${Json} of=${told.payload} /></div>`}`;
}
