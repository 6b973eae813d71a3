// Rows as files: results to take home at any time, and failed rows to be fixed and brought back.
import { ask, get, newKey, post } from "../../api.js";
import { bytes, number, plural } from "../../format.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Ago, Answer, Bar, Cell, Empty, NONE, STARTS, Section, Status, Table, Trouble, Until, say, useMay, useTurn } from "../../parts.js";
import { arrived, put } from "./new.js";
import { ofJob } from "./views.js";

const STATES = { preparing: ["running", "Preparing"], ready: ["succeeded", "Ready"], failed: ["failed", "Failed"], canceled: ["canceled", "Canceled"], expired: ["canceled", "Expired"] };
const WHICH = { all: "All rows", failed: "Failed rows" };

export default ofJob(({ run, reload }) => {
  const [turn, again] = useTurn();
  const mayAct = useMay(STARTS);
  const canFix = run.params.job_type !== "image";
  return html`<${Exports} ...${{ run, turn, again, canFix }} />${canFix && html`<${Fixes} ...${{ run, mayAct, reload }} />`}`;
});

function Exports({ run, turn, again, canFix }) {
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [every_s, setEvery] = useState(2);
  const exports = useAnswer(`row-jobs/${run.id}/exports`, { limit: 20 }, every_s, turn);
  const isOpen = exports.data?.exports.some((each) => each.status === "preparing");
  useEffect(() => setEvery(isOpen === false ? 15 : 2), [isOpen]);
  const start = (format, rows) => async () => {
    setBusy(true);
    setProblem(null);
    try {
      await ask("POST", `row-jobs/${run.id}/export`, { query: { format, rows }, headers: { "idempotency-key": newKey() } });
      setEvery(2);
      again();
    } catch (error) {
      setProblem(error);
    }
    setBusy(false);
  };
  const button = (label, format, rows) => html`<button type="button" class="button" disabled=${isBusy} onClick=${start(format, rows)}>${label}</button>`;
  const side = html`${button("Export CSV", "csv", "all")} ${button("Export XLSX", "xlsx", "all")} ${canFix && html`${button("Download failed rows", "csv", "failed")} ${button("Failed rows as XLSX", "xlsx", "failed")}`}`;
  return html`<${Section} title="Exports" note="rows as they are when the export begins; files are kept for 7 days" side=${side}>
    <${Trouble} problem=${problem} />
    <${Answer} of=${exports}>${({ exports: found }) => (found.length === 0 ? html`<${Empty}><p>No exports yet.</p><//>` : html`<${Table} caption="Exports, newest first" columns=${["Asked for", "Rows", "Status", "Files", "Expires"]}><tbody>
      ${found.map((each) => html`<tr key=${each.id}><${Cell} name="Asked for"><${Ago} at=${each.created_at} /><//>
        <${Cell} name="Rows">${WHICH[each.rows]}, ${each.format.toUpperCase()}<//>
        <${Cell} name="Status"><${Status} of=${STATES[each.status][0]}>${STATES[each.status][1]}<//>${each.status === "preparing" && each.total > 0 && html` <${Bar} done=${each.written} all=${each.total} label="Rows written" />`}${each.error && html`<div class="error-line">${each.error.message}</div>`}<//>
        <${Cell} name="Files" className="long">${each.files.length === 0 ? NONE : each.files.map((file, n) => html`<${Download} key=${n} ...${{ run, each, file, n }} />`)}<//>
        <${Cell} name="Expires">${each.status === "ready" ? html`<${Until} at=${each.expires_at} />` : NONE}<//></tr>`)}</tbody><//>`)}<//>
  <//>`;
}

// A link is made when it is asked for: one in the page would outlive the page.
function Download({ run, each, file, n }) {
  const [problem, setProblem] = useState(null);
  const open = async () => {
    try {
      const { files } = await get(`row-jobs/${run.id}/exports/${each.id}`);
      location.assign(files[n].url);
    } catch (error) {
      setProblem(error);
    }
  };
  return html`<div><button type="button" class="button file" onClick=${open}>Download ${file.name}</button> <span class="quiet">${plural(file.rows, "row")}, ${bytes(file.bytes)}</span><${Trouble} problem=${problem} /></div>`;
}

// --- fixed rows

function Fixes({ run, mayAct, reload }) {
  const [turn, again] = useTurn();
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const fixes = useAnswer(`row-jobs/${run.id}/fixes`, { limit: 20 }, run.finished_at === null ? 2 : 15, turn);
  const isGone = useRef(false);
  const request = useRef(null);
  useEffect(() => () => {
    isGone.current = true;
    request.current?.abort();
  }, []);
  const take = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    setBusy(true);
    setProblem(null);
    try {
      if (file.size === 0) throw new Error(`${file.name} is empty.`);
      const given = await post("row-jobs/uploads", { name: file.name.slice(-200), size: file.size, hold: true, job_type: "csv" });
      await put(given, file, request, () => {});
      await arrived(given.file_id, isGone);
      if (isGone.current) return;
      await post(`row-jobs/${run.id}/resubmit`, { file_id: given.file_id });
      say("Uploaded. Rows that match are processed again.");
      again();
      await reload();
    } catch (error) {
      if (!isGone.current && error.name !== "AbortError") setProblem(error);
    }
    if (!isGone.current) setBusy(false);
  };
  const side = mayAct && html`<label class=${`button ${isBusy ? "busy" : ""}`}>${isBusy ? "Uploading…" : "Upload fixed rows"}<input type="file" class="hidden" accept=".csv,.tsv,.txt,.xlsx" disabled=${isBusy} onChange=${take} /></label>`;
  return html`<${Section} title="Fixed rows" note="download failed rows, change them in a spreadsheet, upload the file, XLSX or CSV" side=${side}>
    <${Trouble} problem=${problem} />
    <${Answer} of=${fixes}>${({ fixes: found }) => (found.length === 0 ? html`<${Empty}><p>No fixed rows have been uploaded. Keep the column <code>baton_key</code>: it says which row is which.</p><//>` : html`<${Table} caption="Files of fixed rows, newest first" columns=${["File", "Uploaded", { name: "Processed again", className: "count" }, { name: "Unchanged", className: "count" }, { name: "Didn't match", className: "count" }, "Why"]}><tbody>
      ${found.map((each) => html`<tr key=${each.file_id}><${Cell} name="File" className="long">${each.name}${each.finished_at === null && html` <${Status} of="running">Reading<//>`}<//><${Cell} name="Uploaded"><${Ago} at=${each.created_at} /><//>
        <${Cell} name="Processed again" className="count">${number(each.fixed)}<//><${Cell} name="Unchanged" className="count">${number(each.unchanged)}<//><${Cell} name="Didn't match" className="count">${number(each.unmatched)}<//>
        <${Cell} name="Why" className="long">${each.examples.length === 0 ? NONE : html`<ul class="plain">${each.examples.slice(0, 5).map((why, n) => html`<li key=${n}>${why.row ? `Row ${why.row}: ` : ""}${why.message}</li>`)}</ul>`}<//></tr>`)}</tbody><//>`)}<//>
  <//>`;
}
