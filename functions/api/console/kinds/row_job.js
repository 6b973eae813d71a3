// Row jobs: a file is uploaded and looked at, its rows are worked on at a pace that finds itself. Loaded when opened.
import { post } from "../api.js";
import { number, plural } from "../format.js";
import { html } from "../vendor/preact.js";
import { Action, STARTS, later, useMay } from "../parts.js";

const view = (name) => later(async () => (await import("./row_job/views.js"))[name]);
const pending = (name) => later(async () => (await import("./row_job/pending.js"))[name]);

function laneName(key) {
  if (key === "ingest") return "Reading the file";
  if (key === "export") return "Writing the file";
  if (key.startsWith("fix:")) return "Reading fixed rows";
  if (key.startsWith("unkeep:")) return "Clearing the snapshot";
  if (key === "scan") return "Looking for files";
  if (key.startsWith("take:")) return "Taking a file";
  const [, slot, again] = /^work:(\d+):(\d+)$/.exec(key) ?? [];
  return slot === undefined ? null : `Rows, lane ${Number(slot) + 1}${again > 0 ? `, again ${again}` : ""}`;
}

const facts = ({ params }) => [
  params.retailers?.length && ["Retailers", params.retailers.join(", ")],
  params.canary && ["Canary", `${number(params.canary)} rows`],
].filter(Boolean);

const isHeld = (sentence) => /canary/.test(sentence ?? "");

// A job that waits after its first rows: the one thing that frees it is in the header, too.
function Actions({ run, reload }) {
  const mayAct = useMay(STARTS);
  const waits = !run.finished_at && run.why?.action === "promote";
  const promote = async (reason) => {
    await post(`row-jobs/${run.id}/promote`, { reason });
    await reload();
  };
  return mayAct && waits ? html`<${Action} label="Process all rows" tone="main" explains=${`The first ${plural(run.params.canary, "row")} are done. Process the rest of the file.`} action=${promote} done="Processing all rows." />` : null;
}

export default {
  title: "Row job",
  many: "Row jobs",
  Actions,
  New: later(async () => (await import("./row_job/new.js")).default),
  pages: [{ path: "pending", title: "Pending", View: pending("Dashboard") }],
  tabs: [{ path: "rows", title: "Rows", View: view("Rows") }, { path: "pending", title: "Pending", View: pending("Pending") },
    { path: "files", title: "Exports", View: later(async () => (await import("./row_job/files.js")).default) }, { path: "pace", title: "Pace", View: view("Pace") }],
  facts,
  continues: (sentence) => (isHeld(sentence) ? "when you process all rows" : null),
  laneName,
  words: { cancel: "Slices in hand end, up to 5 seconds. Rows that are done stay.", retry: "Reads on and works on the rows that are open." },
};
