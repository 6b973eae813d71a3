// Sources: what is deployed and how much it can prove, try and estimate, rows with their lineage, the quarantine; and the
// tab of a run of one.
import { get, post } from "../../api.js";
import { moment, number, plural, words } from "../../format.js";
import { html, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Action, Ago, Answer, Badge, Bar, Cell, Empty, Field, Heading, Json, Link, Pages, Section, STARTS, Status, Table, Trouble, useMay, useTurn } from "../../parts.js";

const at = (kind, ...path) => ["work", kind.name, "sources", ...path].join("/");
const TONE = { complete: "good", "through T": "good", walked: "split", drifted: "drift", partial: "failed", replayed: "split" };
const STAGE = { active: "running", done: "succeeded", failed: "failed", canceled: "canceled" };

export const Claim = ({ of }) => (of ? html`<${Badge} kind=${TONE[of] ?? "split"}>${of}<//>` : html`<span class="quiet">Not read yet</span>`);

export default function Sources({ kind, path }) {
  const answer = useAnswer("sources", {}, 0);
  return html`<${Answer} of=${answer}>${({ sources }) => {
    const one = sources.find((each) => each.name === path[0]);
    return one ? html`<${One} key=${one.name} kind=${kind} of=${one} list=${path[1] ?? one.resources[0].name} />` : html`<${All} kind=${kind} of=${sources} />`;
  }}<//>`;
}

const COLUMNS = ["Source", "List", "Best claim", "Why", "Table"];

const All = ({ kind, of }) => html`<${Heading} title="Sources" />
  ${of.length === 0 ? html`<${Empty}><p>No sources are deployed. A source is a file in <code>sources/</code>: write one with <code>baton source new</code>.</p><//>`
    : html`<${Table} caption="Sources by name, with what a run can prove" columns=${COLUMNS}>
      <tbody>${of.flatMap((each) => each.resources.map((list) => html`<tr key=${`${each.name}/${list.name}`}>
        <${Cell}><${Link} to=${at(kind, each.name, list.name)}>${each.name}<//><//>
        <${Cell} name="List">${list.name}<//>
        <${Cell} name="Best claim"><${Claim} of=${list.claim} /><//>
        <${Cell} name="Why">${list.reason}.${list.better && html` <span class="quiet">${list.better}</span>`}<//>
        <${Cell} name="Table"><code>${list.table}</code><//></tr>`))}</tbody>
    <//>`}`;

function One({ kind, of, list }) {
  const may = useMay(STARTS);
  const [turn, again] = useTurn();
  const one = of.resources.find((each) => each.name === list) ?? of.resources[0];
  return html`<${Heading} title=${`${of.name}: ${one.name}`} />
    <dl class="facts">
      <div><dt>Best claim</dt><dd><${Claim} of=${one.claim} /> ${one.reason}.</dd></div>
      <div><dt>Hosts</dt><dd>${of.hosts.join(", ")}</dd></div>
      <div><dt>File</dt><dd><code>${of.digest.slice(0, 19)}</code></dd></div>
      <div><dt>Table</dt><dd><code>${one.table}</code></dd></div>
      ${of.resources.length > 1 && html`<div><dt>Lists</dt><dd>${of.resources.map((each) => html`<${Link} to=${at(kind, of.name, each.name)}>${each.name}<//> `)}</dd></div>`}
    </dl>
    ${may && html`<${TryIt} kind=${kind} of=${of} list=${one} onDone=${again} />`}
    <${Quarantine} kind=${kind} of=${of} may=${may} turn=${turn} onDone=${again} />
    <${Rows} of=${of} list=${one} />`;
}

// --- try, estimate, run

