// Audit: who did what to what, before, after, and why.
import { get } from "../api.js";
import { html } from "../vendor/preact.js";
import { NONE, Actor, Ago, Cell, Empty, Heading, Json, Link, Pages, Table } from "../parts.js";

const COLUMNS = ["When", "Who", "What", "To what", "Why", "Change"];

const load = async (cursor) => {
  const { lines, next } = await get("audit", { cursor, limit: 50 });
  return { rows: lines, next };
};

const row = (line) => html`<tr key=${line.id}>
  <${Cell}><${Ago} at=${line.at} /><//>
  <${Cell} name="Who"><${Actor} of=${line.actor} /><//>
  <${Cell} name="What"><strong>${line.action}</strong><//>
  <${Cell} name="To what"><${Target} of=${line.target} /><//>
  <${Cell} name="Why" className="long">${line.reason || NONE}<//>
  <${Cell} name="Change">${line.before || line.after ? html`<details><summary>show</summary>${line.before && html`<p class="quiet">before</p><${Json} of=${line.before} />`}${line.after && html`<p class="quiet">after</p><${Json} of=${line.after} />`}</details>` : NONE}<//>
</tr>`;

function Target({ of }) {
  const [kind, id] = of.split(/:(.*)/);
  return kind === "run" ? html`<${Link} to=${`runs/${id}`}><code>${of}</code><//>` : html`<code>${of}</code>`;
}

export default () => html`<${Heading} title="Audit" />
  <${Table} caption="What people and machines did, newest first" columns=${COLUMNS}>
    <${Pages} load=${load} row=${row} columns=${COLUMNS.length} empty=${html`<${Empty}><p>Nobody did anything yet. Every act of a person or a machine is written here.</p><//>`} />
  <//>`;
