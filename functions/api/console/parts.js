// What several views are made of.
import { get, newKey, now, willPass } from "./api.js";
import { about, duration, moment, number, plural, shortId, words } from "./format.js";
import { createContext, html, useContext, useEffect, useId, useRef, useState } from "./vendor/preact.js";
import { useClock } from "./live.js";
import { withTenant } from "./router.js";

// --- who looks

export const Visitor = createContext(null);
export const useVisitor = () => useContext(Visitor);
export const ACTS = ["member", "admin"];
export const MANAGES = ["admin"];

export function useMay(roles) {
  const { role, isSuper } = useVisitor();
  return roles.includes(role) || (isSuper && roles.includes("admin"));
}

// --- words

export const Link = ({ to, children, ...rest }) => html`<a href=${withTenant(to)} ...${rest}>${children}</a>`;

export function Heading({ title, children }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${title} · Baton`;
    heading.current.focus({ preventScroll: true });
  }, [title]);
  return html`<header class="heading"><h1 tabindex="-1" ref=${heading}>${title}</h1><div class="heading-side">${children}</div></header>`;
}

export function Section({ title, note, children, side }) {
  const id = useId();
  return html`<section aria-labelledby=${id} class="section">
    <div class="section-head"><h2 id=${id}>${title}</h2>${note && html`<span class="quiet">${note}</span>`}<span class="spring"></span>${side}</div>
    ${children}
  </section>`;
}

export const NONE = html`<span class="none quiet">–</span>`;
export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;
export const Loading = () => html`<p class="loading" role="status">Loading…</p>`;

export function Trouble({ problem }) {
  if (!problem) return null;
  return html`<p class="trouble" role="alert">${problem.message}</p>`;
}

// An answer, or what there is instead of it.
export function Answer({ of, children }) {
  if (of.data === null) return of.problem ? html`<${Trouble} problem=${of.problem} />` : html`<${Loading} />`;
  return html`<${Trouble} problem=${of.problem} />${children(of.data)}`;
}

// Who did it: by name where that is known. Admins may know everybody's in their tenant.
const names = new Map(); // the promise of each tenant's names, by who asked
function namesFor(key) {
  if (!names.has(key)) {
    const asked = get("members", { limit: 200 }).then(({ members }) => Object.fromEntries(members.map((each) => [`user:${each.subject}`, each.name])));
    names.set(key, asked);
    asked.catch(() => names.delete(key));
  }
  return names.get(key);
}

export function Actor({ of }) {
  const { actor, name, tenant } = useVisitor();
  const mayAsk = useMay(MANAGES);
  const [others, setOthers] = useState({});
  useEffect(() => {
    if (mayAsk) namesFor(`${actor} ${tenant.id}`).then(setOthers, () => {});
  }, [actor, tenant.id, mayAsk]);
  const known = of === actor ? name : others[of];
  return known ? html`<span title=${of}>${known}</span>` : html`<code title=${of}>${of.length > 24 ? `${of.slice(0, 5)}…${of.slice(-8)}` : of}</code>`;
}

// --- times, by the server's clock

export const Ago = ({ at, none = "never" }) => {
  const time = useClock();
  if (!at) return html`<span class="quiet">${none}</span>`;
  const passed = (time - Date.parse(at)) / 1000;
  return html`<time datetime=${at} title=${moment(at)}>${passed < 1 ? "now" : `${about(passed)} ago`}</time>`;
};

// `exact` counts the seconds.
export const Until = ({ at, exact = false }) => {
  const time = useClock();
  const left = (Date.parse(at) - time) / 1000;
  return html`<time datetime=${at} title=${moment(at)}>${left > 0 ? `in ${exact ? duration(left) : about(left)}` : "now"}</time>`;
};

export const Took = ({ from, to }) => {
  const time = useClock();
  return html`<span>${duration(((to ? Date.parse(to) : time) - Date.parse(from)) / 1000)}</span>`;
};

// --- states: a shape and a word, and a colour only where it means something

const MARKS = {
  queued: "◌", running: "▸", paused: "‖", succeeded: "✓", failed: "✕", canceled: "–",
  active: "▸", done: "✓", open: "✓", closed: "✕", half_open: "◐", probing: "◐", stuck: "!", late: "!",
};
export const Status = ({ of, children }) => html`<span class=${`status status-${of}`}>
  <span class="mark" aria-hidden="true">${MARKS[of] ?? "·"}</span>${children ?? words(of)}</span>`;

export const Badge = ({ kind, children }) => html`<span class=${`badge badge-${kind}`}>${children}</span>`;

const NO_WAIT = ["at_work"];
export function Why({ of }) {
  if (!of) return NONE;
  return html`<span class=${NO_WAIT.includes(of.code) ? "why quiet" : "why"} title=${of.sentence}>${of.sentence}
    ${of.until && !NO_WAIT.includes(of.code) && html` <span class="quiet nowrap"><${Until} at=${of.until} /></span>`}</span>`;
}

export function Bar({ done, all, label, tone = "" }) {
  const share = all > 0 ? Math.min(1, done / all) : 0;
  return html`<span class=${`bar ${tone}`} role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax=${all} aria-valuenow=${done}>
    <span style=${{ width: `${share * 100}%` }}></span></span>`;
}

export function Progress({ run }) {
  const { lanes, lanes_ended: ended, more_lanes: more, steps } = run.progress;
  if (more && run.status !== "succeeded") return html`<span class="quiet">more than ${number(lanes)} lanes</span>`;
  const label = lanes === 0 ? "not begun" : more ? `more than ${number(lanes)} lanes` : `${number(ended)} of ${number(lanes)} lanes`;
  return html`<span class="progress"><${Bar} done=${run.status === "succeeded" ? 1 : ended} all=${run.status === "succeeded" ? 1 : lanes} label=${`Progress of run ${shortId(run.id)}`} tone=${run.status} />
    <span class="quiet nowrap">${label}${more ? "" : ` · ${plural(steps, "step")}`}${run.eta && run.status === "running" && html` · done <${Until} at=${run.eta} />`}</span></span>`;
}

export const runName = (run) => run.label || `${words(run.kind)} ${shortId(run.id)}`;

export const Json = ({ of }) => html`<pre class="json" tabindex="0">${JSON.stringify(of, null, 2)}</pre>`;

// --- tables: dense, read by screen readers, and cards on a phone

export function Table({ caption, columns, children, className = "" }) {
  return html`<div class="table-frame"><table class=${className}>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((each) => html`<th scope="col" class=${each.className}>${each.name ?? each}</th>`)}</tr></thead>
    ${children}
  </table></div>`;
}

export const Cell = ({ name, className = "", children }) => html`<td data-name=${name} class=${className}>${children}</td>`;

// --- acts: each says what it does, takes a reason, and tells what came of it

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

export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  const id = useId();
  useEffect(() => {
    const shown = dialog.current;
    shown.showModal();
    return () => shown.close(); // gives the focus back to whoever opened it
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby=${id} onClose=${onClose}>
    <h2 id=${id}>${title}</h2>
    ${children}
  </dialog>`;
}

