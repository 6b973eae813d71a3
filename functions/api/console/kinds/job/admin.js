// For super admins: the workers, and the queue over all tenants.
import { about, number, plural } from "../../format.js";
import { html } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Ago, Answer, Cell, Empty, Heading, NONE, Section, Status, Table } from "../../parts.js";

const COUNT = "count";

export function Workers() {
  const answer = useAnswer("admin/jobs/workers", {}, 5);
  return html`<${Heading} title="Workers" /><${Answer} of=${answer}>${({ workers }) => {
    const stale = workers.filter((each) => each.stale).length;
    return html`${stale > 0 && html`<p class="warning" role="status">${stale === 1 ? "1 worker hasn't" : `${stale} workers haven't`} been seen for over a minute. Check ${stale === 1 ? "its machine" : "their machines"}: what was running there is retried when its lease expires.</p>`}
      ${workers.length === 0 ? html`<${Empty}><p>No worker was seen in the last week. Start one with <code>baton worker</code>. Jobs that run on Lambda need none.</p><//>`
        : html`<${Table} caption="Workers" columns=${["Worker", "Status", "Queues", { name: "Running", className: COUNT }, "Last seen", "Started", "Version"]}><tbody>${workers.map((each) => html`<tr key=${each.worker_id}>
          <${Cell} className="long"><span class="name">${each.hostname}</span> <code class="quiet">${each.worker_id.split(":").slice(1).join(":")}</code><//>
          <${Cell} name="Status"><${Status} of=${each.stale ? "stalled" : "succeeded"}>${each.stale ? "Stale" : "Responding"}<//><//>
          <${Cell} name="Queues">${each.queues.join(", ")}<//><${Cell} name="Running" className=${COUNT}>${number(each.running_count)}<//>
          <${Cell} name="Last seen"><${Ago} at=${each.last_seen_at} /><//><${Cell} name="Started"><${Ago} at=${each.started_at} /><//><${Cell} name="Version">${each.version || NONE}<//></tr>`)}</tbody><//>`}`;
  }}<//>`;
}

const DEPTH = [{ name: "Queued", className: COUNT }, { name: "Later", className: COUNT }, { name: "Running", className: COUNT }, "Oldest waits"];
const depth = (of) => html`<${Cell} name="Queued" className=${COUNT}>${number(of.queued)}${of.more ? "+" : ""}<//><${Cell} name="Later" className=${COUNT}>${number(of.scheduled)}<//>
  <${Cell} name="Running" className=${COUNT}>${number(of.running)}<//><${Cell} name="Oldest waits">${of.oldest_queued_age_s === null ? NONE : about(of.oldest_queued_age_s)}<//>`;

export function Tenants() {
  const answer = useAnswer("jobs/summary", {}, 5);
  return html`<${Heading} title="Jobs of all tenants" /><${Answer} of=${answer}>${({ everywhere: of }) => (of === null ? html`<${Empty}><p>Only super admins see this.</p><//>` : html`
    <${Section} title="Queues" note=${plural(of.queues.length, "queue")}>${of.queues.length === 0 ? html`<${Empty}><p>No queues yet: a queue is there once a definition uses it.</p><//>`
      : html`<${Table} caption="Queues" columns=${["Queue", "Runs on", { name: "Definitions", className: COUNT }, "Workers", ...DEPTH]}><tbody>${of.queues.map((each) => html`<tr key=${`${each.name} ${each.executor}`}>
        <${Cell}><span class="name">${each.name}</span><//><${Cell} name="Runs on">${each.executor === "lambda" ? "Lambda" : "Worker"}<//><${Cell} name="Definitions" className=${COUNT}>${number(each.definitions)}<//>
        <${Cell} name="Workers">${each.workers > 0 ? number(each.workers) : each.executor === "lambda" ? NONE : each.queued > 0 ? html`<${Status} of="stalled">No worker<//>` : html`<span class="quiet">none</span>`}<//>${depth(each)}</tr>`)}</tbody><//>`}<//>
    <${Section} title="Tenants" note="those with jobs that wait or run, the one that has waited longest first">${of.tenants.length === 0 ? html`<${Empty}><p>No tenant has a job that waits or runs.</p><//>`
      : html`<${Table} caption="Jobs by tenant" columns=${["Tenant", ...DEPTH]}><tbody>${of.tenants.map((each) => html`<tr key=${each.tenant_id}>
        <${Cell}><a class="name" href=${`work/job?tenant=${each.tenant_id}`}>${each.tenant ?? each.tenant_id}</a><//>${depth(each)}</tr>`)}</tbody><//>`}<//>`)}<//>`;
}
