// What views are made of: the frame's, and every kind's.
import { get, newKey, now, post, willPass } from "./api.js";
import { about, duration, instant, rough, moment, number, plural, sentence, shortId } from "./format.js";
import { createContext, html, useContext, useEffect, useErrorBoundary, useId, useRef, useState } from "./vendor/preact.js";
import { kindOf } from "./kinds.js";
import { useClock } from "./live.js";
import { go, withTenant } from "./router.js";

// --- who is signed in

export const Visitor = createContext(null);
export const useVisitor = () => useContext(Visitor);
export const STARTS = ["member", "admin"];
export const MANAGES = ["admin"];

export function useMay(roles) {
  const { role, isSuper } = useVisitor();
  return roles.includes(role) || (isSuper && roles.includes("admin"));
}

// --- words

export const Link = ({ to, children, ...rest }) => html`<a href=${withTenant(to)} ...${rest}>${children}</a>`;

// Tabs that belong under the heading, whoever draws that.
export const UnderHeading = createContext(null);

export function Heading({ title, children }) {
  const heading = useRef(null);
  const under = useContext(UnderHeading);
  useEffect(() => {
    document.title = `${title} · Baton`;
    heading.current.focus({ preventScroll: true });
  }, [title]);
  return html`<header class="heading"><h1 tabindex="-1" ref=${heading}>${title}</h1><div class="heading-side">${children}</div></header>${under}`;
}

export function Section({ title, note, children, side }) {
  const id = useId();
  return html`<section aria-labelledby=${id} class="section">
    <div class="section-head"><h2 id=${id}>${title}</h2>${note && html`<span class="quiet">${note}</span>`}<span class="spring"></span>${side}</div>
    ${children}
  </section>`;
}

// Links that look like tabs: each is an address of its own. `tabs` are [{ path, title }], `at` is the path of the open one.
export const Tabs = ({ label, tabs, at, below }) => html`<nav class="tabs" aria-label=${label}><ul>${tabs.map((tab) => html`<li key=${tab.path}>
  <${Link} to=${tab.path ? `${below}/${tab.path}` : below} aria-current=${tab.path === at ? "page" : undefined}>${tab.title}<//></li>`)}</ul></nav>`;

export const NONE = html`<span class="none quiet">–</span>`;
export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;
// What comes, in grey, while it comes.
export const Loading = ({ rows = 4 }) => html`<div class="loading" role="status"><span class="hidden">Loading…</span><${Bones} rows=${rows} /></div>`;
export const Bones = ({ rows }) => html`<div class="bones" aria-hidden="true">${Array.from({ length: rows }, (_, n) => html`<span class="bone" style=${{ width: `${[92, 74, 85, 61][n % 4]}%` }}></span>`)}</div>`;

export function Trouble({ problem }) {
  if (!problem) return null;
  return html`<p class="trouble" role="alert">${problem.message}</p>`;
}

// An answer, or what is shown in its place.
export function Answer({ of, children }) {
  if (of.data === null) return of.problem ? html`<${Trouble} problem=${of.problem} />` : html`<${Loading} />`;
  return html`<${Trouble} problem=${of.problem} />${children(of.data)}`;
}

// Who did it, by name where it is known. Admins may know the names of everyone in their tenant.
const names = new Map(); // the promise of each tenant's names, by who asked
function namesFor(key) {
  if (!names.has(key)) {
    const asked = get("members", { limit: 200 }).then(({ members }) => Object.fromEntries(members.map((each) => [`user:${each.subject}`, each.name])));
    names.set(key, asked);
    asked.catch(() => names.delete(key));
  }
  return names.get(key);
}

export function Actor({ of, isBrief = false }) {
  const { actor, name, tenant } = useVisitor();
  const mayAsk = useMay(MANAGES);
  const [others, setOthers] = useState({});
  useEffect(() => {
    if (mayAsk) namesFor(`${actor} ${tenant.id}`).then(setOthers, () => {});
  }, [actor, tenant.id, mayAsk]);
  const known = of === actor ? name : others[of];
  return known ? html`<span title=${isBrief ? known : of}>${isBrief ? known.split("@")[0] : known}</span>` : html`<code title=${of}>${of.length > 24 ? `${of.slice(0, 5)}…${of.slice(-8)}` : of}</code>`;
}

