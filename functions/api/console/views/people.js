// People and machines of the tenant: who may enter, and as what.
import { ask, get, now, post } from "../api.js";
import { html, useState } from "../vendor/preact.js";
import { NONE, Act, Ago, Cell, Dialog, Empty, Field, Heading, Pages, Section, Status, Table, Until, useVisitor } from "../parts.js";

const ROLES = { viewer: "viewer: sees the tenant's runs", member: "member: starts runs, sees its own", admin: "admin: everything of the tenant", worker: "worker: a machine that takes jobs" };

const RoleField = ({ value = "viewer" }) => html`<${Field} label="Role">${(id) => html`<select id=${id} name="role">${Object.entries(ROLES).map(([role, text]) => html`<option value=${role} selected=${role === value}>${text}</option>`)}</select>`}<//>`;

export default () => html`<${Heading} title="People" /><${Members} /><${Tokens} />`;

function useTurn() {
  const [turn, setTurn] = useState(0);
  return [turn, () => setTurn((n) => n + 1)];
}

function Members() {
  const [turn, again] = useTurn();
  const { actor } = useVisitor();
  const load = async (cursor) => {
    const { members, next } = await get("members", { cursor, limit: 50 });
    return { rows: members, next };
  };
  const put = async (subject, given) => {
    const name = given.get("name").trim();
    await ask("PUT", `members/${encodeURIComponent(subject)}`, { body: { role: given.get("role"), ...(name ? { name } : {}) } });
    again();
  };
  const row = (member) => html`<tr key=${member.subject}>
    <${Cell}><span class="name">${member.name ?? member.subject}</span>${`user:${member.subject}` === actor && html` <span class="quiet">you</span>`}<//>
    <${Cell} name="Role">${member.role}<//><${Cell} name="Subject"><code>${member.subject}</code><//><${Cell} name="Since"><${Ago} at=${member.created_at} /><//>
    <${Cell} className="acts">
      <${Act} label="Change" title=${`Change ${member.name ?? member.subject}`} reason=${null} act=${(_, given) => put(member.subject, given)} done="Changed."><${NameField} value=${member.name ?? ""} /><${RoleField} value=${member.role} /><//>
      <${Act} label="Remove" title=${`Remove ${member.name ?? member.subject}`} tone="danger" reason=${null} explains="He may not enter this tenant any more. The user himself, and what he did, stay."
        act=${async () => { await ask("DELETE", `members/${encodeURIComponent(member.subject)}`); again(); }} done="Removed." />
    <//></tr>`;
  return html`<${Section} title="Members" side=${html`<${Act} label="Let somebody in" reason=${null} tone="main" explains="Somebody who can log in already: say the subject of his token. New users are made with the command: baton user add."
      act=${(_, given) => put(given.get("subject").trim(), given)} done="Let in.">
      <${Field} label="Subject" hint="The claim sub of his token: in Cognito, the user's id.">${(id) => html`<input id=${id} name="subject" required maxlength="200" autocomplete="off" />`}<//><${NameField} /><${RoleField} /><//>`}>
    <${Table} caption="Members" columns=${["Name", "Role", "Subject", "Since", { name: "", className: "acts" }]}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${5} every_s=${0} empty=${html`<${Empty}><p>Nobody.</p><//>`} />
    <//>
  <//>`;
}

const NameField = ({ value = "" }) => html`<${Field} label="Name (optional)">${(id) => html`<input id=${id} name="name" maxlength="200" autocomplete="off" defaultValue=${value} />`}<//>`;

function Tokens() {
  const [turn, again] = useTurn();
  const [made, setMade] = useState(null);
  const load = async (cursor) => {
    const { tokens, next } = await get("tokens", { cursor, limit: 50 });
    return { rows: tokens, next };
  };
  const make = async (_, given, key) => {
    const days = given.get("days");
    const answer = await post("tokens", { name: given.get("name"), role: given.get("role"), ...(days ? { expires_in_days: Number(days) } : {}) }, { "idempotency-key": key });
    setMade({ name: given.get("name"), token: answer.token });
    again();
  };
  const row = (token) => {
    const isOver = token.revoked_at !== null || (token.expires_at !== null && Date.parse(token.expires_at) < now());
    return html`<tr key=${token.id} class=${isOver ? "over" : ""}>
      <${Cell}><span class="name">${token.name}</span><//><${Cell} name="Role">${token.role}<//>
      <${Cell} name="State">${token.revoked_at ? html`<${Status} of="canceled">revoked<//>` : isOver ? html`<${Status} of="canceled">expired<//>` : html`<${Status} of="done">in use<//>`}<//>
      <${Cell} name="Last used"><${Ago} at=${token.last_used_at} /><//><${Cell} name="Ends">${token.expires_at && !isOver ? html`<${Until} at=${token.expires_at} />` : NONE}<//>
      <${Cell} className="acts">${!isOver && html`<${Act} label="Revoke" title=${`Revoke ${token.name}`} tone="danger" reason=${null} explains="Whoever uses it is refused from now on."
        act=${async () => { await ask("DELETE", `tokens/${token.id}`); again(); }} done="Revoked." />`}<//></tr>`;
  };
  return html`<${Section} title="Machine tokens" side=${html`<${Act} label="Make a token" reason=${null} tone="main" explains="It is shown once. A machine sends it under the path /machine." act=${make} done="Made.">
      <${Field} label="Name">${(id) => html`<input id=${id} name="name" required maxlength="200" autocomplete="off" />`}<//><${RoleField} value="member" />
      <${Field} label="Ends after days (optional)">${(id) => html`<input id=${id} name="days" type="number" min="1" max="3650" defaultValue="90" />`}<//><//>`}>
    <${Table} caption="Machine tokens" columns=${["Name", "Role", "State", "Last used", "Ends", { name: "", className: "acts" }]}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${6} every_s=${0} empty=${html`<${Empty}><p>No tokens. A script or a server that calls the API needs one.</p><//>`} />
    <//>
    ${made && html`<${Dialog} title=${`The token ${made.name}`} onClose=${() => setMade(null)}>
      ${made.token ? html`<p>It is shown this once: keep it now.</p><p><code class="secret" tabindex="0">${made.token}</code></p>` : html`<p>It was made already and is not shown again: revoke it, and make another.</p>`}
      <div class="buttons"><button type="button" class="button" onClick=${() => navigator.clipboard?.writeText(made.token)}>Copy</button><button type="button" class="button main" onClick=${() => setMade(null)}>Done</button></div><//>`}
  <//>`;
}
