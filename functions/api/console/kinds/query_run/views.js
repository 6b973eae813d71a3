// The views of remote queries: the editor, what polling knows, the rows, what was left in Marketing Cloud.
import { post } from "../../api.js";
import { number, plural, words } from "../../format.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Ago, Answer, Bar, Cell, Empty, Field, Heading, Link, NewRun, Section, Status, Table, Trouble, Until, say } from "../../parts.js";

const PAGE = 50;

// --- the editor

// As high as what is in it, within reason. Ctrl+Enter starts.
function Editor({ id }) {
  const [text, setText] = useState("");
  const lines = text.split("\n").length;
  const keys = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  };
  return html`<textarea id=${id} name="sql_text" required maxlength="64000" rows=${Math.min(24, Math.max(10, lines + 1))} spellcheck=${false} autocapitalize="off" autocomplete="off"
    placeholder="select EmailAddress, FirstName from Subscribers where Status = 'Active'" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}></textarea>`;
}

export function New({ kind }) {
  const connections = useAnswer("connections", { provider: "mce", limit: 100 }, 0);
  const ready = connections.data?.connections.filter((each) => each.ready) ?? [];
  const [chosen, setChosen] = useState(null);
  const connection = ready.find((each) => each.id === chosen) ?? ready[0];
  const request = (given) => {
    const body = { sql_text: given.get("sql_text"), mid: given.get("mid").trim(), connection: connection?.id };
    for (const name of ["eid", "snippet_name"]) if (given.get(name).trim()) body[name] = given.get(name).trim();
    const columns = given.get("columns").split(",").map((each) => each.trim()).filter(Boolean);
    if (columns.length > 0) body.columns = columns.map((name) => ({ name }));
    return { path: "query-runs", body };
  };
  const none = connections.data !== null && ready.length === 0;
  return html`<${NewRun} kind=${kind} request=${request} isReady=${Boolean(connection)}>
    ${none && html`<p class="trouble" role="alert">There is no Marketing Cloud connection yet. An admin can <${Link} to="connections">add one<//>.</p>`}
    <fieldset><legend>Query</legend>
      <${Field} label="SQL" hint="One SELECT. Give every column a name. Ctrl+Enter starts it.">${(id) => html`<${Editor} id=${id} />`}<//>
      <${Field} label="Snippet name (optional)" hint="A name to find it by.">${(id) => html`<input id=${id} name="snippet_name" maxlength="200" autocomplete="off" />`}<//>
    </fieldset>
    <fieldset><legend>Marketing Cloud</legend>
      <${Field} label="Connection" hint=${html`The account to use. <${Link} to="connections">Manage connections<//>`}>${(id) => html`<select id=${id} value=${connection?.id} onChange=${(event) => setChosen(event.target.value)} required>
        ${ready.map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select>`}<//>
      <div class="pair">
        <${Field} label="Business unit (MID)" key=${connection?.id}>${(id) => html`<input id=${id} name="mid" required pattern="[0-9]{1,12}" title="Up to 12 digits" inputmode="numeric" autocomplete="off" defaultValue=${connection?.settings?.mid ?? ""} />`}<//>
        <${Field} label="Enterprise (EID, optional)">${(id) => html`<input id=${id} name="eid" pattern="[0-9]{1,12}" title="Up to 12 digits" inputmode="numeric" autocomplete="off" />`}<//></div>
      <${Field} label="Columns (optional)" hint="Names, separated by commas: only for queries that don't name theirs, such as SELECT *.">${(id) => html`<input id=${id} name="columns" autocomplete="off" />`}<//>
    </fieldset>
    <${Trouble} problem=${connections.problem} />
  <//>`;
}

// --- the tab Query: where the decision tree is

const STAGES = [["admit", "Slot"], ["prepare", "Prepare"], ["poll", "Poll"], ["verify", "Read"]];
const STAGE_OF = { admit: 0, target: 1, definition: 1, start: 1, poll: 2, verify: 3 };
const ENDED = { ready: "succeeded", failed: "failed", canceled: "canceled" };

function Stages({ of }) {
  const at = of.status === "ready" ? STAGES.length : (STAGE_OF[of.phase] ?? 0);
  const polls = `${plural(of.poll_count, "poll")}, ${plural(of.checks.rest_checks, "check")}`;
  const said = { poll: of.poll_count > 0 ? polls : "", verify: of.checks.rowset_ready_attempts > 0 ? plural(of.checks.rowset_ready_attempts, "read") : "" };
  return html`<ol class="stages" aria-label="Stages">${STAGES.map(([name, title], n) => {
    const here = n === at ? ENDED[of.status] ?? (at === 0 ? "waiting" : "running") : null;
    const state = n < at ? "done" : here === null ? "" : { running: "active", waiting: "active", failed: "failed" }[here] ?? "";
    return html`<li class=${`stage ${state && `stage-${state}`}`} key=${name}><span class="stage-name">${title}</span>
      ${n < at ? html`<${Status} of="succeeded" />` : here ? html`<${Status} of=${here} />` : html`<span class="quiet">Not started</span>`}
      <span class="quiet">${said[name] ?? ""}</span></li>`;
  })}</ol>`;
}

