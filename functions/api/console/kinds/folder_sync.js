// Folder sync: what starts one, and what the Overview of a run says about it. The contract, with everything else that may stand here,
// is in ../kinds.js.
import { html } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { Field, Link, NewRun } from "../parts.js";

const facts = ({ params }) => [["Folder", params.path || "/"], ["Connection", params.connection]];

function New({ kind }) {
  const connections = useAnswer("connections", { provider: "dropbox", limit: 100 }, 0);
  const ready = connections.data?.connections.filter((each) => each.ready) ?? [];
  const request = (given) => ({ path: "runs", body: { kind: kind.name, params: { connection: given.get("connection"), path: given.get("path").trim() } } });
  return html`<${NewRun} kind=${kind} request=${request} isReady=${ready.length > 0}>
    ${connections.data !== null && ready.length === 0 && html`<p class="trouble" role="alert">There is no Dropbox connection yet. An admin can <${Link} to="connections">add one<//>.</p>`}
    <${Field} label="Connection">${(id) => html`<select id=${id} name="connection" required>${ready.map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select>`}<//>
    <${Field} label="Folder (optional)" hint="As /photos. Empty: everything.">${(id) => html`<input id=${id} name="path" maxlength="1000" pattern="(\\/[^\\/]+)*\\/?" title="A path that starts with a slash, as /photos" autocomplete="off" />`}<//><//>`;
}

export default { title: "Folder sync", many: "Folder syncs", New, facts, laneName: (key) => (key === "pages" ? "Pages" : null) };