// Rate limits and runs name an account by the ID of its connection; people know it by its name. `of` is a text with such IDs.
const ACCOUNT = /(?:([\w-]+):)?\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b/g;
const accounts = new Map(); // the promise of each tenant's connections, by who asked
function accountsFor(key) {
  if (!accounts.has(key)) {
    const asked = get("connections", { limit: 200 }).then(({ connections }) => Object.fromEntries(connections.map((each) => [each.id, each.name])));
    accounts.set(key, asked);
    asked.catch(() => accounts.delete(key));
  }
  return accounts.get(key);
}

export function useNamed(text) {
  const { actor, tenant } = useVisitor();
  const [known, setKnown] = useState({});
  const isNamed = text.search(ACCOUNT) >= 0;
  useEffect(() => {
    if (isNamed) accountsFor(`${actor} ${tenant.id}`).then(setKnown, () => {});
  }, [actor, tenant.id, isNamed]);
  return text.replace(ACCOUNT, (all, provider, id) => (known[id] === undefined ? all : provider ? `${provider} (${known[id]})` : known[id]));
}
export const Named = ({ of }) => html`<span title=${of}>${useNamed(of)}</span>`;

// --- times, by the server's clock

// `isBrief`: for one line of a list.
export const Ago = ({ at, none = "never", isBrief = false }) => {
  const time = useClock();
  if (!at) return html`<span class="quiet">${none}</span>`;
  const passed = (time - Date.parse(at)) / 1000;
  return html`<time datetime=${at} title=${instant(at)}>${passed < 1 ? "now" : `${(isBrief ? rough : about)(passed)} ago`}</time>`;
};

// `exact` counts the seconds.
export const Until = ({ at, exact = false }) => {
  const time = useClock();
  const left = (Date.parse(at) - time) / 1000;
  return html`<time datetime=${at} title=${instant(at)}>${left > 0 ? `in ${exact ? duration(left) : about(left)}` : "now"}</time>`;
};

export const Elapsed = ({ from, to, isBrief = false }) => {
  const time = useClock();
  const seconds = ((to ? Date.parse(to) : time) - Date.parse(from)) / 1000;
  return isBrief ? html`<span title=${duration(seconds)}>${rough(Math.max(0, seconds))}</span>` : html`<span>${duration(seconds)}</span>`;
};

// --- states: a shape and a word, and a colour only where it means something

// Ten words for runs and lanes; each means one thing. The rest are states of other things.
const STATES = {
  queued: ["◌", "Queued", "Waiting for a worker"],
  running: ["▸", "Running", "Steps are running"],
  retrying: ["↻", "Retrying", "The last attempt failed; the next one is scheduled"],
  throttled: ["◑", "Throttled", "Rate-limited: continues when the limit opens"],
  waiting: ["◷", "Waiting", "Scheduled for later, or waiting for something outside"],
  paused: ["‖", "Paused", "Paused until someone resumes it"],
  stalled: ["!", "Stalled", "Overdue; retried automatically"],
  succeeded: ["✓", "Succeeded", "Finished"],
  failed: ["✕", "Failed", "Stopped by an error; it can be retried"],
  canceled: ["–", "Canceled", "Stopped on request; it can be retried"],
  dead_letter: ["✕", "Dead letter", "Its attempts are used up; retry it when the cause is gone"],
  timeout: ["✕", "Timed out", "Stopped at its time limit"],
  open: ["✓", "Open"], closed: ["✕", "Closed"], half_open: ["◐", "Testing"], probing: ["◐", "Testing"],
};
const OF_RUNS = ["queued", "running", "retrying", "throttled", "waiting", "paused", "stalled", "succeeded", "failed", "canceled"];
export const STATE_WORDS = Object.fromEntries(OF_RUNS.map((each) => [each, STATES[each][1]]));
export const Status = ({ of, children }) => {
  const [mark, word, meaning] = STATES[of] ?? ["·", sentence(of)];
  return html`<span class=${`status status-${of}`} title=${children ? undefined : meaning}><span class="mark" aria-hidden="true">${mark}</span>${children ?? word}</span>`;
};