function TryIt({ kind, of, list }) {
  const connections = useAnswer("connections", { provider: of.name, limit: 100 }, 0);
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState("");
  const asked = (form) => {
    const given = new FormData(form);
    const body = { source: of.name };
    for (const name of ["connection", "from", "to"]) if (given.get(name)) body[name] = given.get(name);
    return body;
  };
  const act = (what, how) => async (event) => {
    const form = event.target.form;
    if (!form.reportValidity()) return;
    setBusy(what);
    setProblem(null);
    setFound(null);
    try {
      setFound({ what, told: await how(asked(form)) });
    } catch (error) {
      setProblem(error);
    }
    setBusy("");
  };
  const start = async (body) => {
    const { id } = await post("runs", { kind: kind.name, params: { ...body, resources: [list.name] } });
    return { id };
  };
  const button = (what, busyText, how, tone = "") => html`<button type="button" class=${`button ${tone}`} disabled=${busy !== ""} onClick=${act(what, how)}>${busy === what ? busyText : what}</button>`;
  return html`<${Section} title="Try it" note="asks the upstream; only a run writes">
    <form class="inline-form" onSubmit=${(event) => event.preventDefault()}>
      ${of.needs_connection && html`<${Field} label="Connection">${(id) => html`<select id=${id} name="connection" required>
        ${connections.data?.connections.filter((each) => each.ready).map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select>`}<//>`}
      ${list.windows && html`<div class="pair"><${Field} label="From">${(id) => html`<input id=${id} name="from" type="date" required />`}<//>
        <${Field} label="To (optional)">${(id) => html`<input id=${id} name="to" type="date" />`}<//></div>`}
      <div class="buttons">
        ${button("Try", "Trying…", ({ to, ...body }) => post("sources/try", { ...body, resource: list.name }))}
        ${button("Estimate", "Estimating…", (body) => post("sources/estimate", { ...body, resource: list.name }))}
        ${button("Start run", "Starting…", start, "main")}
      </div>
    </form>
    <${Trouble} problem=${problem} />
    ${found?.what === "Try" && html`<${Tried} of=${found.told} />`}
    ${found?.what === "Estimate" && html`<${Estimated} of=${found.told} />`}
    ${found?.what === "Start run" && html`<p role="status">Started: <${Link} to=${`runs/${found.told.id}/partitions`}>open the run<//>.</p>`}
  <//>`;
}

