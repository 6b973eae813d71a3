// Adding a job: choose a definition, and fill in the form that its schema asks for.
import { duration, number, sentence, words } from "../../format.js";
import { html, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Answer, Empty, Field, Heading, Link, MANAGES, NewRun, useMay, useVisitor } from "../../parts.js";

export default function New({ kind }) {
  const answer = useAnswer("admin/jobs/definitions", {}, 0);
  const { isSuper } = useVisitor();
  return answer.data === null || answer.data.definitions.every((each) => !each.is_active)
    ? html`<${Heading} title="New job" /><${Answer} of=${answer}>${() => html`<${Empty}><p>There are no active job definitions yet. ${isSuper
        ? html`<${Link} to="work/job/definitions">Add a definition<//> first.` : "A super admin can add one."}</p><//>`}<//>`
    : html`<${Form} kind=${kind} definitions=${answer.data.definitions.filter((each) => each.is_active)} />`;
}

function Form({ kind, definitions }) {
  const asked = new URLSearchParams(location.search).get("definition");
  const [key, setKey] = useState(definitions.find((each) => each.key === asked)?.key ?? definitions[0].key);
  const first = useMay(MANAGES) ? 0 : 50;
  const definition = definitions.find((each) => each.key === key);
  const request = (given) => {
    const body = { definition_key: key, payload: payloadOf(definition.arg_schema, given), priority: Number(given.get("priority")) };
    if (given.get("scheduled_for")) body.scheduled_for = new Date(given.get("scheduled_for")).toISOString();
    if (given.get("dedupe_key")) body.dedupe_key = given.get("dedupe_key");
    return { path: "jobs", body };
  };
  return html`<${NewRun} kind=${kind} request=${request} opens="attempts" verb=${["Add job", "Adding…", "Added."]}>
    <fieldset><legend>Job</legend>
      <${Field} label="Definition" hint=${html`${definition.description || "No description."} Queue ${definition.queue}, up to ${number(definition.max_attempts)} attempts of ${duration(definition.timeout_seconds)}.`}>
        ${(id) => html`<select id=${id} value=${key} onChange=${(event) => setKey(event.target.value)}>${definitions.map((each) => html`<option value=${each.key} selected=${each.key === key}>${each.key}</option>`)}</select>`}<//>
    </fieldset>
    <fieldset key=${key}><legend>Arguments</legend>${Object.keys(definition.arg_schema.properties ?? {}).length === 0
      ? html`<p class="quiet">This job takes no arguments.</p>` : html`<${Arguments} schema=${definition.arg_schema} />`}</fieldset>
    <fieldset><legend>When</legend>
      <div class="pair"><${Field} label="Priority" hint=${`${first} to 1000; lower numbers run first.`}>${(id) => html`<input id=${id} name="priority" type="number" required min=${first} max="1000" defaultValue="100" />`}<//>
        <${Field} label="Not before (optional)" hint="In your time zone.">${(id) => html`<input id=${id} name="scheduled_for" type="datetime-local" />`}<//></div>
      <${Field} label="Dedupe key (optional)" hint="If a job with this key is queued or running, no other one is added.">${(id) => html`<input id=${id} name="dedupe_key" maxlength="200" autocomplete="off" />`}<//>
    </fieldset><//>`;
}

// --- a form from a JSON Schema

const typeOf = (schema) => (Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type);
// The database keeps no order of them: what is needed comes first.
const needs = (schema, name) => (schema.required ?? []).includes(name);
const INPUTS = { date: "date", email: "email", uri: "url", time: "time" };

const Arguments = ({ schema }) => Object.entries(schema.properties).toSorted(([a], [b]) => needs(schema, b) - needs(schema, a) || a.localeCompare(b)).map(([name, said]) => {
  const isNeeded = needs(schema, name);
  return html`<${Field} key=${name} label=${`${said.title ?? sentence(name)}${isNeeded ? "" : " (optional)"}`} hint=${hintOf(said)}>${(id) => html`<${Input} ...${{ id, name: `arg.${name}`, said, isNeeded }} />`}<//>`;
});

function hintOf(said) {
  const resolves = said["x-baton-resolves"];
  const kind = resolves === "run" ? "The ID of a run of this tenant." : { uuid: "A UUID.", "date-time": "For example 2026-12-24T18:00:00Z." }[said.format] ?? (["array", "object"].includes(typeOf(said)) ? `JSON: ${typeOf(said) === "array" ? "a list" : "an object"}.` : "");
  return [said.description, kind].filter(Boolean).join(" ") || undefined;
}

function Input({ id, name, said, isNeeded }) {
  const common = { id, name, required: isNeeded };
  const preset = said.default ?? "";
  const [, provider] = /^connection:(.+)$/.exec(said["x-baton-resolves"] ?? "") ?? [];
  if (provider) return html`<${Connections} common=${common} provider=${provider} />`;
  const choices = said.enum ?? (typeOf(said) === "boolean" ? [true, false] : null);
  if (choices) {
    return html`<select ...${common}>${!isNeeded && html`<option value="">–</option>`}${choices.map((each) => html`<option value=${JSON.stringify(each)} selected=${each === said.default}>${typeof each === "boolean" ? (each ? "yes" : "no") : String(each)}</option>`)}</select>`;
  }
  if (["integer", "number"].includes(typeOf(said))) {
    return html`<input ...${common} type="number" step=${typeOf(said) === "integer" ? 1 : "any"} min=${said.minimum} max=${said.maximum} defaultValue=${preset} />`;
  }
  if (typeOf(said) === "string") return html`<input ...${common} type=${INPUTS[said.format] ?? "text"} minlength=${said.minLength} maxlength=${said.maxLength} autocomplete="off" defaultValue=${preset} />`;
  return html`<textarea ...${common} rows="3" spellcheck=${false} defaultValue=${preset === "" ? "" : JSON.stringify(preset)}></textarea>`;
}

function Connections({ common, provider }) {
  const { data } = useAnswer("connections", { provider, limit: 100 }, 0);
  return html`<select ...${common}><option value="">–</option>${data?.connections.filter((each) => each.ready).map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select>`;
}

export function payloadOf(schema, given) {
  const payload = {};
  for (const [name, said] of Object.entries(schema.properties ?? {})) {
    const text = given.get(`arg.${name}`) ?? "";
    if (text === "") continue;
    const isText = typeOf(said) === "string" && !said.enum;
    try {
      payload[name] = isText ? text : JSON.parse(text);
    } catch (error) {
      throw new Error(`${said.title ?? sentence(words(name))}: this isn't valid JSON. ${error.message}`);
    }
  }
  return payload;
}
