// Tokens: how scripts and servers call the API.
import { ask, get, now, post } from "../api.js";
import { html, useState } from "../vendor/preact.js";
import { Action, Ago, Cell, Dialog, Empty, Field, Heading, NONE, Pages, RoleField, Status, Table, Until, say, useTurn } from "../parts.js";

// A browser may refuse, and on an address without TLS it has no clipboard: then it is copied by hand.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("Your browser doesn't let this page copy. Select the token and copy it.", "bad");
  }
}

export default function Tokens() {
  const [turn, again] = useTurn();
  const [created, setCreated] = useState(null);
  const load = async (cursor) => {
    const { tokens, next } = await get("tokens", { cursor, limit: 50 });
    return { rows: tokens, next };
  };
  const create = async (_, given, key) => {
    const days = given.get("days");
    const answer = await post("tokens", { name: given.get("name"), role: given.get("role"), ...(days ? { expires_in_days: Number(days) } : {}) }, { "idempotency-key": key });
    setCreated({ name: given.get("name"), token: answer.token });
    again();
  };
  const row = (token) => {
    const isOver = token.revoked_at !== null || (token.expires_at !== null && Date.parse(token.expires_at) < now());
    return html`<tr key=${token.id} class=${isOver ? "over" : ""}>
      <${Cell}><span class="name">${token.name}</span><//><${Cell} name="Role">${token.role}<//>
      <${Cell} name="State">${token.revoked_at ? html`<${Status} of="canceled">Revoked<//>` : isOver ? html`<${Status} of="canceled">Expired<//>` : html`<${Status} of="open">Active<//>`}<//>
      <${Cell} name="Last used"><${Ago} at=${token.last_used_at} /><//><${Cell} name="Expires">${token.expires_at && !isOver ? html`<${Until} at=${token.expires_at} />` : NONE}<//>
      <${Cell} className="actions">${!isOver && html`<${Action} label="Revoke" title=${`Revoke ${token.name}`} tone="danger" reason=${null} explains="Requests with this token are refused from now on."
        action=${async () => { await ask("DELETE", `tokens/${token.id}`); again(); }} done="Revoked." />`}<//></tr>`;
  };
  return html`<${Heading} title="Tokens"><${Action} label="Create token" reason=${null} tone="main" explains="For scripts and servers. The token is shown once; send it to paths under /machine." action=${create} done="Created.">
      <${Field} label="Name">${(id) => html`<input id=${id} name="name" required maxlength="200" autocomplete="off" />`}<//><${RoleField} value="member" />
      <${Field} label="Expires after days (optional)">${(id) => html`<input id=${id} name="days" type="number" min="1" max="3650" defaultValue="90" />`}<//><//><//>
    <${Table} caption="Tokens" columns=${["Name", "Role", "State", "Last used", "Expires", { name: "", className: "actions" }]}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${6} every_s=${0} empty=${html`<${Empty}><p>No tokens. Scripts and servers need one to call the API.</p><//>`} />
    <//>
    ${created && html`<${Dialog} title=${`Token ${created.name}`} onClose=${() => setCreated(null)}>
      ${created.token ? html`<p>Copy it now: it is shown only once.</p><p><code class="secret" tabindex="0">${created.token}</code></p>` : html`<p>This token was already created and can't be shown again. Revoke it and create another.</p>`}
      <div class="buttons">${created.token && html`<button type="button" class="button" onClick=${() => copy(created.token)}>Copy</button>`}<button type="button" class="button main" onClick=${() => setCreated(null)}>Done</button></div><//>`}`;
}