export function Field({ label, hint, children }) {
  const id = useId();
  return html`<div class="field"><label for=${id}>${label}</label>${children(id)}${hint && html`<p class="hint">${hint}</p>`}</div>`;
}

// A button that opens a question: what happens, why, and the act itself. `act(reason, fields, key)` does it.
export function Act({ label, title, explains, act, done, tone = "", reason = "optional", children, busy = "Working…" }) {
  const [isOpen, setOpen] = useState(false);
  return html`<button type="button" class=${`button ${tone}`} onClick=${() => setOpen(true)}>${label}</button>
    ${isOpen && html`<${Dialog} title=${title ?? label} onClose=${() => setOpen(false)}>
      <${ActForm} ...${{ label, explains, act, done, tone, reason, busy }} onClose=${() => setOpen(false)}>${children}<//>
    <//>`}`;
}

function ActForm({ label, explains, act, done, tone, reason, busy, onClose, children }) {
  const [why, setWhy] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const [key, setKey] = useState(newKey); // sent twice it is one act; changed, it is another
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const came = await act(why, new FormData(event.target), key);
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
    ${reason && html`<${Field} label=${reason === "required" ? "Reason" : "Reason (optional)"} hint="It is kept in the history and in the audit.">
      ${(id) => html`<input id=${id} maxlength="500" required=${reason === "required"} autocomplete="off" value=${why} onInput=${(event) => setWhy(event.target.value)} />`}<//>`}
    <${Trouble} problem=${problem} />
    <div class="buttons">
      <button type="button" class="button" onClick=${onClose}>Not now</button>
      <button type="submit" class=${`button ${tone || "main"}`} disabled=${isBusy}>${isBusy ? busy : label}</button>
    </div>
  </form>`;
}

// --- steps: one tick each, and the waits between them

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
      const cause = { waited: "wait", throttled: "gate", retried: "retry", failed: "retry" }[before.outcome] ?? "gap";
      drawn.push(html`<g class=${`gap gap-${cause}`}><title>${`${cause === "gap" ? "Nothing" : words(before.outcome)} for ${duration(wait)}`}</title>
        <rect x=${x + 1} y="4" width=${width - 2} height="18" rx="2" /><text x=${x + width / 2} y="16">${short(wait)}</text></g>`);
      x += width;
    }
    const height = 6 + (TALLEST - 6) * Math.sqrt(step.ms / most);
    drawn.push(html`<rect class=${`tick tick-${step.outcome}`} x=${x} y=${24 - height} width="4" height=${height} rx="1">
      <title>${`Step ${step.seq}: ${step.outcome}, ${number(step.rows)} rows, ${number(step.ms)} ms, ${moment(step.at)}`}</title></rect>`);
    x += 6;
  });
  const count = (outcome) => steps.filter((step) => step.outcome === outcome).length;
  const bad = ["retried", "throttled", "failed"].map((each) => [each, count(each)]).filter(([, n]) => n > 0).map(([each, n]) => `${n} ${each}`);
  const summary = `${label}: the last ${plural(steps.length, "step")}${bad.length ? `, ${bad.join(", ")}` : ""}`;
  return html`<div class="ribbon" tabindex="0" role="img" aria-label=${summary} ref=${frame}><svg width=${x} height="26" viewBox=${`0 0 ${x} 26`} aria-hidden="true">${drawn}</svg></div>`;
}

const short = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`);

