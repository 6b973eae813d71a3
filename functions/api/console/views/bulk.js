// One action on every run of a filter: counted first, tried on a few if that helps, then applied in batches.
import { get, post } from "../api.js";
import { plural, sentence, words } from "../format.js";
import { html, useEffect, useState } from "../vendor/preact.js";
import { Bar, Dialog, Field, Link, Status, Trouble, runName, say, useDialog } from "../parts.js";

const BULK = { cancel: "Cancel", pause: "Pause", resume: "Resume", retry: "Retry", wake: "Run now" };
const TRIAL = 5;

// `actions`: those that are offered. `labels`: what may be chosen as a label, to narrow the filter. `what`: one and many of them.
export function Bulk({ filter, label = "Bulk actions", tone = "", ...rest }) {
  const open = useDialog((close) => html`<${Dialog} title=${rest.title ?? label} onClose=${close}><${BulkForm} filter=${filter} ...${rest} onClose=${close} /><//>`);
  return html`<button type="button" class=${`button ${tone}`} onClick=${open}>${label}</button>`;
}

// Every batch until nothing is left. `onBatch(done, refused)` hears of each; `goesOn()` says whether to go on.
export async function applyAll(request, token, onBatch = () => {}, goesOn = () => true) {
  let [done, refused, next] = [0, 0, token];
  while (next !== null && goesOn()) {
    const answer = await post("runs/bulk", { ...request, mode: "apply", token: next });
    done += answer.done;
    refused += Object.values(answer.refused).reduce((sum, n) => sum + n, 0);
    next = answer.next;
    onBatch(done, refused);
  }
  return { done, refused, isAll: next === null };
}

