// Connections: the tenant's accounts at upstreams. A secret goes in and never comes back.
import { ask, get, post } from "../api.js";
import { words } from "../format.js";
import { html, useState } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { MANAGES, NONE, Act, Ago, Answer, Cell, Empty, Field, Heading, Pages, Status, Table, useMay } from "../parts.js";

const COLUMNS = ["Name", "Provider", "Works", "Settings", "Checked", { name: "", className: "acts" }];

export default function Connections() {
  const mayManage = useMay(MANAGES);
  const providers = useAnswer("providers", {}, 0);
  const [turn, setTurn] = useState(0);
  const again = () => setTurn((n) => n + 1);
  const load = async (cursor) => {
    const { connections, next } = await get("connections", { cursor, limit: 50 });
    return { rows: connections, next };
  };
  const row = (each) => {
    const provider = providers.data?.providers.find((other) => other.name === each.provider);
    return html`<tr key=${each.id}>
      <${Cell}><span class="name">${each.name}</span><//>
      <${Cell} name="Provider">${each.provider}<//>
      <${Cell} name="Works" className="long">${!each.ready ? html`<${Status} of="paused">without a secret<//>` : each.works === null ? html`<span class="quiet">not checked</span>` : html`<${Status} of=${each.works ? "succeeded" : "failed"}>${each.check_says ?? (each.works ? "yes" : "no")}<//>`}<//>
      <${Cell} name="Settings" className="long">${Object.entries(each.settings).map(([name, value]) => `${words(name)}: ${value}`).join(", ") || NONE}<//>
      <${Cell} name="Checked"><${Ago} at=${each.checked_at} /><//>
      <${Cell} className="acts">${mayManage && html`
        <${Act} label="Check" title=${`Check ${each.name}`} reason=${null} explains="The upstream is asked once whether it lets this account in." busy="Asking…"
          act=${async () => { const said = await post(`connections/${each.id}/check`); again(); return said; }} done=${(said) => said.says} />
        ${provider && html`<${Act} label="Change" title=${`Change ${each.name}`} reason=${null} explains="Runs that use it go on with what it is from their next step. A secret that is left empty stays as it is."
          act=${async (_, given) => {
            const secret = taken(given, "secret.");
            await ask("PUT", `connections/${each.id}`, { body: { name: given.get("name"), settings: taken(given, "settings."), ...(Object.keys(secret).length ? { secret } : {}) } });
            again();
          }} done="Changed."><${Fields} provider=${provider} of=${each} /><//>`}
        <${Act} label="Delete" title=${`Delete ${each.name}`} tone="danger" reason=${null} explains="The account and its secret are deleted. Runs that use it fail at their next step."
          act=${async () => { await ask("DELETE", `connections/${each.id}`); again(); }} done="Deleted." />`}<//>
    </tr>`;
  };
  return html`<${Heading} title="Connections">${mayManage && providers.data?.providers.map((provider) => html`<${Act} key=${provider.name} label=${`Add ${provider.name}`} title=${`Add an account at ${provider.name}`} tone="main" reason=${null}
      explains="The secret is kept in Secrets Manager; nobody can read it here again."
      act=${async (_, given, key) => {
        await post("connections", { provider: provider.name, name: given.get("name"), settings: taken(given, "settings."), secret: taken(given, "secret.") }, { "idempotency-key": key });
        again();
      }} done="Added. Check it now."><${Fields} provider=${provider} /><//>`)}<//>
    <${Answer} of=${providers}>${() => html`<${Table} caption="Connections" columns=${COLUMNS}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${COLUMNS.length} every_s=${0}
        empty=${html`<${Empty}><p>No accounts yet. ${mayManage ? "Add one, and name it when you start a run." : "An admin adds them."} Or with the command: <code>baton connection add</code>.</p><//>`} />
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