// --- long lists: pages by cursor, of which only those near the window are kept and drawn

const KEPT_PAGES = 3;

// `load(cursor)` answers {rows, next}, `row` draws one of them. Another question is another list: it has another `key`.
// They are read again every few seconds, and whenever `turn` changes: after an act.
export function Pages({ load, row, columns, empty, every_s = 5, turn = 0 }) {
  const [pages, setPages] = useState([{ cursor: null, rows: null, height: 0 }]);
  const [problem, setProblem] = useState(null);
  const [shown, setShown] = useState(() => new Set([0]));
  const elements = useRef(new Map());
  const loading = useRef(new Set());
  const isGone = useRef(false);
  const round = useRef(0); // answers of a round before the last act say what was before it

  const fetchPage = async (n, cursor) => {
    if (loading.current.has(n)) return;
    loading.current.add(n);
    const mine = round.current;
    try {
      const { rows, next } = await load(cursor);
      if (isGone.current || mine !== round.current) return;
      setProblem(null);
      setPages((before) => {
        // It may be gone by now, or begin elsewhere: then it is asked for again.
        if (!before[n] || before[n].cursor !== cursor) return before.slice();
        const after = before.slice();
        after[n] = { ...after[n], cursor, rows, isOld: false };
        if (next === null) return after.slice(0, n + 1);
        // What follows may begin elsewhere now: it stays in sight until it is known again.
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
      if ((page.rows === null || page.isOld) && shown.has(n) && !problem) fetchPage(n, page.cursor); // what failed is for the clock below
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
    readAgain();
  }, [turn]);
  useEffect(() => {
    const pause_s = every_s || (problem && willPass(problem) ? 5 : 0);
    if (!pause_s) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && readAgain(), pause_s * 1000);
    return () => clearInterval(timer);
  });

  const keepElement = (n) => (element) => {
    if (element === null) return elements.current.delete(n);
    elements.current.set(n, element);
    const height = element.offsetHeight;
    if (pages[n]?.rows && near(n) && height > 0) pages[n].height = height; // for the gap that it leaves behind
    return undefined;
  };

  const isEmpty = pages.length === 1 && pages[0].rows?.length === 0; // it is still watched: something may begin
  return html`${pages.map((page, n) => html`<tbody key=${n} data-page=${n} ref=${keepElement(n)}>
      ${isEmpty ? html`<tr><td class="whole" colspan=${columns}>${empty}</td></tr>` : page.rows !== null && near(n)
        ? page.rows.map(row)
        : html`<tr aria-hidden="true"><td class="whole" colspan=${columns}><div class="gap-rows" style=${{ height: `${page.height || 40}px` }}>${page.rows === null && shown.has(n) && !problem ? "Loading…" : ""}</div></td></tr>`}
    </tbody>`)}
    ${problem && html`<tbody><tr><td class="whole" colspan=${columns}><${Trouble} problem=${problem} /></td></tr></tbody>`}`;
}