function BulkForm({ filter, actions = ["cancel", "pause", "resume", "retry"], what = ["run", "runs"], explains = null, labels = null, labelName = "Label", onDone = () => {}, onClose }) {
  const [action, setAction] = useState(actions[0]);
  const [chosen, setChosen] = useState("");
  const [reason, setReason] = useState("");
  const [preview, setPreview] = useState(null);
  const [trial, setTrial] = useState(null);
  const [work, setWork] = useState(null);
  const [problem, setProblem] = useState(null);
  const [stop] = useState({ asked: false });
  const named = Object.fromEntries(Object.entries({ ...filter, ...(chosen ? { label: chosen } : {}) }).filter(([, value]) => value));
  const request = { action, filter: named, reason };
  const count = () => post("runs/bulk", { ...request, reason: reason || "preview", mode: "preview" }).then(setPreview, setProblem);
  const change = (set) => (event) => {
    set(event.target.value);
    setPreview(null);
  };

  useEffect(() => () => {
    stop.asked = true; // closing the dialog stops it
  }, []);
  useEffect(() => { // with nothing to choose, it is counted at once
    if (actions.length === 1 && labels === null) count();
  }, []);

  const apply = async (token, all) => {
    let told = { done: 0, refused: 0, isAll: false };
    setWork({ at: 0, all });
    try {
      told = await applyAll(request, token, (done, refused) => {
        told = { done, refused, isAll: false };
        setWork({ at: done + refused, all });
      }, () => !stop.asked);
      onDone();
      say(`${BULK[action]}: ${plural(told.done, ...what)} done${told.refused ? `, ${told.refused} skipped because they had changed` : ""}${told.isAll ? "" : "; stopped before the rest"}.`);
      onClose();
    } catch (error) {
      if (told.done > 0) say(`${BULK[action]}: ${plural(told.done, ...what)} done, then an error stopped it. ${error.message}`, "bad");
      setWork(null);
      setPreview(null);
      setProblem(error);
    }
  };
  const submit = async (event) => {
    event.preventDefault();
    setProblem(null);
    if (preview === null) return count();
    if (event.submitter?.value !== "trial") return apply(preview.next, preview.count);
    try {
      const tried = await post("runs/bulk", { ...request, mode: "apply", token: preview.next, most: TRIAL });
      onDone();
      setTrial(tried);
    } catch (error) {
      setPreview(null);
      setProblem(error);
    }
    return undefined;
  };

  if (work) {
    return html`<p role="status">${plural(work.at, ...what)} of ${work.all}…</p><${Bar} done=${work.at} all=${work.all} label="Done" />
      <div class="buttons"><button type="button" class="button" onClick=${() => { stop.asked = true; }}>Stop after this batch</button></div>`;
  }
  if (trial) return html`<${Trial} of=${trial} what=${what} onRest=${() => apply(trial.next, trial.left)} onClose=${onClose} />`;
  const isReady = preview && preview.count > 0;
  return html`<form onSubmit=${submit}>
    <p class="quiet">${explains ?? (Object.keys(named).length === 0 ? "All runs in this tenant." : Object.entries(named).map(([name, value]) => `${sentence(name)}: ${words(value)}`).join(", "))}</p>
    ${labels && html`<${Field} label=${labelName}>${(id) => html`<select id=${id} value=${chosen} onChange=${change(setChosen)}><option value="">All</option>${labels.map((each) => html`<option value=${each}>${each}</option>`)}</select>`}<//>`}
    ${actions.length > 1 && html`<${Field} label="Action">${(id) => html`<select id=${id} value=${action} onChange=${change(setAction)}>${actions.map((value) => html`<option value=${value}>${BULK[value]}</option>`)}</select>`}<//>`}
    <${Field} label="Reason" hint="Kept in each run's timeline and in the audit log.">${(id) => html`<input id=${id} required maxlength="500" autocomplete="off" value=${reason} onInput=${(event) => setReason(event.target.value)} />`}<//>
    <${Trouble} problem=${problem} />
    ${preview && html`<p role="status" class="preview">${preview.count === 0 ? `There are no ${what[1]} to ${BULK[action].toLowerCase()}.` : html`This will ${BULK[action].toLowerCase()} <strong>${plural(preview.count, ...what)}</strong>. ${sentence(what[1])} that start from now on are not affected.`}</p>`}
    <div class="buttons">
      <button type="button" class="button" onClick=${onClose}>Back</button>
      ${isReady && action === "retry" && preview.count > TRIAL && html`<button type="submit" key="trial" value="trial" class="button">Try ${TRIAL} first</button>`}
      ${isReady
        ? html`<button type="submit" key="apply" class=${`button ${action === "cancel" ? "danger" : "main"}`}>${BULK[action]} ${plural(preview.count, ...what)}</button>`
        : html`<button type="submit" key="preview" class="button main">Preview</button>`}
    </div>
  </form>`;
}

// A few of them, watched until they have ended; then the rest, or not.
function Trial({ of, what, onRest, onClose }) {
  const [runs, setRuns] = useState([]);
  useEffect(() => {
    let timer = null;
    let isOver = false;
    const look = async () => {
      const told = await Promise.all(of.runs.map((id) => get(`runs/${id}`).catch(() => null)));
      if (isOver) return;
      setRuns(told.filter(Boolean));
      timer = setTimeout(look, 2000);
    };
    look();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, []);
  const count = (state) => runs.filter((run) => run.status === state).length;
  return html`<p role="status">${plural(of.done, ...what)} retried: ${count("succeeded")} succeeded, ${count("failed")} failed again, ${of.done - runs.filter((run) => run.finished_at).length} still running.</p>
    <ul class="trial">${runs.map((run) => html`<li key=${run.id}><${Status} of=${run.state} /> <${Link} to=${`runs/${run.id}`}>${runName(run)}<//></li>`)}</ul>
    <div class="buttons"><button type="button" class="button" onClick=${onClose}>Stop here</button>
      ${of.next && html`<button type="button" class="button main" onClick=${onRest}>Retry the other ${plural(of.left, ...what)}</button>`}</div>`;
}
