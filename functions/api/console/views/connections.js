// Connections: the tenant's accounts at upstreams. A secret goes in and is never shown again.
import { ask, get, post } from "../api.js";
import { words } from "../format.js";
import { html } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { Action, Ago, Answer, Cell, Empty, Field, Heading, MANAGES, NONE, Pages, Status, Table, useMay, useTurn } from "../parts.js";

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
      <${Cell} name="Provider">${each.provider}<//>
      <${Cell} name="Status" className="long">${!each.ready ? html`<${Status} of="paused">No secret<//>` : each.works === null ? html`<span class="quiet">Not checked</span>` : html`<${Status} of=${each.works ? "succeeded" : "failed"}>${each.works ? "Connected" : (each.check_says ?? "Not connected")}<//>`}<//>
      <${Cell} name="Settings" className="long">${Object.entries(each.settings).map(([name, value]) => `${words(name)}: ${value}`).join(", ") || NONE}<//>
      <${Cell} name="Checked"><${Ago} at=${each.checked_at} /><//>
      <${Cell} className="actions">${mayManage && html`
        <${Action} label="Check" title=${`Check ${each.name}`} reason=${null} explains="Signs in to the upstream once with this account." busy="Checking…"
          action=${async () => { const said = await post(`connections/${each.id}/check`); again(); return said; }} done=${(said) => (said.works ? "Connected." : said.says)} />
        ${provider && html`<${Action} label="Change" title=${`Change ${each.name}`} reason=${null} explains="Runs that use it pick up the change at their next step. Leave a secret empty to keep it."
          action=${async (_, given) => {
            const secret = taken(given, "secret.");
            await ask("PUT", `connections/${each.id}`, { body: { name: given.get("name"), settings: taken(given, "settings."), ...(Object.keys(secret).length ? { secret } : {}) } });
            again();
          }} done="Changed."><${Fields} provider=${provider} of=${each} /><//>`}
        <${Action} label="Delete" title=${`Delete ${each.name}`} tone="danger" reason=${null} explains="Deletes the connection and its secret. Runs that use it fail at their next step."
          action=${async () => { await ask("DELETE", `connections/${each.id}`); again(); }} done="Deleted." />`}<//>
    </tr>`;
  };
  return html`<${Heading} title="Connections">${mayManage && providers.data?.providers.map((provider) => html`<${Action} key=${provider.name} label=${providers.data.providers.length > 1 ? `Add ${provider.name} connection` : "Add connection"} title=${`Add ${provider.name} connection`} tone="main" reason=${null}
      explains="The secret is stored in Secrets Manager and is never shown again."
      action=${async (_, given, key) => {
        await post("connections", { provider: provider.name, name: given.get("name"), settings: taken(given, "settings."), secret: taken(given, "secret.") }, { "idempotency-key": key });
        again();
      }} done="Added. Check it now."><${Fields} provider=${provider} /><//>`)}<//>
    <${Answer} of=${providers}>${() => html`<${Table} caption="Connections" columns=${COLUMNS}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${COLUMNS.length} every_s=${0}
        empty=${html`<${Empty}><p>No connections yet. ${mayManage ? html`Add one here or with <code>baton connection add</code>, then choose it when you start a run.` : "An admin can add one."}</p><//>`} />
    <//>`}<//>`;
}

// What a provider asks for, from its own schemas.
const Fields = ({ provider, of }) => html`
  <${Field} label="Name">${(id) => html`<input id=${id} name="name" required maxlength="100" pattern="[A-Za-z0-9][A-Za-z0-9 ._\\-]*" autocomplete="off" defaultValue=${of?.name ?? "main"} />`}<//>
  ${["settings", "secret"].flatMap((part) => Object.entries(provider[part].properties ?? {}).map(([name, schema]) => {
    const isNeeded = (provider[part].required ?? []).includes(name) && !(part === "secret" && of);
    return html`<${Field} label=${`${words(schema.title ?? name)}${isNeeded ? "" : " (optional)"}`} hint=${schema.description}>${(id) => html`<input id=${id} name=${`${part}.${name}`} type=${part === "secret" ? "password" : "text"}
      autocomplete=${part === "secret" ? "new-password" : "off"} required=${isNeeded} maxlength="4096" defaultValue=${part === "settings" ? (of?.settings[name] ?? "") : ""} />`}<//>`;
  }))}`;

const taken = (given, prefix) => Object.fromEntries([...given.entries()].filter(([name, value]) => name.startsWith(prefix) && value !== "").map(([name, value]) => [name.slice(prefix.length), value]));
