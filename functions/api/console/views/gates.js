// Gates: which upstreams are closed, until when and why, and the hand that opens or closes one.
import { get, post } from "../api.js";
import { plural } from "../format.js";
import { html } from "../vendor/preact.js";
import { MANAGES, NONE, Act, Ago, Cell, Empty, Field, Heading, Pages, Status, Table, Until, useMay, useVisitor } from "../parts.js";
import { useState } from "../vendor/preact.js";

const COLUMNS = ["Gate", "State", "Opens", "Reason", "Changed", { name: "", className: "acts" }];

export default function Gates() {
  const mayManage = useMay(MANAGES);
  const { isSuper } = useVisitor();
  const [turn, setTurn] = useState(0);
  const again = () => setTurn((n) => n + 1);
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
    <${Cell}><code class="name">${gate.key}</code>${gate.is_shared && html` <span class="quiet">of all tenants</span>`}<//>
    <${Cell} name="State"><${Status} of=${gate.state} /><//>
    <${Cell} name="Opens">${gate.state === "half_open" ? html`<span>the next step is the probe</span>` : gate.until ? html`<${Until} at=${gate.until} exact />` : NONE}<//>
    <${Cell} name="Reason" className="long">${gate.reason ?? NONE}<//>
    <${Cell} name="Changed"><${Ago} at=${gate.updated_at} /><//>
    <${Cell} className="acts">${mayManage && (!gate.is_shared || isSuper) && html`
      ${gate.state !== "open" && html`<${Act} label="Open" title=${`Open ${gate.key}`} reason="required" explains="Steps go through again. Of the lanes of this tenant that wait for it, up to 200 are due at once, the others when their time comes." act=${move(gate, "open")} done=${(moved) => `Open; ${plural(moved.woken, "lane")} woken.`} />`}
      <${Act} label="Close" title=${`Close ${gate.key}`} tone="danger" reason="required" explains="No step goes through for a while. It is never closed for less than is known already." act=${move(gate, "close", minutes)} done="Closed."><${Minutes} /><//>`}<//>
  </tr>`;
  return html`<${Heading} title="Gates">${mayManage && html`<${CloseNew} again=${again} />`}<//>
    <${Table} caption="Gates" columns=${COLUMNS}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${COLUMNS.length}
        empty=${html`<${Empty}><p>No gate was ever closed. When an upstream asks everyone to wait, its gate appears here, with a countdown.</p><//>`} />
    <//>`;
}

const minutes = (given) => ({ for_s: Math.round(Number(given.get("minutes")) * 60) });
const Minutes = () => html`<${Field} label="For how many minutes">${(id) => html`<input id=${id} name="minutes" type="number" min="1" max="43200" defaultValue="30" required />`}<//>`;

const CloseNew = ({ again }) => html`<${Act} label="Close a gate" reason="required" done="Closed." tone="danger"
  explains="Stops every step of this tenant that goes through the gate, for example before an upstream is moved."
  act=${async (reason, given) => {
    await post(`gates/${encodeURIComponent(given.get("key"))}/close`, { reason, ...minutes(given) });
    again();
  }}>
  <${Field} label="Gate" hint="As steps name it, for example nivoda.">${(id) => html`<input id=${id} name="key" required maxlength="200" pattern="[\\w.:@\\-]+" autocomplete="off" />`}<//>
  <${Minutes} />
<//>`;