export function QueryTab({ run }) {
  const isOver = run.finished_at !== null;
  const answer = useAnswer(`query-runs/${run.id}`, {}, isOver ? 30 : 2);
  return html`<${Answer} of=${answer}>${(told) => html`
    <p class="doing" aria-live="polite"><strong>${told.doing}</strong></p>
    ${told.partial_available && told.status === "running" && html`<p class="quiet">Rows are visible, but the query may still be writing. They are shown when it has finished.</p>`}
    <${Stages} of=${told} />
    ${told.warning && html`<p class="trouble">Marketing Cloud says: ${told.warning}</p>`}
    ${told.note && html`<p class="quiet">${told.note}</p>`}
    <dl class="facts">${known(told).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Section} title="SQL"><${Sql} of=${told.sql_text} /><//>`}<//>`;
}

const known = (told) => [
  ["Polls", number(told.poll_count)],
  told.poll_started_at && ["Running since", html`<${Ago} at=${told.poll_started_at} />`],
  told.row_count !== null && ["Rows", number(told.row_count)],
  told.results_expire_at && ["Rows expire", Date.parse(told.results_expire_at) > Date.now() ? html`<${Until} at=${told.results_expire_at} />` : html`<${Ago} at=${told.results_expire_at} />`],
  told.columns_from && ["Columns from", told.columns_from],
  ["Still-running checks", number(told.checks.rest_checks)],
  ["Row probes", number(told.checks.row_probe_attempts)],
  told.checks.stuck_fallbacks > 0 && ["Without news for 3 min", plural(told.checks.stuck_fallbacks, "time")],
  told.starts > 1 && ["Starts", "2: the first left no trace"],
  told.task_id && ["Task", html`<code>${told.task_id}</code>`],
  told.query_definition_id && ["Query definition", html`<code>${told.query_definition_id}</code>`],
].filter(Boolean);

const WORDS = /(--[^\n]*|\/\*[\s\S]*?\*\/)|('(?:[^']|'')*')|\b(select|distinct|top|from|where|and|or|not|in|is|null|like|between|join|inner|left|right|full|outer|cross|on|group|by|order|having|union|all|case|when|then|else|end|as|with|asc|desc|exists)\b/gi;
function Sql({ of }) {
  const parts = [];
  let at = 0;
  for (const found of of.matchAll(WORDS)) {
    const [text, comment, quoted] = found;
    parts.push(of.slice(at, found.index), html`<span class=${comment ? "sql-comment" : quoted ? "sql-text" : "sql-word"}>${text}</span>`);
    at = found.index + text.length;
  }
  return html`<pre class="json sql" tabindex="0">${parts}${of.slice(at)}</pre>`;
}

// --- the tab Rows

export function RowsTab({ run }) {
  const [page, setPage] = useState(1);
  if (run.finished_at === null) return html`<${Empty}><p>Rows are shown when the query has finished.</p><//>`;
  if (run.status !== "succeeded") return html`<${Empty}><p>The query didn't finish, so it has no rows.</p><//>`;
  return html`<${Rows} id=${run.id} page=${page} setPage=${setPage} />`;
}

function Rows({ id, page, setPage }) {
  const answer = useAnswer(`query-runs/${id}/rows`, { page, page_size: PAGE }, 0);
  return html`<${Answer} of=${answer}>${(told) => {
    const names = told.columns.map((each) => each.name);
    const pages = Math.max(1, Math.ceil(told.count / PAGE));
    const side = html`<${Download} id=${id} />`;
    return html`<${Section} title="Rows" note=${plural(told.count, "row")} side=${side}>
      ${told.count === 0 ? html`<${Empty}><p>The query answered no rows.</p><//>` : html`<${Table} caption="Rows of the result" columns=${names}><tbody>
        ${told.rows.map((row, n) => html`<tr key=${n}>${names.map((name) => html`<${Cell} name=${name}>${row[name] === null ? html`<span class="quiet">null</span>` : row[name]}<//>`)}</tr>`)}</tbody><//>`}
      ${pages > 1 && html`<div class="buttons"><button type="button" class="button" disabled=${page === 1} onClick=${() => setPage(page - 1)}>Previous</button>
        <span class="quiet">Page ${number(page)} of ${number(pages)}</span>
        <button type="button" class="button" disabled=${page === pages} onClick=${() => setPage(page + 1)}>Next</button></div>`}
    <//>`;
  }}<//>`;
}

