// What fixes a problem, as a button beside it: the same on the Overview, under Failures and in a run.
import { ask, get, post } from "../api.js";
import { plural, sentence } from "../format.js";
import { html, useEffect, useState } from "../vendor/preact.js";
import { Action, Answer, Field, Link, MANAGES, STARTS, useMay, useVisitor } from "../parts.js";
import { useAnswer } from "../live.js";
import { applyAll, Bulk } from "./bulk.js";

// What a provider asks for, from its own schemas.
// "client_id" and "Client Id" are both "Client ID".
const labelOf = (name) => sentence(name.toLowerCase()).replace(/\b(api|id|mid|url)\b/gi, (word) => word.toUpperCase());

export const ProviderFields = ({ provider, of }) => html`
  <${Field} label="Name">${(id) => html`<input id=${id} name="name" required maxlength="100" pattern="[A-Za-z0-9][A-Za-z0-9 ._\\-]*" title="Letters from A to Z, digits, blanks, dots, hyphens and underscores; a letter or a digit first" autocomplete="off" defaultValue=${of?.name ?? "main"} />`}<//>
  ${["settings", "secret"].flatMap((part) => Object.entries(provider[part].properties ?? {}).map(([name, schema]) => {
    const isNeeded = (provider[part].required ?? []).includes(name) && !(part === "secret" && of);
    return html`<${Field} label=${`${labelOf(schema.title ?? name)}${isNeeded ? "" : " (optional)"}`} hint=${schema.description}>${(id) => html`<input id=${id} name=${`${part}.${name}`} type=${part === "secret" ? "password" : "text"}
      autocomplete=${part === "secret" ? "new-password" : "off"} required=${isNeeded} maxlength="4096" defaultValue=${part === "settings" ? (of?.settings[name] ?? "") : ""} />`}<//>`;
  }))}`;

export const taken = (given, prefix) => Object.fromEntries([...given.entries()].filter(([name, value]) => name.startsWith(prefix) && value !== "").map(([name, value]) => [name.slice(prefix.length), value]));

export async function changeConnection(id, given) {
  const secret = taken(given, "secret.");
  await ask("PUT", `connections/${id}`, { body: { name: given.get("name"), settings: taken(given, "settings."), ...(Object.keys(secret).length ? { secret } : {}) } });
}

// The account is changed, checked at the upstream, and then what failed of it is retried: one run, or all of `filter`.
export function FixConnection({ id, run = null, filter = null, onDone = () => {} }) {
  const may = useMay(MANAGES);
  if (!may) return html`<span class="quiet">An admin can fix <${Link} to="connections">the connection<//>.</span>`;
  const fix = async (_, given) => {
    await changeConnection(id, given);
    const said = await post(`connections/${id}/check`);
    if (!said.works) throw new Error(`Saved, but the upstream still refuses this account: ${said.says}`);
    const reason = `Connection ${given.get("name")} was fixed`;
    if (run !== null) await post(`runs/${run}/retry`, { reason });
    else {
      const request = { action: "retry", filter, reason };
      await applyAll(request, (await post("runs/bulk", { ...request, mode: "preview" })).next);
    }
    await onDone();
  };
  return html`<${Action} label="Fix connection" submit="Save and retry" tone="main" reason=${null} busy="Checking…" explains="The upstream refuses this account. Change it here: it is checked, then what failed is retried. Leave a secret empty to keep it."
    action=${fix} done="Connected; retrying."><${ConnectionFields} id=${id} /><//>`;
}

function ConnectionFields({ id }) {
  const providers = useAnswer("providers", {}, 0);
  const connection = useAnswer(`connections/${encodeURIComponent(id)}`, {}, 0);
  return html`<${Answer} of=${connection}>${(of) => html`<${Answer} of=${providers}>${({ providers: all }) => {
    const provider = all.find((each) => each.name === of.provider);
    return provider ? html`<${ProviderFields} provider=${provider} of=${of} />` : html`<p>The provider ${of.provider} isn't deployed here.</p>`;
  }}<//>`}<//>`;
}

// `gate`: {key, is_shared}. One that all tenants share is for super admins.
export function OpenGate({ gate, label = "Open rate limit", onDone = () => {} }) {
  const may = useMay(MANAGES);
  const { isSuper } = useVisitor();
  if (!may || (gate.is_shared && !isSuper)) return null;
  return html`<${Action} label=${label} title=${`Open ${gate.key}`} tone="main" reason="required" explains="Steps run again. Up to 200 waiting lanes of this tenant continue at once, the rest at their scheduled time."
    action=${async (reason) => {
      const moved = await post(`gates/${encodeURIComponent(gate.key)}/open`, { reason, shared: gate.is_shared });
      await onDone();
      return moved;
    }} done=${(moved) => `Opened; ${plural(moved.woken, "lane")} continued.`} />`;
}

// The gate that holds a run, as far as it is known by its key alone.
export function OpenGateOf({ id, onDone }) {
  const [gate, setGate] = useState(null);
  useEffect(() => {
    get("gates", { limit: 200 }).then(({ gates }) => setGate(gates.find((each) => each.key === id && each.state !== "open") ?? null), () => {});
  }, [id]);
  return gate && html`<${OpenGate} gate=${gate} onDone=${onDone} />`;
}

// `name`: in a list, whose lines move, the dialog says which run it is about.
export function RunNow({ run, name = null, onDone = () => {} }) {
  if (!useMay(STARTS)) return null;
  return html`<${Action} label="Run now" title=${name && `Run now: ${name}`} explains="The next step of every waiting lane runs now instead of later. A rate limit that is closed stays closed."
    action=${async (reason) => {
      const said = await post(`runs/${run}/wake`, { reason });
      await onDone();
      return said;
    }} done=${({ lanes }) => (lanes === 0 ? "Nothing was waiting any more." : `Running now: ${plural(lanes, "lane")}.`)} />`;
}

export function Resume({ run, name, onDone = () => {} }) {
  if (!useMay(STARTS)) return null;
  return html`<${Action} label="Resume" title=${`Resume ${name}`} explains="The run continues where it was paused. Deadlines move by the length of the pause."
    action=${async (reason) => {
      await post(`runs/${run}/resume`, { reason });
      await onDone();
    }} done="Resumed." />`;
}

// All runs that failed of one cause; with a trial on a few of them.
export function RetryCause({ cause, onDone }) {
  if (!useMay(STARTS)) return null;
  return html`<${Bulk} label="Retry" title="Retry failed runs" filter=${{ kind: cause.kind, status: "failed", fingerprint: cause.fingerprint }} actions=${["retry"]} onDone=${onDone}
    explains="Resumes failed work from its last step. Fix the cause first." />`;
}

export function MuteCause({ cause, onDone }) {
  if (!useMay(MANAGES) || !cause.fingerprint) return null;
  const of = { kind: cause.kind, fingerprint: cause.fingerprint };
  if (cause.muted) {
    return html`<${Action} label="Unmute" explains="It counts as a failure on the Overview again." action=${async (reason) => {
      await post("failures/unmute", { ...of, reason });
      await onDone();
    }} done="Unmuted." />`;
  }
  return html`<${Action} label="Mute" title="Mute this cause" reason="required" explains="It no longer counts on the Overview. It stays listed here, and comes back when the time is over."
    action=${async (reason, given) => {
      await post("failures/mute", { ...of, reason, days: Number(given.get("days")) });
      await onDone();
    }} done="Muted."><${Field} label="Days">${(id) => html`<input id=${id} name="days" type="number" min="1" max="90" defaultValue="7" required />`}<//><//>`;
}
