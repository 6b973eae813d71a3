// Remote queries: an editor that starts one, what polling knows, the rows, what was left in Marketing Cloud. Loaded when opened.
import { later } from "../parts.js";

const view = (name) => later(async () => (await import("./query_run/views.js"))[name]);

const laneName = (key) => {
  if (key === "query") return "Query";
  const [, what] = /^(clean|export)\/\d+$/.exec(key) ?? [];
  return what ? { clean: "Clean-up", export: "CSV file" }[what] : null;
};

const facts = ({ params }) => [
  params.snippet_name && ["Snippet", params.snippet_name],
  ["Business unit (MID)", params.mid],
  params.eid && ["Enterprise (EID)", params.eid],
].filter(Boolean);

export default {
  title: "Remote query",
  many: "Remote queries",
  New: view("New"),
  pages: [{ path: "polls", title: "Polls to ready", View: view("Polls") }, { path: "leftovers", title: "Leftovers", View: view("Leftovers") }],
  tabs: [{ path: "query", title: "Query", View: view("QueryTab") }, { path: "rows", title: "Rows", View: view("RowsTab") }],
  facts,
  laneName,
};