// The same words for one lane.
const ENDED_LANES = { done: "succeeded", failed: "failed", canceled: "canceled" };
const HELD_LANES = { paused: "paused", gate: "throttled", retrying: "retrying", due_later: "waiting", not_deployed: "stalled" };
const OVERDUE_MS = 120_000;
export function laneState(lane) {
  if (lane.status !== "active") return ENDED_LANES[lane.status];
  const held = HELD_LANES[lane.why?.code];
  if (held) return held;
  if (lane.why?.code !== "at_work" && now() - Date.parse(lane.next_due_at) > OVERDUE_MS) return "stalled";
  return lane.attempts > 0 ? "retrying" : "running";
}

// What the scheduler repaired, by its own name for it.
const REPAIRS = {
  unclaimed: "A message was lost; sent again", unsent: "A message was not sent; sent now",
  lease_ran_out: "A step didn't finish; handed to another worker", dead_letter: "A message was given up; sent again",
};
export const repairName = (why) => REPAIRS[why] ?? sentence(why);

// What it led to, which often ends with what it came from: nobody reads that twice.
const without = (text, cause) => (cause && text?.endsWith(`: ${cause}`) ? sentence(`${text.slice(0, -cause.length - 2)}.`) : text);

// A run's error, from its root: what its lanes failed of, and what that means for the run.
export function rootCause(error) {
  const cause = error?.cause ?? error;
  return cause ? { message: cause.message ?? cause.code ?? "Unknown error", code: cause.code ?? null, laneKey: error.cause?.lane ?? null, lanes: error.cause?.lanes ?? 0, outer: error.cause ? without(error.message, cause.message) : null } : null;
}

export const Badge = ({ kind, children }) => html`<span class=${`badge badge-${kind}`}>${children}</span>`;

const NO_WAIT = ["at_work"];
export function Why({ of }) {
  const text = useNamed(of?.sentence ?? "");
  if (!of) return NONE;
  return html`<span class=${NO_WAIT.includes(of.code) ? "why quiet" : "why"} title=${text}>${text}
    ${of.until && !NO_WAIT.includes(of.code) && html` <span class="quiet nowrap"><${Until} at=${of.until} /></span>`}</span>`;
}

// `failed` is part of `done`, and stands behind what went well.
export function Bar({ done, all, failed = 0, label, tone = "" }) {
  const share = (part) => `${all > 0 ? Math.min(1, part / all) * 100 : 0}%`;
  return html`<span class=${`bar ${tone}`} role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax=${all} aria-valuenow=${done}>
    <span style=${{ width: share(done - failed) }}></span>${failed > 0 && html`<span class="bar-failed" style=${{ width: share(failed) }}></span>`}</span>`;
}

export const LANES = "Lanes are the parts of a run that work in parallel";

// How far a run is: in rows, or what else its kind counts, where that is known; else in lanes. `isBrief`: for one line of a list.
export function Progress({ run, isBrief = false }) {
  const { lanes, lanes_ended: ended, lanes_failed: failed, more_lanes: more, steps, rows } = run.progress;
  const isDone = run.status === "succeeded";
  const bar = (part, all, bad) => html`<${Bar} done=${part} all=${all} failed=${bad} label=${`Progress of run ${shortId(run.id)}`} tone=${run.state} />`;
  const eta = run.eta && html` · ETA <${Left} at=${run.eta} />`;
  if (rows) {
    const { unit } = rows;
    if (rows.all === null) return html`<span class="quiet nowrap">${number(rows.done)} ${unit}${isBrief ? "" : html` read${eta}`}</span>`; // nobody knows how many there are
    const left = Math.max(0, rows.all - rows.done - rows.failed);
    const told = `${number(rows.done)}${isBrief ? "" : ` ${unit}`} done${rows.failed ? `, ${number(rows.failed)} failed` : ""}${left ? `, ${number(left)} left` : ""}`;
    return html`<span class="progress">${bar(rows.done + rows.failed, rows.all, rows.failed)}<span class="quiet nowrap" title=${`${sentence(unit)}: ${told}`}>${isBrief ? `${Math.floor((100 * (rows.done + rows.failed)) / Math.max(1, rows.all))} %` : told}${isBrief ? "" : eta}</span></span>`;
  }
  if (more && !isDone) return html`<span class="quiet nowrap" title=${LANES}>${number(lanes)}+ lanes</span>`;
  if (lanes === 1) return steps > 0 ? html`<span class="quiet nowrap">${plural(steps, "step")}</span>` : NONE; // a bar of one lane says nothing
  const label = lanes === 0 ? "not started" : more ? `${number(lanes)}+ lanes` : isBrief ? `${number(ended)} of ${number(lanes)}` : `${number(ended)} of ${number(lanes)} lanes`;
  return html`<span class="progress">${bar(isDone ? 1 : ended, isDone ? 1 : lanes, isDone ? 0 : failed)}
    <span class="quiet nowrap" title=${`${LANES}. ${plural(steps, "step")} so far.`}>${label}${isBrief || more ? "" : ` · ${plural(steps, "step")}`}${isBrief ? "" : eta}</span></span>`;
}

