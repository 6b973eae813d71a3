// Rate limits (gates): which upstreams are closed, until when and why; an admin may open or close one.
import { get, post } from "../api.js";
import { plural } from "../format.js";
import { html } from "../vendor/preact.js";
import { Action, Ago, Cell, Empty, Field, Heading, MANAGES, NONE, Named, Pages, Status, Table, Until, useMay, useTurn, useVisitor } from "../parts.js";

const COLUMNS = ["Rate limit", "State", "Opens", "Reason", "Changed", { name: "", className: "actions" }];

export default function RateLimits() {
  const mayManage = useMay(MANAGES);
  const { isSuper } = useVisitor();
  const [turn, again] = useTurn();
  const load = async (cursor) => {
    const { gates, next } = await get("gates", { cursor, limit: 50 });
    return { rows: gates, next };
  };
  const move = (gate, name, more = () => ({})) => async (reason, given) => {
    const moved = await post(`gates/${encodeURIComponent(gate.key)}/${name}`, { reason, shared: gate.is_shared, ...more(given) });
    again();
    return moved;
  };
  const row = (gate) => html`<tr key=${`${gate.key} ${gate.is_shared}`}>
    <${Cell}><span class="name"><${Named} of=${gate.key} /></span>${gate.is_shared && html` <span class="quiet">all tenants</span>`}<//>
    <${Cell} name="State"><${Status} of=${gate.state} /><//>
    <${Cell} name="Opens">${gate.state === "half_open" ? html`<span>testing with the next step</span>` : gate.until ? html`<${Until} at=${gate.until} exact />` : NONE}<//>
    <${Cell} name="Reason" className="long">${gate.reason ?? NONE}<//>
    <${Cell} name="Changed"><${Ago} at=${gate.updated_at} /><//>
    <${Cell} className="actions">${mayManage && (!gate.is_shared || isSuper) && html`
      ${gate.state !== "open" && html`<${Action} label="Open" title=${`Open ${gate.key}`} reason="required" explains="Steps run again. Up to 200 waiting lanes of this tenant continue at once, the rest at their scheduled time." action=${move(gate, "open")} done=${(moved) => `Opened; ${plural(moved.woken, "lane")} continued.`} />`}
      <${Action} label="Close" title=${`Close ${gate.key}`} tone="danger" reason="required" explains="Steps that use it wait. If it is already closed for longer, that stays." action=${move(gate, "close", minutes)} done="Closed."><${Minutes} /><//>`}<//>
  </tr>`;
  return html`<${Heading} title="Rate limits">${mayManage && html`<${CloseNew} again=${again} />`}<//>
    <${Table} caption="Rate limits" columns=${COLUMNS}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${COLUMNS.length}
        empty=${html`<${Empty}><p>No rate limits yet. When an upstream asks to slow down, it appears here with a countdown.</p><//>`} />
    <//>`;
}

const minutes = (given) => ({ for_s: Math.round(Number(given.get("minutes")) * 60) });
const Minutes = () => html`<${Field} label="Minutes">${(id) => html`<input id=${id} name="minutes" type="number" min="1" max="43200" defaultValue="30" required />`}<//>`;

const CloseNew = ({ again }) => html`<${Action} label="Close rate limit" reason="required" done="Closed." tone="danger"
  explains="Every step of this tenant that uses it waits: for example during an upstream's maintenance."
  action=${async (reason, given) => {
    await post(`gates/${encodeURIComponent(given.get("key"))}/close`, { reason, ...minutes(given) });
    again();
  }}>
  <${Field} label="Rate limit" hint="Its name, for example nivoda.">${(id) => html`<input id=${id} name="key" required maxlength="200" pattern="[\\w.:@\\-]+" title="Letters from A to Z, digits and . : @ _ -" autocomplete="off" />`}<//>
  <${Minutes} />
<//>`;
