// Page ingestion: start one from a form, and see its partitions by price, page by page.
import { get, newKey, post } from "../api.js";
import { number, plural, words } from "../format.js";
import { html, useEffect, useState } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { ACTS, Ago, Badge, Bar, Cell, Empty, Field, Heading, Link, Loading, Pages, Section, Status, Table, Trouble, Why, runName, say, useMay } from "../parts.js";
import { go } from "../router.js";
import { RunList } from "./runs.js";

const BUCKETS = 40;
const PARTITIONS = 60;

export default function Ingestions({ path, query }) {
  const mayStart = useMay(ACTS);
  if (path[0] === "start" && mayStart) return html`<${Start} />`;
  if (path.length > 0) return html`<${Ingestion} key=${path[0]} id=${path[0]} />`;
  return html`<${RunList} title="Page ingestion" query=${query} fixed=${{ kind: "page_ingest" }} at="ingestions">
    ${mayStart && html`<${Link} to="ingestions/start" class="button main">Start<//>`}<//>`;
}

// --- the form

function Start() {
  const connections = useAnswer("connections", { provider: "nivoda", limit: 100 }, 0);
  const [rule, setRule] = useState("all");
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [key, setKey] = useState(newKey); // sent twice, it is one run; changed, it is another
  const submit = async (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    const whole = (name) => Number(given.get(name));
    const policy = { all: { rule }, at_least: { rule, percent: whole("percent") }, critical: { rule, prices: (given.get("prices") ?? "").split(/[\s,]+/).filter(Boolean).map(Number) } }[rule];
    const body = { source: "nivoda", low: whole("low"), high: whole("high"), page_size: whole("page_size"), partition_records: whole("partition_records"), recrawls: whole("recrawls"), policy };
    for (const name of ["label", "connection"]) if (given.get(name)) body[name] = given.get(name);
    if (given.get("hours")) body.time_limit_s = whole("hours") * 3600;
    setBusy(true);
    setProblem(null);
    try {
      const { id } = await post("page-ingestions", body, { "idempotency-key": key });
      say("Started.");
      go(`ingestions/${id}`);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  const amount = (name, label, value, min, max, hint) => html`<${Field} label=${label} hint=${hint}>${(id) => html`<input id=${id} name=${name} type="number" required min=${min} max=${max} defaultValue=${value} />`}<//>`;
  return html`<${Heading} title="Start a page ingestion" />
    <form class="sheet" onSubmit=${submit} onInput=${() => setKey(newKey())}>
      <fieldset><legend>What</legend>
        <${Field} label="Label (optional)" hint="A name to find it by.">${(id) => html`<input id=${id} name="label" maxlength="200" autocomplete="off" />`}<//>
        <${Field} label="Account" hint=${html`The tenant's account at the upstream. <${Link} to="connections">Connections<//>`}>${(id) => html`<select id=${id} name="connection"><option value="">the deployment's own</option>
          ${connections.data?.connections.filter((each) => each.ready).map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select>`}<//>
        <div class="pair">${amount("low", "From price ($)", 200, 0, 99_999_998)}${amount("high", "To price ($), not included", 5000, 1, 99_999_999)}</div>
      </fieldset>
      <fieldset><legend>How</legend>
        <div class="pair">${amount("page_size", "Rows a page", 50, 4, 50)}${amount("partition_records", "Rows a partition", 2000, 1, 100_000, "Partitions are crawled side by side.")}</div>
        <div class="pair">${amount("recrawls", "Crawls again after drift", 2, 0, 5, "If the catalogue moved meanwhile.")}
          <${Field} label="Time limit in hours (optional)">${(id) => html`<input id=${id} name="hours" type="number" min="1" max="720" />`}<//></div>
        <${Field} label="It succeeds if">${(id) => html`<select id=${id} value=${rule} onChange=${(event) => setRule(event.target.value)}>
          <option value="all">every partition is complete</option><option value="at_least">enough partitions are complete</option><option value="critical">the partitions with these prices are complete</option></select>`}<//>
        ${rule === "at_least" && amount("percent", "Percent of the partitions", 95, 1, 100)}
        ${rule === "critical" && html`<${Field} label="Prices that must be complete ($)" hint="Whole dollars, with spaces between.">${(id) => html`<input id=${id} name="prices" required pattern="[0-9 ,]+" />`}<//>`}
      </fieldset>
      <${Trouble} problem=${problem ?? connections.problem} />
      <div class="buttons"><${Link} to="ingestions" class="button">Not now<//><button type="submit" class="button main" disabled=${isBusy || connections.data === null}>${isBusy ? "Starting…" : "Start"}</button></div>
    </form>`;
}

// --- one of them

function Ingestion({ id }) {
  const [isOver, setOver] = useState(false);
  const pace_s = isOver ? 30 : 4; // what has ended may be retried
  const run = useAnswer(`runs/${encodeURIComponent(id)}`, {}, pace_s);
  const sum = useAnswer(`page-ingestions/${encodeURIComponent(id)}`, {}, pace_s);
  const finished = run.data?.finished_at ?? null;
  useEffect(() => setOver(finished !== null), [finished]);
  if (run.data === null || sum.data === null) return html`<${Heading} title="Page ingestion" />${run.problem || sum.problem ? html`<${Trouble} problem=${run.problem ?? sum.problem} />` : html`<${Loading} />`}`;
  const [of, told] = [run.data, sum.data];
  return html`<${Heading} title=${runName(of)}><${Link} to=${`runs/${of.id}`} class="button">Run and acts<//><//>
    <p class="run-state"><${Status} of=${of.status} />${of.outcome && of.outcome !== of.status && html`<span>${words(of.outcome)}</span>`}
      <span class="quiet">${told.source}, $${number(told.low)} to $${number(told.high)}</span>
      ${!of.finished_at && of.why && html`<${Why} of=${of.why} />`}</p>
    <${Trouble} problem=${run.problem ?? sum.problem} />
    ${told.partitions > 0 && html`<${Barrier} of=${told} />`}
    <${Stages} of=${told} isOver=${isOver} />
    <${Partitions} id=${of.id} isOver=${isOver} planned=${told.planned} />`;
}

function Barrier({ of }) {
  const badges = [["stuck", of.stuck, "stuck"], ["failed", of.failed, "failed"], ["drift", of.drifted, "crawled again"], ["split", of.split, "split"]].filter(([, count]) => count > 0);
  return html`<div class="barrier"><p><strong>${number(of.done)}</strong> of <strong>${number(of.partitions)}</strong> partitions are complete
    ${badges.map(([kind, count, text]) => html` <${Badge} kind=${kind}>${number(count)} ${text}<//>`)}</p>
    <${Bar} done=${of.done} all=${of.partitions} label="Partitions that are complete" />
    <p class="quiet">${number(of.walked)} rows walked${of.counted !== null ? ` of about ${number(of.counted)}` : ""}${of.duplicates ? `, ${plural(of.duplicates, "duplicate")} passed over` : ""}</p></div>`;
}

const STAGES = [["plan", "Plan", "range", "to probe"], ["crawl", "Crawl", "partition", "left"], ["audit", "Audit", "partition", "to count again"], ["consolidate", "Consolidate", "", ""]];

function Stages({ of, isOver }) {
  const ended = of.done + of.failed;
  const crawl = of.partitions === 0 ? null : { status: of.done === of.partitions ? "done" : ended === of.partitions ? "failed" : isOver ? "canceled" : "active", left: of.partitions - ended };
  return html`<ol class="stages" aria-label="Stages">${STAGES.map(([name, title, things, todo]) => {
    const stage = name === "crawl" ? crawl : of[name];
    return html`<li class=${`stage ${stage ? `stage-${stage.status}` : ""}`}><span class="stage-name">${title}</span>
      ${stage ? html`<${Status} of=${stage.status} />` : html`<span class="quiet">not yet</span>`}
      ${stage && html`<span class="quiet">${stage.last_error?.message ?? (stage.status === "active" && stage.left && things ? `${plural(stage.left, things)} ${todo}` : stage.steps ? plural(stage.steps, "step") : "")}</span>`}</li>`;
  })}</ol>`;
}

const COLUMNS = ["Price", "Pages", "Rows", "State", "Last commit"];

function Partitions({ id, isOver, planned }) {
  const load = async (cursor) => {
    const { partitions, next } = await get(`page-ingestions/${id}/partitions`, { cursor, limit: PARTITIONS, heat: BUCKETS });
    const most = Math.max(1, ...partitions.flatMap((each) => (each.heat ?? []).map((cell) => cell.ms)));
    return { rows: partitions.map((each) => ({ ...each, most })), next };
  };
  return html`<${Section} title="Partitions" note="by price; one cell per page, the stronger the slower">
    <${Legend} />
    <${Table} caption="Partitions by price, with their pages" columns=${COLUMNS} className="heat">
      <${Pages} load=${load} row=${partition} columns=${COLUMNS.length} every_s=${isOver ? 0 : 4} turn=${isOver ? 1 : 0}
        empty=${html`<${Empty}><p>${planned ? "There are no partitions: nothing is in this range." : "The plan is being made: partitions appear when it is."}</p><//>`} />
    <//>
  <//>`;
}

const partition = (each) => html`<tr key=${each.key}>
  <${Cell} className="nowrap">$${number(each.low)} – ${number(each.high)}${each.crawl > 1 && html` <${Badge} kind="drift">crawl ${each.crawl}<//>`}<//>
  <${Cell} name="Pages" className="cells"><${Heat} of=${each} /><//>
  <${Cell} name="Rows" className="nowrap">${number(each.offset)}${each.counted !== null ? ` of ${number(each.counted)}` : ""}<//>
  <${Cell} name="State"><${Status} of=${each.status} />${each.split && html` <${Badge} kind="split">split<//>`}${each.stuck && html` <${Badge} kind="stuck">stuck<//>`}
    ${each.attempts > 0 && html` <span class="quiet">attempt ${each.attempts + 1}</span>`}${each.last_error && each.status !== "done" && html` <span class="error-line">${each.last_error.message}</span>`}<//>
  <${Cell} name="Last commit"><${Ago} at=${each.updated_at} /><//></tr>`;

const CELL = 12;
// One cell per page; of a long crawl each stands for an equal share of them, so that its length still says how far it is.
function Heat({ of }) {
  const told = of.heat ?? [];
  const steps = told.reduce((sum, cell) => sum + cell.steps, 0);
  const pages = Math.max(of.status === "active" ? (of.pages_expected ?? 0) : 0, steps, 1);
  const columns = Math.min(BUCKETS, pages);
  const filled = Math.ceil((columns * steps) / pages);
  const bad = told.filter((cell) => !["moved", "done", "waited"].includes(cell.outcome)).length;
  const label = `${plural(steps, "step")} of about ${plural(pages, "page")}${bad ? `, trouble in ${bad}` : ""}`;
  return html`<svg class="cells" role="img" aria-label=${label} width=${columns * CELL} height=${CELL} viewBox=${`0 0 ${columns * CELL} ${CELL}`}>
    ${Array.from({ length: columns }, (_, n) => {
      const cell = n < filled ? told[Math.floor((n * told.length) / filled)] : null;
      const [x, size] = [n * CELL + 0.5, CELL - 2];
      if (!cell) return html`<rect class="cell cell-none" x=${x} y="0.5" width=${size} height=${size} rx="2" />`;
      const shade = cell.outcome === "moved" || cell.outcome === "done" ? 1 + Math.round(3 * Math.sqrt(cell.ms / of.most)) : 0;
      return html`<rect class=${`cell cell-${cell.outcome} shade-${shade}`} x=${x} y="0.5" width=${size} height=${size} rx="2">
        <title>${`${plural(cell.steps, "step")}: ${cell.outcome}, ${plural(cell.rows, "row")}, ${number(cell.ms)} ms each`}</title></rect>`;
    })}</svg>`;
}

const Legend = () => html`<p class="legend quiet" aria-hidden="true">
  ${[["done shade-1", "fast"], ["done shade-4", "slow"], ["waited", "waited"], ["retried", "retried"], ["throttled", "held by a gate"], ["failed", "failed"], ["none", "to come"]].map(([name, text]) => html`<span><svg width="11" height="11"><rect class=${`cell cell-${name}`} x="0.5" y="0.5" width="10" height="10" rx="2" /></svg> ${text}</span>`)}</p>`;