export const Left = ({ at }) => {
  const time = useClock();
  return html`<time datetime=${at} title=${instant(at)}>${about((Date.parse(at) - time) / 1000)}</time>`;
};

export const runName = (run) => run.label || `${kindOf(run.kind).title} ${shortId(run.id)}`;

export const Json = ({ of }) => html`<pre class="json" tabindex="0">${JSON.stringify(of, null, 2)}</pre>`;

// --- tables: dense, read by screen readers, and cards on a phone

export function Table({ caption, columns, children, className = "" }) {
  return html`<div class="table-frame"><table class=${className}>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((each) => html`<th scope="col" class=${each.className}>${each.name ?? each}</th>`)}</tr></thead>
    ${children}
  </table></div>`;
}

// A row that is one thing opens it, wherever it is clicked; what is in it keeps its own clicks, and text can be selected.
export function opensOnClick(event) {
  if (event.target.closest("a, button, input, select, summary, label") || String(getSelection())) return;
  const link = event.currentTarget.querySelector("a[href]");
  if (event.metaKey || event.ctrlKey) open(link.href);
  else link.click();
}

export const Cell = ({ name, className = "", children }) => html`<td data-name=${name} class=${className}>${children}</td>`;

// --- actions: each says what it does, takes a reason, and reports the result

const said = new Set();
export const say = (text, tone = "good") => {
  for (const listener of said) listener({ text, tone, at: now() });
};

export function Said() {
  const [all, setAll] = useState([]);
  useEffect(() => {
    const listener = (each) => {
      setAll((before) => [...before.slice(-2), each]);
      setTimeout(() => setAll((before) => before.filter((other) => other !== each)), 8000);
    };
    said.add(listener);
    return () => said.delete(listener);
  }, []);
  return html`<div class="said" role="status" aria-live="polite">${all.map((each) => html`<p key=${each.at} class=${`said-${each.tone}`}>${each.text}</p>`)}</div>`;
}

export function Dialog({ title, onClose, children, className = "" }) {
  const dialog = useRef(null);
  const id = useId();
  useEffect(() => {
    const shown = dialog.current;
    shown.showModal();
    return () => shown.close(); // gives the focus back to whoever opened it
  }, []);
  return html`<dialog ref=${dialog} class=${className} aria-labelledby=${id} onClose=${onClose}>
    <h2 id=${id}>${title}</h2>
    ${children}
  </dialog>`;
}

export function Field({ label, hint, children }) {
  const id = useId();
  return html`<div class="field"><label for=${id}>${label}</label>${children(id)}${hint && html`<p class="hint">${hint}</p>`}</div>`;
}

// Dialogs are drawn beside the page, not in what opened them: a row may leave a list that is read again while somebody types.
let show = () => {};
export function Dialogs() {
  const [dialog, setDialog] = useState(null); // one at a time: they are modal
  const [broken, recover] = useErrorBoundary();
  useEffect(() => {
    show = setDialog;
    return () => {
      show = () => {};
    };
  }, []);
  const close = () => {
    setDialog(null);
    recover();
  };
  return broken ? html`<${Dialog} title="Something went wrong" onClose=${close}><${Trouble} problem=${broken} /><//>` : (dialog?.content ?? null);
}

