// Connections: the tenant's accounts at upstreams. A secret goes in and is never shown again.
import { ask, get, post } from "../api.js";
import { sentence, words } from "../format.js";
import { html, useState } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { Action, Ago, Answer, Cell, Empty, Field, Heading, MANAGES, NONE, Pages, Status, Table, useMay, useTurn } from "../parts.js";
import { ProviderFields, changeConnection, taken } from "./fixes.js";

// What the fields are depends on where the account is.
function NewFields({ providers }) {
  const [chosen, setChosen] = useState(providers[0].name);
  return html`<${Field} label="Provider">${(id) => html`<select id=${id} name="provider" value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
      ${providers.map(({ name }) => html`<option value=${name} selected=${name === chosen}>${providerName(name)}</option>`)}</select>`}<//>
    <${ProviderFields} key=${chosen} provider=${providers.find((each) => each.name === chosen)} />`;
}

const NAMES = { mce: "Marketing Cloud", ftp: "FTP", infojobs: "InfoJobs", google_sheets: "Google Sheets", openalex: "OpenAlex" };
const providerName = (name) => NAMES[name] ?? sentence(name);

const COLUMNS = ["Name", "Provider", "Status", "Settings", "Checked", { name: "", className: "actions" }];

export default function Connections() {
  const mayManage = useMay(MANAGES);
  const providers = useAnswer("providers", {}, 0);
  const [turn, again] = useTurn();
  const load = async (cursor) => {
    const { connections, next } = await get("connections", { cursor, limit: 50 });
    return { rows: connections, next };
  };
  const row = (each) => {
    const provider = providers.data?.providers.find((other) => other.name === each.provider);
    return html`<tr key=${each.id}>
      <${Cell}><span class="name">${each.name}</span><//>
      <${Cell} name="Provider">${providerName(each.provider)}<//>
      <${Cell} name="Status" className="long">${!each.ready ? html`<${Status} of="paused">No secret<//>` : each.works === null ? html`<span class="quiet">Not checked</span>` : html`<${Status} of=${each.works ? "succeeded" : "failed"}>${each.works ? "Connected" : (each.check_says ?? "Not connected")}<//>`}<//>
      <${Cell} name="Settings" className="long">${Object.entries(each.settings).map(([name, value]) => `${words(name)}: ${value}`).join(", ") || NONE}<//>
      <${Cell} name="Checked"><${Ago} at=${each.checked_at} /><//>
      <${Cell} className="actions">${mayManage && html`
        <${Action} label="Check" title=${`Check ${each.name}`} reason=${null} explains="Signs in to the upstream once with this account." busy="Checking…"
          action=${async () => { const said = await post(`connections/${each.id}/check`); again(); return said; }} done=${(said) => (said.works ? "Connected." : said.says)} />
        ${provider && html`<${Action} label="Change" title=${`Change ${each.name}`} reason=${null} explains="Runs that use it pick up the change at their next step. Leave a secret empty to keep it."
          action=${async (_, given) => { await changeConnection(each.id, given); again(); }} done="Changed."><${ProviderFields} provider=${provider} of=${each} /><//>`}
        <${Action} label="Delete" title=${`Delete ${each.name}`} tone="danger" reason=${null} explains="Deletes the connection and its secret. Runs that use it fail at their next step."
          action=${async () => { await ask("DELETE", `connections/${each.id}`); again(); }} done="Deleted." />`}<//>
    </tr>`;
  };
  return html`<${Heading} title="Connections">${mayManage && providers.data && html`<${Action} label="Add connection" tone="main" reason=${null}
      explains="The secret is stored in Secrets Manager and is never shown again."
      action=${async (_, given, key) => {
        await post("connections", { provider: given.get("provider"), name: given.get("name"), settings: taken(given, "settings."), secret: taken(given, "secret.") }, { "idempotency-key": key });
        again();
      }} done="Added. Check it now."><${NewFields} providers=${providers.data.providers} /><//>`}<//>
    <${Answer} of=${providers}>${() => html`<${Table} caption="Connections" columns=${COLUMNS}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${COLUMNS.length} every_s=${0}
        empty=${html`<${Empty}><p>No connections yet. ${mayManage ? html`Add one here or with <code>baton connection add</code>, then choose it when you start a run.` : "An admin can add one."}</p><//>`} />
    <//>`}<//>`;
}
