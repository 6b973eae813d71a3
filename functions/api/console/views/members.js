// Members of the tenant, and their roles.
import { ask, get } from "../api.js";
import { html, useEffect, useState } from "../vendor/preact.js";
import { Action, Ago, Cell, Empty, Field, Heading, Pages, RoleField, Table, Trouble, useTurn, useVisitor } from "../parts.js";

export default function Members() {
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
    <${Cell} name="Role">${member.role}<//><${Cell} name="Subject"><code>${member.subject}</code><//><${Cell} name="Since">${member.accepted_at === null ? html`<span class="quiet">Invited</span>` : html`<${Ago} at=${member.created_at} />`}<//>
    <${Cell} className="actions">
      <${Action} label="Change" title=${`Change ${member.name ?? member.subject}`} reason=${null} action=${(_, given) => put(member.subject, given)} done="Changed."><${NameField} value=${member.name ?? ""} /><${RoleField} value=${member.role} /><//>
      <${Action} label="Remove" title=${`Remove ${member.name ?? member.subject}`} tone="danger" reason=${null} explains="They lose access to this tenant; their history stays."
        action=${async () => { await ask("DELETE", `members/${encodeURIComponent(member.subject)}`); again(); }} done="Removed."><${TheirTokens} subject=${member.subject} /><//>
    <//></tr>`;
  return html`<${Heading} title="Members"><${Action} label="Add member" reason=${null} tone="main" explains="For someone who can already log in: enter the subject (sub) of their token. They have access once they accept the invitation in the console. To create a new user, run baton user add."
      action=${(_, given) => put(given.get("subject").trim(), given)} done="Invited.">
      <${Field} label="Subject" hint="The sub claim of their token; in Cognito, the user ID.">${(id) => html`<input id=${id} name="subject" required maxlength="200" autocomplete="off" />`}<//><${NameField} /><${RoleField} /><//><//>
    <${Table} caption="Members" columns=${["Name", "Role", "Subject", "Since", { name: "", className: "actions" }]}>
      <${Pages} turn=${turn} load=${load} row=${row} columns=${5} every_s=${0} empty=${html`<${Empty}><p>No members.</p><//>`} />
    <//>`;
}

function TheirTokens({ subject }) {
  const [tokens, setTokens] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => { get(`members/${encodeURIComponent(subject)}`).then((member) => setTokens(member.tokens), setProblem); }, [subject]);
  if (problem) return html`<${Trouble} problem=${problem} />`;
  return tokens?.length ? html`<p>Tokens they created are revoked, and whatever uses them stops:</p><ul>${tokens.map((token) => html`<li key=${token.id}>${token.name} <span class="quiet">${token.role}</span></li>`)}</ul>` : null;
}

const NameField = ({ value = "" }) => html`<${Field} label="Name (optional)">${(id) => html`<input id=${id} name="name" maxlength="200" autocomplete="off" defaultValue=${value} />`}<//>`;
