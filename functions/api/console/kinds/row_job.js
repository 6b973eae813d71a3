// Row jobs: how far a file is, its rows, and which of them to work on again. The contract is in ../kinds.js.
import { post } from "../api.js";
import { number } from "../format.js";
import { html, useState } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { Answer, Cell, Empty, Section, Table, Trouble } from "../parts.js";

function laneName(key) {
  if (key === "ingest") return "Reading the file";
  const [, slot, again] = /^work:(\d+):(\d+)$/.exec(key) ?? [];
  return slot === undefined ? null : `Rows, lane ${Number(slot) + 1}${again > 0 ? `, again ${again}` : ""}`;
}

const facts = ({ params }) => [
  params.connection && ["Connection", params.connection],
  params.retailers?.length && ["Retailers", params.retailers.join(", ")],
  params.canary && ["Canary", `${number(params.canary)} rows`],
].filter(Boolean);

const COLUMNS = ["Row", "Title", "Status", "Attempts", "Price", "Last error"];

function Again({ run, job, reload }) {
  const [state, setState] = useState({});
  const ask = (dry_run) => async () => {
    setState({ busy: true });
    try {
      const told = await post(`row-jobs/${run.id}/reprocess`, { dry_run });
      setState(dry_run ? { count: told.rows } : { done: told.rows });
      if (!dry_run) reload();
    } catch (error) {
      setState({ error });
    }
  };
  if (!job.failed_items && state.done === undefined) return null;
  return html`<p>
    ${state.count === undefined
      ? html`<button type="button" disabled=${state.busy} onClick=${ask(true)}>Reprocess failed rows</button>`
      : html`<button type="button" disabled=${!state.count} onClick=${ask(false)}>Reprocess ${number(state.count)} rows</button>`}
    ${state.count === 0 ? " No row has attempts left." : ""}${state.done !== undefined ? ` ${number(state.done)} rows will be processed again.` : ""}
    ${state.error && html`<${Trouble} problem=${state.error} />`}
  </p>`;
}

function Rows({ run, reload }) {
  const job = useAnswer(`row-jobs/${run.id}`, {}, 3);
  const items = useAnswer(`row-jobs/${run.id}/items`, { limit: 50 }, 5);
  return html`<${Section} title="Rows">
    <${Answer} of=${job}>${(found) => html`<p>${number(found.processed_items)} of ${number(found.total_items)} rows processed:
      ${" "}${number(found.done)} found, ${number(found.not_found)} not found, ${number(found.errors)} failed, ${number(found.skipped)} skipped.</p>
      <${Again} run=${run} job=${found} reload=${reload} />`}<//>
    <${Answer} of=${items}>${(found) => (found.items.length ? html`<${Table} caption="The first rows of the file" columns=${COLUMNS}>${found.items.map((row) => html`<tr key=${row.row_no}>
      ${[row.row_no, row.title ?? row.sku, row.status, row.attempts, row.price, row.last_error].map((value, n) => html`<${Cell} name=${COLUMNS[n]}>${value ?? ""}<//>`)}</tr>`)}<//>` : html`<${Empty}>No rows yet.<//>`)}<//>
  <//>`;
}

export default { title: "Row job", facts, laneName, tabs: [{ path: "rows", title: "Rows", View: Rows }] };