// What opens a dialog. `draw(close)` answers it; while what has opened it is there, it is drawn anew with it.
export function useDialog(draw) {
  const opener = useRef({ isOpen: false }).current;
  const close = () => {
    opener.isOpen = false;
    show((before) => (before?.opener === opener ? null : before));
  };
  useEffect(() => {
    if (opener.isOpen) show((before) => (before?.opener === opener ? { opener, content: draw(close) } : before));
  });
  return () => {
    opener.isOpen = true;
    show({ opener, content: draw(close) });
  };
}

// A button that opens a dialog: what happens, why, and the button that does it. `action(reason, fields, key)` does it.
// `submit`: what the button that does it says, where that is more than the label.
export function Action({ label, title, explains, action, done, tone = "", reason = "optional", children, busy = "Working…", submit = label }) {
  const open = useDialog((close) => html`<${Dialog} title=${title ?? label} onClose=${close}>
    <${ActionForm} ...${{ label: submit, explains, action, done, tone, reason, busy }} onClose=${close}>${children}<//>
  <//>`);
  return html`<button type="button" class=${`button ${tone}`} onClick=${open}>${label}</button>`;
}

function ActionForm({ label, explains, action, done, tone, reason, busy, onClose, children }) {
  const [why, setWhy] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const [key, setKey] = useState(newKey); // sent twice it is one action; changed, it is another
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const came = await action(why, new FormData(event.target), key);
      onClose();
      say(typeof done === "function" ? done(came) : done);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`<form onSubmit=${submit} onInput=${() => setKey(newKey())}>
    ${explains && html`<p>${explains}</p>`}
    ${children}
    ${reason && html`<${Field} label=${reason === "required" ? "Reason" : "Reason (optional)"} hint="Kept in the run's timeline and in the audit log.">
      ${(id) => html`<input id=${id} maxlength="500" required=${reason === "required"} autocomplete="off" value=${why} onInput=${(event) => setWhy(event.target.value)} />`}<//>`}
    <${Trouble} problem=${problem} />
    <div class="buttons">
      <button type="button" class="button" onClick=${onClose}>Back</button>
      <button type="submit" class=${`button ${tone || "main"}`} disabled=${isBusy}>${isBusy ? busy : label}</button>
    </div>
  </form>`;
}

const ROLES = { viewer: "viewer: sees the tenant's runs", member: "member: starts runs and sees their own", admin: "admin: manages everything in the tenant", worker: "worker: a machine that takes jobs" };
export const RoleField = ({ value = "viewer" }) => html`<${Field} label="Role">${(id) => html`<select id=${id} name="role">${Object.entries(ROLES).map(([role, text]) => html`<option value=${role} selected=${role === value}>${text}</option>`)}</select>`}<//>`;

// A view whose file is loaded when it is first opened. `load` answers its component.
export function later(load) {
  let View = null;
  return (props) => {
    const [problem, setProblem] = useState(null);
    const [, again] = useState(0);
    useEffect(() => {
      if (View === null) load().then((found) => { View = found; again(1); }, () => setProblem(new Error("This page couldn't be loaded. You may be offline, or a new version was deployed: reload the page.")));
    }, []);
    if (problem) return html`<${Trouble} problem=${problem} />`;
    return View === null ? html`<${Loading} />` : html`<${View} ...${props} />`;
  };
}

// Counts what was changed here: a list with this `turn` is read again after each.
export function useTurn() {
  const [turn, setTurn] = useState(0);
  return [turn, () => setTurn((n) => n + 1)];
}

// The page that starts a run of a kind. `request(fields)` is what to send, as { path, body }; `isReady`: what the form needs is there.
// `opens`: the tab of the run that is opened then. `verb`: what its button says, while it works, and when it is done.
export function NewRun({ kind, request, isReady = true, opens = "", verb = ["Start", "Starting…", "Started."], children }) {
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [key, setKey] = useState(newKey); // sent twice it is one run; changed, it is another
  const submit = async (event) => {
    event.preventDefault();
    setProblem(null);
    try {
      const { path, body } = request(new FormData(event.target));
      setBusy(true);
      const { id, already } = await post(path, body, { "idempotency-key": key });
      say(already ? "It is there already: nothing new was added." : verb[2]);
      go(opens ? `runs/${id}/${opens}` : `runs/${id}`);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`<${Heading} title=${`New ${(kind.one ?? kind.title).toLowerCase()}`} />
    <form class="sheet" onSubmit=${submit} onInput=${() => setKey(newKey())}>
      ${children}
      <${Trouble} problem=${problem} />
      <div class="buttons"><${Link} to=${`work/${kind.name}`} class="button">Back<//><button type="submit" class="button main" disabled=${isBusy || !isReady}>${isBusy ? verb[1] : verb[0]}</button></div>
    </form>`;
}

// --- steps: one bar each, and the waits between them

const OUTCOMES = { moved: "Progressed", waited: "Waited", retried: "Failed, retried", throttled: "Throttled", done: "Done", failed: "Failed", canceled: "Canceled" };
export const outcomeName = (outcome) => OUTCOMES[outcome] ?? sentence(outcome);
const LONG_WAIT_S = 5;
const TALLEST = 22;
export function Ribbon({ steps, label }) {
  const frame = useRef(null);
  const newest = steps?.length ? steps[steps.length - 1].at : "";
  useEffect(() => {
    const element = frame.current;
    if (element) element.scrollLeft = element.scrollWidth;
  }, [newest]);
  if (!steps || steps.length === 0) return html`<span class="quiet">no steps yet</span>`;
  const most = Math.max(...steps.map((step) => step.ms), 1);
  const drawn = [];
  let x = 0;
  steps.forEach((step, n) => {
    const before = steps[n - 1];
    const wait = before ? (Date.parse(step.at) - Date.parse(before.at)) / 1000 - step.ms / 1000 : 0;
    if (wait > LONG_WAIT_S) {
      const width = Math.min(58, 26 + 6 * Math.log2(wait / LONG_WAIT_S));
      const cause = { waited: "wait", throttled: "throttle", retried: "retry", failed: "retry" }[before.outcome] ?? "gap";
      drawn.push(html`<g class=${`gap gap-${cause}`}><title>${`${cause === "gap" ? "No step" : outcomeName(before.outcome)} for ${duration(wait)}`}</title>
        <rect x=${x + 1} y="4" width=${width - 2} height="18" rx="2" /><text x=${x + width / 2} y="16">${short(wait)}</text></g>`);
      x += width;
    }
    const height = 6 + (TALLEST - 6) * Math.sqrt(step.ms / most);
    drawn.push(html`<rect class=${`tick tick-${step.outcome}`} x=${x} y=${24 - height} width="4" height=${height} rx="1">
      <title>${`Step ${step.seq}: ${outcomeName(step.outcome)}, ${plural(step.rows, "row")}, ${number(step.ms)} ms, ${moment(step.at)}`}</title></rect>`);
    x += 6;
  });
  const count = (outcome) => steps.filter((step) => step.outcome === outcome).length;
  const bad = ["retried", "throttled", "failed"].map((each) => [each, count(each)]).filter(([, n]) => n > 0).map(([each, n]) => `${n} ${OUTCOMES[each].toLowerCase()}`);
  const summary = `${label}: the last ${plural(steps.length, "step")}${bad.length ? `, ${bad.join(", ")}` : ""}`;
  return html`<div class="ribbon" tabindex="0" role="img" aria-label=${summary} ref=${frame}><svg width=${x} height="26" viewBox=${`0 0 ${x} 26`} aria-hidden="true">${drawn}</svg></div>`;
}

const short = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`);

// --- long lists: pages by cursor, of which only those near the window are kept and drawn

const KEPT_PAGES = 3;

// `load(cursor)` answers {rows, next}, `row` draws one of them. Another question is another list: it has another `key`.
// They are read again every few seconds, and whenever `turn` changes: after an action.
export function Pages({ load, row, columns, empty, every_s = 5, turn = 0 }) {
  const [pages, setPages] = useState([{ cursor: null, rows: null, height: 0 }]);
  const [problem, setProblem] = useState(null);
  const [shown, setShown] = useState(() => new Set([0]));
  const elements = useRef(new Map());
  const loading = useRef(new Set());
  const isGone = useRef(false);
  const round = useRef(0); // answers of a round before the last action are out of date

  const fetchPage = async (n, cursor) => {
    if (loading.current.has(n)) return;
    loading.current.add(n);
    const mine = round.current;
    try {
      const { rows, next } = await load(cursor);
      if (isGone.current || mine !== round.current) return;
      setProblem(null);
      setPages((before) => {
        // It may be gone by now, or start elsewhere: then it is asked for again.
        if (!before[n] || before[n].cursor !== cursor) return before.slice();
        const after = before.slice();
        after[n] = { ...after[n], cursor, rows, isOld: false };
        if (next === null) return after.slice(0, n + 1);
        // What follows may start elsewhere now: it stays in sight until it is known again.
        if (after[n + 1]?.cursor !== next) after[n + 1] = { rows: null, height: 0, ...after[n + 1], cursor: next, isOld: true };
        return after;
      });
    } catch (error) {
      if (!isGone.current && mine === round.current) setProblem(error);
    } finally {
      if (mine === round.current) loading.current.delete(n);
    }
  };

  useEffect(() => () => {
    isGone.current = true;
  }, []);

  useEffect(() => {
    const observer = new IntersectionObserver(
      (entries) => {
        setShown((before) => {
          const after = new Set(before);
          for (const { target, isIntersecting } of entries) {
            const n = Number(target.dataset.page);
            if (isIntersecting) after.add(n);
            else after.delete(n);
          }
          return after;
        });
      },
      { rootMargin: "600px" },
    );
    for (const element of elements.current.values()) observer.observe(element);
    return () => observer.disconnect();
  }, [pages.length]);

  const [first, last] = [Math.min(...shown, pages.length - 1), Math.max(...shown, 0)];
  const near = (n) => n >= first - 1 && n <= last + 1;
  useEffect(() => {
    pages.forEach((page, n) => {
      const isWanted = page.rows === null ? shown.has(n) : page.isOld && near(n); // whatever is drawn is true
      if (isWanted && !problem) fetchPage(n, page.cursor); // what failed is for the clock below
    });
    const far = pages.findIndex((page, n) => page.rows !== null && (n < first - KEPT_PAGES || n > last + KEPT_PAGES));
    if (far >= 0) setPages((before) => before.map((page, n) => (n === far ? { ...page, rows: null } : page)));
  });

  const readAgain = () => {
    for (const n of shown) if (pages[n]) fetchPage(n, pages[n].cursor);
  };
  useEffect(() => {
    if (turn === 0) return;
    round.current += 1;
    loading.current.clear();
    setPages((before) => before.map((page) => ({ ...page, isOld: true }))); // those out of sight, too
    readAgain();
  }, [turn]);
  const latest = useRef(null);
  latest.current = readAgain;
  const pause_s = every_s || (problem && willPass(problem) ? 5 : 0);
  useEffect(() => { // however often it is drawn meanwhile
    if (!pause_s) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && latest.current(), pause_s * 1000);
    return () => clearInterval(timer);
  }, [pause_s]);

  const keepElement = (n) => (element) => {
    if (element === null) return elements.current.delete(n);
    elements.current.set(n, element);
    const height = element.offsetHeight;
    if (pages[n]?.rows && near(n) && height > 0) pages[n].height = height; // for the gap that it leaves behind
    return undefined;
  };

  const isEmpty = pages.length === 1 && pages[0].rows?.length === 0; // it is still watched: something may start
  return html`${pages.map((page, n) => html`<tbody key=${n} data-page=${n} ref=${keepElement(n)}>
      ${isEmpty ? html`<tr><td class="whole" colspan=${columns}>${empty}</td></tr>` : page.rows !== null && near(n)
        ? page.rows.map(row)
        : html`<tr aria-hidden="true"><td class="whole" colspan=${columns}><div class="gap-rows" style=${{ height: page.height ? `${page.height}px` : undefined }}>${page.rows === null && shown.has(n) && !problem && html`<span class="hidden">Loading…</span><${Bones} rows=${n === 0 ? 5 : 1} />`}</div></td></tr>`}
    </tbody>`)}
    ${problem && html`<tbody><tr><td class="whole" colspan=${columns}><${Trouble} problem=${problem} /></td></tr></tbody>`}`;
}
