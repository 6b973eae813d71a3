// What can be run: everybody sees it, super admins change it.
import { ask, post } from "../../api.js";
import { duration, number, plural } from "../../format.js";
import { html } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Action, Answer, Cell, Empty, Field, Heading, Link, STARTS, Status, Table, useMay, useTurn, useVisitor } from "../../parts.js";

const COLUMNS = ["Definition", "Arguments", "Queue", "Limits", "Status", { name: "", className: "actions" }];
const NO_ARGUMENTS = { type: "object", properties: {}, additionalProperties: false };

export default function Definitions() {
  const { isSuper } = useVisitor();
  const mayStart = useMay(STARTS);
  const [turn, again] = useTurn();
  const answer = useAnswer("admin/jobs/definitions", {}, 30, turn);
  const change = (each, body) => async () => {
    await ask("PATCH", `admin/jobs/definitions/${each.id}`, { body });
    again();
  };
  const row = (each) => html`<tr key=${each.id} class=${each.is_active ? "" : "over"}>
    <${Cell} className="long"><span class="name">${each.key}</span> <span class="quiet" title="Counts its changes; a job keeps the version it was added with">v${each.version}</span>${each.description && html`<div class="quiet">${each.description}</div>`}${each.command !== each.key && html`<div class="quiet">runs <code>${each.command}</code></div>`}<//>
    <${Cell} name="Arguments" className="long"><span>${argumentsOf(each.arg_schema)}</span><//>
    <${Cell} name="Queue">${each.queue} <div class="quiet nowrap">on ${each.executor === "lambda" ? "Lambda" : "workers"}</div><//>
    <${Cell} name="Limits">${duration(each.timeout_seconds)}, ${plural(each.max_attempts, "attempt")}${each.concurrency_limit !== null && html`<div class="quiet">${number(each.concurrency_limit)} at once</div>`}<//>
    <${Cell} name="Status"><${Status} of=${each.is_active ? "succeeded" : "paused"}>${each.is_active ? "Active" : "Inactive"}<//><//>
    <${Cell} className="actions">
      ${mayStart && each.is_active && html`<${Link} to=${`work/job/new?definition=${encodeURIComponent(each.key)}`} class="button">Add job<//>`}
      ${isSuper && html`<${Action} label="Edit" title=${`Edit ${each.key}`} reason=${null} explains="Jobs that are queued or running keep the version they were added with."
          action=${async (_, given) => change(each, settings(given))()} done="Saved."><${Fields} of=${each} /><//>
        ${each.is_active
          ? html`<${Action} label="Deactivate" title=${`Deactivate ${each.key}`} tone="danger" reason=${null} explains="No job of it can be added, and those that wait are held until it is active again." action=${change(each, { is_active: false })} done="Deactivated." />`
          : html`<${Action} label="Activate" title=${`Activate ${each.key}`} reason=${null} explains="Its jobs can be added again, and those that wait can start." action=${change(each, { is_active: true })} done="Activated." />`}`}<//></tr>`;
  return html`<${Heading} title="Job definitions">${isSuper && html`<${Action} label="Add definition" tone="main" reason=${null} explains="A definition runs one command of the reviewed list, with the arguments that its schema allows."
      action=${async (_, given) => {
        const command = given.get("command").trim();
        await post("admin/jobs/definitions", { key: given.get("key"), ...(command ? { command } : {}), ...settings(given) });
        again();
      }} done="Added."><${Fields} /><//>`}<//>
    <${Answer} of=${answer}>${({ definitions }) => (definitions.length === 0
      ? html`<${Empty}><p>No definitions yet. ${isSuper ? html`Add one here or with <code>baton definition add</code>.` : "A super admin can add one."}</p><//>`
      : html`<${Table} caption="Job definitions" columns=${COLUMNS} className="definitions"><tbody>${definitions.map(row)}</tbody><//>`)}<//>`;
}

function argumentsOf(schema) {
  const names = Object.keys(schema.properties ?? {});
  if (names.length === 0) return html`<span class="quiet">none</span>`;
  return names.map((name, n) => html`${n > 0 ? ", " : ""}<code>${name}</code>${(schema.required ?? []).includes(name) ? "" : html`<span class="quiet" title="optional">?</span>`}`);
}

function Fields({ of }) {
  const whole = (name, label, value, most, hint) => html`<${Field} label=${label} hint=${hint}>${(id) => html`<input id=${id} name=${name} type="number" min="1" max=${most} required=${value !== ""} defaultValue=${value} />`}<//>`;
  return html`
    ${!of && html`<${Field} label="Key" hint="Small letters, digits and hyphens. It cannot be changed later.">${(id) => html`<input id=${id} name="key" required maxlength="100" pattern="[a-z][a-z0-9\\-]*" title="Small letters, digits and hyphens; a letter first" autocomplete="off" />`}<//>
      <${Field} label="Command (optional)" hint="A key of the reviewed list of commands. Default: the definition's own key.">${(id) => html`<input id=${id} name="command" maxlength="100" autocomplete="off" />`}<//>`}
    <${Field} label="Description (optional)">${(id) => html`<input id=${id} name="description" maxlength="1000" autocomplete="off" defaultValue=${of?.description ?? ""} />`}<//>
    <${Field} label="Arguments" hint="JSON Schema of an object. The form that adds a job is made from it.">${(id) => html`<textarea id=${id} name="arg_schema" rows="8" required spellcheck=${false} defaultValue=${JSON.stringify(of?.arg_schema ?? NO_ARGUMENTS, null, 2)}></textarea>`}<//>
    <div class="pair">${whole("timeout_seconds", "Time limit in seconds", of?.timeout_seconds ?? 3600, 604_800, "Of one attempt.")}${whole("max_attempts", "Attempts", of?.max_attempts ?? 3, 100)}</div>
    <div class="pair"><${Field} label="Queue">${(id) => html`<input id=${id} name="queue" required pattern="[a-z][a-z0-9\\-]*" title="Small letters, digits and hyphens; a letter first" maxlength="63" autocomplete="off" defaultValue=${of?.queue ?? "default"} />`}<//>
      <${Field} label="Runs on">${(id) => html`<select id=${id} name="executor">${!of && html`<option value="">Lambda up to 14 minutes, else a worker</option>`}
        ${[["worker", "Worker"], ["lambda", "Lambda"]].map(([value, text]) => html`<option value=${value} selected=${of?.executor === value}>${text}</option>`)}</select>`}<//></div>
    ${whole("concurrency_limit", "At once (optional)", of?.concurrency_limit ?? "", 10_000, "How many may run at the same time, over all tenants.")}`;
}

function settings(given) {
  let schema = null;
  try {
    schema = JSON.parse(given.get("arg_schema"));
  } catch (error) {
    throw new Error(`Arguments: this isn't valid JSON. ${error.message}`);
  }
  const limit = given.get("concurrency_limit");
  return {
    description: given.get("description"), arg_schema: schema, timeout_seconds: Number(given.get("timeout_seconds")), max_attempts: Number(given.get("max_attempts")),
    queue: given.get("queue"), concurrency_limit: limit === "" ? null : Number(limit), ...(given.get("executor") ? { executor: given.get("executor") } : {}),
  };
}