// The file is written in the cloud first: asked for until there is a link, which then downloads it.
const ASK_AGAIN_MS = 1500;
function Download({ id }) {
  const [told, setTold] = useState(null);
  const [problem, setProblem] = useState(null);
  const isGone = useRef(false);
  useEffect(() => () => {
    isGone.current = true;
  }, []);
  const prepare = async () => {
    setProblem(null);
    try {
      for (;;) {
        const came = await post(`query-runs/${id}/download`);
        if (isGone.current) return;
        setTold(came);
        if (came.url !== null) {
          location.assign(came.url);
          say("Downloading.");
          return setTold(null);
        }
        await new Promise((done) => setTimeout(done, ASK_AGAIN_MS));
      }
    } catch (error) {
      setTold(null);
      setProblem(error);
    }
  };
  return html`${problem && html`<${Trouble} problem=${problem} />`}
    ${told && html`<span class="quiet" role="status">Preparing the file: ${number(told.rows_written)} of ${plural(told.rows, "row")}</span>`}
    <button type="button" class="button" disabled=${told !== null} onClick=${prepare}>Download CSV</button>`;
}

// --- Leftovers

const KINDS = { data_extension: "Data extension", query_definition: "Query definition" };

export function Leftovers({ kind }) {
  const answer = useAnswer("query-run-assets", { limit: 200 }, 10);
  return html`<${Heading} title="Leftovers" /><${Answer} of=${answer}>${({ assets, unknown }) => html`
    <${Section} title="From ended runs" note="removed automatically">
      ${assets.length === 0 ? html`<${Empty}><p>Nothing is left in Marketing Cloud.</p><//>` : html`<${Table} caption="Left by ended runs" columns=${["Run", "What", "Run status", "Created", "Why it is still there"]}><tbody>
        ${assets.map((each) => html`<tr key=${`${each.run_id} ${each.epoch} ${each.kind}`}><${Cell}><${Link} to=${`runs/${each.run_id}`}><code>${each.run_id.slice(-8)}</code><//><//>
          <${Cell} name="What">${KINDS[each.kind]}<//><${Cell} name="Run status"><${Status} of=${each.run_status} />${each.run_outcome && each.run_outcome !== each.run_status && html` <span class="quiet">${words(each.run_outcome)}</span>`}<//>
          <${Cell} name="Created"><${Ago} at=${each.made_at} /><//><${Cell} name="Why it is still there" className="long">${each.why}<//></tr>`)}</tbody><//>`}
    <//>
    <${Section} title="Unknown" note="never removed: another deployment or tenant may use the same account">
      ${unknown.length === 0 ? html`<${Empty}><p>Nothing in Marketing Cloud has a name like Baton's that no run of yours made.</p><//>` : html`<${Table} caption="Unknown" columns=${["Key", "What", "Account", "First seen", "Last seen"]}><tbody>
        ${unknown.map((each) => html`<tr key=${`${each.account} ${each.kind} ${each.key}`}><${Cell}><code>${each.key}</code><//><${Cell} name="What">${KINDS[each.kind]}<//><${Cell} name="Account"><code>${each.account}</code><//>
          <${Cell} name="First seen"><${Ago} at=${each.first_seen_at} /><//><${Cell} name="Last seen"><${Ago} at=${each.last_seen_at} /><//></tr>`)}</tbody><//>`}
    <//>`}<//>`;
}

// --- Polls to ready: of the latest runs that became ready

const BUCKETS = [2, 4, 8, 16, 32, 64, Infinity];
const LATEST = 200;

export function Polls() {
  const answer = useAnswer("query-runs", { status: "ready", limit: LATEST }, 30);
  return html`<${Heading} title="Polls to ready" /><${Answer} of=${answer}>${({ query_runs: runs }) => {
    const counts = BUCKETS.map((most, n) => runs.filter((run) => run.poll_count <= most && run.poll_count > (BUCKETS[n - 1] ?? -1)).length);
    const highest = Math.max(1, ...counts);
    const name = (n) => (BUCKETS[n] === Infinity ? `more than ${BUCKETS[n - 1]}` : `${(BUCKETS[n - 1] ?? -1) + 1} – ${BUCKETS[n]}`);
    return html`<${Section} title="How many polls it took" note=${runs.length > 0 ? `the latest ${plural(runs.length, "query", "queries")} that became ready` : null}>
      ${runs.length === 0 ? html`<${Empty}><p>No query has become ready yet.</p><//>` : html`<${Table} caption="Queries by how many polls they took" columns=${["Polls", "Queries", { name: "Share", className: "wide" }]}><tbody>
        ${counts.map((count, n) => html`<tr key=${n}><${Cell} className="nowrap">${name(n)}<//><${Cell} name="Queries">${number(count)}<//><${Cell} name="Share"><${Bar} done=${count} all=${highest} label=${`${name(n)} polls`} /><//></tr>`)}</tbody><//>`}
    <//>`;
  }}<//>`;
}