function Tried({ of }) {
  const columns = of.rows.length ? Object.keys(of.rows[0].columns) : [];
  return html`<div role="status"><p><strong>${plural(of.requests, "request")}</strong>; rows on each page: ${of.pages.map((each) => number(each.rows)).join(", ")}.
      ${of.ended ? " The list ended there." : " There is more."}${of.counted !== null ? ` The upstream counts ${number(of.counted)}.` : ""} Nothing was written.</p>
    ${of.unfit.map((why) => html`<p class="error-line">${why}</p>`)}
    ${of.rows.length > 0 && html`<${Table} caption="The first rows" columns=${["Key", ...columns]}><tbody>${of.rows.map((row) => html`<tr key=${row.key}><${Cell}>${row.key}<//>
      ${columns.map((name) => html`<${Cell} name=${name}>${String(row.columns[name] ?? "–")}<//>`)}</tr>`)}</tbody><//>`}</div>`;
}

const Estimated = ({ of }) => html`<div role="status">${of.resources.map((each) => html`<p key=${each.resource}><strong>${each.resource}</strong>:
  ${each.partitions === null ? " a partition for each row of its parent" : ` ${plural(each.partitions, "partition")}`}${each.rows === null ? ", an unknown number of rows" : `, ${each.exact ? "" : "about "}${plural(each.rows, "row")}`}${each.requests === null ? "" : `, about ${plural(each.requests, "request")}`}.</p>`)}
  ${of.minutes !== null && html`<p>All together about ${plural(Math.max(1, Math.round(of.minutes)), "minute")}.</p>`}</div>`;

// --- rows

const lineage = (row) => html`<${Link} to=${`runs/${row.run_id}/partitions`}>run<//>, <code>${row.partition}</code>, step ${number(row.page)}`;

function Rows({ of, list }) {
  const load = async (cursor) => {
    const { rows, next } = await get("source-rows", { source: of.name, resource: list.name, cursor, limit: 50 });
    return { rows, next };
  };
  const shown = list.columns.slice(0, 5);
  const columns = ["Key", ...shown.map(words), "Comes from"];
  const row = (each) => html`<tr key=${`${each.connection}/${each.key}`}><${Cell}>${each.key}${each.gone_at && html` <${Badge} kind="failed">gone<//>`}<//>
    ${shown.map((name) => html`<${Cell} name=${words(name)}>${each.columns[name] === null ? "–" : String(each.columns[name])}<//>`)}
    <${Cell} name="Comes from">${lineage(each)}<//></tr>`;
  return html`<${Section} title="Rows" note="by key, each with the run that brought it">
    <${Table} caption="Rows by key" columns=${columns}><${Pages} load=${load} row=${row} columns=${columns.length} every_s=${0} empty=${html`<${Empty}><p>No rows yet: start a run.</p><//>`} /><//>
  <//>`;
}

// --- the quarantine

function Quarantine({ kind, of, may, turn, onDone }) {
  const answer = useAnswer("source-quarantine", { source: of.name, limit: 50 }, 0, turn);
  const replay = async () => {
    const accounts = [...new Set(answer.data.rows.map((row) => row.connection))];
    for (const connection of accounts) await post("runs", { kind: kind.name, params: { source: of.name, replay: true, ...(connection && { connection }) } });
    onDone();
  };
  return html`<${Answer} of=${answer}>${({ rows, next }) => rows.length > 0 && html`<${Section} title="Quarantine" note="rows that don't fit their columns">
    ${may && html`<${Action} label="Try again" title="Try the quarantine again" explains="Rows that fit the file as it is now are moved into their table. Nothing is asked." reason="" action=${replay} done="Trying again." />`}
    <${Table} caption="Rows in quarantine" columns=${["Key", "List", "Why", "Comes from", "Since"]}><tbody>${rows.map((row) => html`<tr key=${row.id}>
      <${Cell}><details><summary>${row.key}</summary><${Json} of=${row.payload} /></details><//><${Cell} name="List">${row.resource}<//><${Cell} name="Why">${row.why}<//>
      <${Cell} name="Comes from">${lineage(row)}<//><${Cell} name="Since"><${Ago} at=${row.at} /><//></tr>`)}</tbody><//>
    ${next && html`<p class="quiet">The newest 50 are shown.</p>`}
  <//>`}<//>`;
}

// --- the tab of a run

const PARTS = ["Partition", "Pages", "Rows", "Status", "Last commit"];

export function RunTab({ run }) {
  const isOver = run.finished_at !== null;
  const answer = useAnswer(`source-runs/${run.id}`, {}, isOver ? 30 : 4);
  const load = async (cursor) => {
    const { partitions, next } = await get(`source-runs/${run.id}/partitions`, { cursor, limit: 50 });
    return { rows: partitions, next };
  };
  return html`<${Answer} of=${answer}>${(told) => html`
    ${told.resources.map((each) => html`<div class="barrier" key=${each.resource}><p><strong>${each.resource}</strong> <${Claim} of=${each.claim} />
        ${each.reason && html` ${each.reason}.`}${each.through && html` Up to ${moment(each.through)}.`}</p>
      <${Bar} done=${each.done} all=${each.partitions} label=${`Partitions of ${each.resource} read`} />
      <p class="quiet">${number(each.done)} of ${plural(each.partitions, "partition")}, ${plural(each.received, "row")} received${each.counted ? ` of ${number(each.counted)} counted` : ""}${each.quarantined ? `, ${number(each.quarantined)} in quarantine` : ""}${each.reread ? ", some read again" : ""}</p>
      ${each.fuse && html`<p class="error-line">${each.fuse}</p>`}</div>`)}
    <${Section} title="Partitions">
      <${Table} caption="Partitions of the run" columns=${PARTS}><${Pages} load=${load} row=${part} columns=${PARTS.length} every_s=${isOver ? 0 : 4} turn=${isOver ? 1 : 0}
        empty=${html`<${Empty}><p>Planning: partitions appear when the plan is done.</p><//>`} /><//>
    <//>`}<//>`;
}

const part = (each) => html`<tr key=${each.key}>
  <${Cell}>${partName(each.key)}${each.crawl > 1 && html` <${Badge} kind="drift">read ${each.crawl}<//>`}<//>
  <${Cell} name="Pages">${number(each.pages)}<//>
  <${Cell} name="Rows">${number(each.received)}${each.counted !== null ? ` of ${number(each.counted)}` : ""}<//>
  <${Cell} name="Status"><${Status} of=${each.status === "active" && each.attempts > 0 ? "retrying" : STAGE[each.status]} />${each.why && html` <span class="quiet">${each.why}</span>`}
    ${each.last_error && each.status !== "done" && html` <span class="error-line">${each.last_error.message}</span>`}<//>
  <${Cell} name="Last commit"><${Ago} at=${each.updated_at} /><//></tr>`;

// `part/orders/2025-01-01T00:00:00Z/2025-02-01T00:00:00Z#2` is the second reading of that window.
function partName(key) {
  const [, list, rest] = /^part\/([^/]+)\/(.*?)(?:#\d+)?$/.exec(key) ?? [null, "", key];
  return `${list}: ${rest.replaceAll("T00:00:00Z", "").replace("/", " – ")}`;
}
