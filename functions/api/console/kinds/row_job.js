// Row jobs: a file is uploaded and looked at, its rows are worked on at a pace that finds itself. Loaded when opened.
import { number } from "../format.js";
import { later } from "../parts.js";

const view = (name) => later(async () => (await import("./row_job/views.js"))[name]);

function laneName(key) {
  if (key === "ingest") return "Reading the file";
  if (key === "scan") return "Looking for files";
  if (key.startsWith("take:")) return "Taking a file";
  const [, slot, again] = /^work:(\d+):(\d+)$/.exec(key) ?? [];
  return slot === undefined ? null : `Rows, lane ${Number(slot) + 1}${again > 0 ? `, again ${again}` : ""}`;
}

const facts = ({ params }) => [
  params.retailers?.length && ["Retailers", params.retailers.join(", ")],
  params.canary && ["Canary", `${number(params.canary)} rows`],
].filter(Boolean);

export default {
  title: "Row job",
  New: later(async () => (await import("./row_job/new.js")).default),
  tabs: [{ path: "rows", title: "Rows", View: view("Rows") }, { path: "pace", title: "Pace", View: view("Pace") }],
  facts,
  laneName,
  words: { cancel: "Slices in hand end, up to 5 seconds. Rows that are done stay.", retry: "Reads on and works on the rows that are open." },
};
