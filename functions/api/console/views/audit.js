// The audit log: who did what to what, before, after, and why.
import { get } from "../api.js";
import { html } from "../vendor/preact.js";
import { NONE, Named, Actor, Ago, Cell, Empty, Heading, Json, Link, Pages, Table } from "../parts.js";

const COLUMNS = ["When", "Who", "Action", "Target", "Reason", "Change"];

const load = async (cursor) => {
  const { lines, next } = await get("audit", { cursor, limit: 50 });
  return { rows: lines, next };
};

const row = (line) => html`<tr key=${line.id}>
  <${Cell}><${Ago} at=${line.at} /><//>
  <${Cell} name="Who"><${Actor} of=${line.actor} /><//>
  <${Cell} name="Action"><strong>${line.action}</strong><//>
  <${Cell} name="Target"><${Target} of=${line.target} /><//>
  <${Cell} name="Reason" className="long">${line.reason || NONE}<//>
  <${Cell} name="Change">${line.before || line.after ? html`<details><summary>Show</summary>${line.before && html`<p class="quiet">before</p><${Json} of=${line.before} />`}${line.after && html`<p class="quiet">after</p><${Json} of=${line.after} />`}</details>` : NONE}<//>
</tr>`;

function Target({ of }) {
  const [kind, id] = of.split(/:(.*)/);
  return kind === "run" ? html`<${Link} to=${`runs/${id}`}><code>${of}</code><//>` : kind === "connection" ? html`<${Named} of=${of} />` : html`<code>${of}</code>`;
}

export default () => html`<${Heading} title="Audit log" />
  <${Table} caption="Actions, newest first" columns=${COLUMNS}>
    <${Pages} load=${load} row=${row} columns=${COLUMNS.length} empty=${html`<${Empty}><p>Nothing yet. Every action of a person or a machine is recorded here.</p><//>`} />
  <//>`;
