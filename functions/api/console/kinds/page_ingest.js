// Page ingestion: the form that starts one, and its partitions by price, page by page. The contract is in ../kinds.js.
import { get, post } from "../api.js";
import { dollars, number, plural } from "../format.js";
import { html, useState } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { place } from "../router.js";
import { Action, Ago, Answer, Badge, Bar, Cell, Empty, Field, Link, Named, NewRun, Pages, STARTS, Section, Status, Table, Trouble, later, outcomeName, useMay } from "../parts.js";

const BUCKETS = 40;
const PARTITIONS = 60;

// `part:0000000200-0000002000#2` is the second crawl of that price range.
function laneName(key) {
  const [, low, high, crawl] = /^part:(\d+)-(\d+)(?:#(\d+))?$/.exec(key) ?? [];
  if (low) return `${dollars(low, high)}${crawl ? `, crawl ${crawl}` : ""}`;
  const [, phase, round] = /^(plan|audit|consolidate)(?::\d+(?:\.(\d+))?.*)?$/.exec(key) ?? [];
  if (!phase) return sourceLane(key);
  return phase ? `${{ plan: "Plan", audit: "Audit", consolidate: "Consolidation" }[phase]}${round > 1 ? `, round ${round}` : ""}` : null;
}

const phaseName = (key) => ({ plan: "Plan", part: "Crawl", audit: "Audit", consolidate: "Consolidation" })[key.split(":")[0]] ?? null;

// Lanes of a source: `plan/0`, `part/works/2025-01-01T00:00:00Z/2025-02-01T00:00:00Z`, `audit/1.0.1.0`, `consolidate/1/works`.
function sourceLane(key) {
  const [, phase, rest] = /^(plan|part|audit|consolidate|replay)\/(.*)$/.exec(key) ?? [];
  if (!phase) return null;
  if (phase === "part") return rest.replaceAll("T00:00:00Z", "").replaceAll("/", " ");
  const list = phase === "consolidate" ? rest.split("/")[1] : phase === "replay" ? rest : "";
  return `${{ plan: "Plan", audit: "Audit", consolidate: "Consolidation", replay: "Quarantine" }[phase]}${list ? ` of ${list}` : ""}`;
}

const facts = ({ params }) => [
  params.source && [params.source === "nivoda" ? "Catalogue" : "Source", params.source],
  params.from && ["From", params.from],
  params.high && ["Price range", dollars(params.low, params.high)],
  params.connection && ["Connection", html`<${Named} of=${params.connection} />`],
].filter(Boolean);

// Where it was before runs had tabs.
function moved([first, second], kind) {
  if (first !== "ingestions") return null;
  if (second === undefined) return `work/${kind}`;
  return second === "start" ? `work/${kind}/new` : `runs/${encodeURIComponent(second)}/partitions`;
}

// --- the form

function New({ kind }) {
  const connections = useAnswer("connections", { provider: "nivoda", limit: 100 }, 0);
  const [rule, setRule] = useState("all");
  const asked = place().query; // a gap in the coverage brings its prices along
  const request = (given) => {
    const whole = (name) => Number(given.get(name));
    const policy = { all: { rule }, at_least: { rule, percent: whole("percent") }, critical: { rule, prices: (given.get("prices") ?? "").split(/[\s,]+/).filter(Boolean).map(Number) } }[rule];
    const body = { source: "nivoda", low: whole("low"), high: whole("high"), page_size: whole("page_size"), partition_records: whole("partition_records"), recrawls: whole("recrawls"), policy };
    for (const name of ["label", "connection"]) if (given.get(name)) body[name] = given.get(name);
    if (given.get("hours")) body.time_limit_s = whole("hours") * 3600;
    return { path: "page-ingestions", body };
  };
  const amount = (name, label, value, min, max, hint) => html`<${Field} label=${label} hint=${hint}>${(id) => html`<input id=${id} name=${name} type="number" required min=${min} max=${max} defaultValue=${value} />`}<//>`;
  return html`<${NewRun} kind=${kind} request=${request} isReady=${connections.data !== null}>
    <fieldset><legend>Catalogue</legend>
      <${Field} label="Label (optional)" hint="A name to find it by.">${(id) => html`<input id=${id} name="label" maxlength="200" autocomplete="off" />`}<//>
      <${Field} label="Connection" hint=${html`The account to use. <${Link} to="connections">Manage connections<//>`}>${(id) => html`<select id=${id} name="connection"><option value="">Default account of this deployment</option>
        ${connections.data?.connections.filter((each) => each.ready).map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select>`}<//>
      <div class="pair">${amount("low", "From price ($)", asked.get("low") ?? 200, 0, 99_999_998)}${amount("high", "To price ($)", asked.get("high") ?? 5000, 1, 99_999_999, "Up to, but not including.")}</div>
    </fieldset>
    <fieldset><legend>Crawl</legend>
      <div class="pair">${amount("page_size", "Rows per page", 30, 4, 50)}${amount("partition_records", "Rows per partition", 2000, 1, 100_000, "Partitions are crawled in parallel.")}</div>
      <div class="pair">${amount("recrawls", "Max re-crawls", 2, 0, 5, "If the catalogue changes during the crawl.")}
        <${Field} label="Time limit in hours (optional)">${(id) => html`<input id=${id} name="hours" type="number" min="1" max="720" />`}<//></div>
      <${Field} label="Succeeds if">${(id) => html`<select id=${id} value=${rule} onChange=${(event) => setRule(event.target.value)}>
        <option value="all">every partition is complete</option><option value="at_least">enough partitions are complete</option><option value="critical">the partitions with these prices are complete</option></select>`}<//>
      ${rule === "at_least" && amount("percent", "Percent of partitions", 95, 1, 100)}
      ${rule === "critical" && html`<${Field} label="Prices that must be complete ($)" hint="Whole dollars, separated by spaces.">${(id) => html`<input id=${id} name="prices" required pattern="[0-9 ,]+" title="Whole dollars, separated by spaces" />`}<//>`}
    </fieldset>
    <${Trouble} problem=${connections.problem} />
  <//>`;
}

// --- the tab Partitions

const SourceTab = later(async () => (await import("./page_ingest/sources.js")).RunTab);

function PartitionsTab(props) {
  return props.run.params.source === "nivoda" ? html`<${PriceTab} ...${props} />` : html`<${SourceTab} ...${props} />`;
}

function PriceTab({ run }) {
  const isOver = run.finished_at !== null;
  const sum = useAnswer(`page-ingestions/${run.id}`, {}, isOver ? 30 : 4); // what has ended may be retried
  return html`<${Answer} of=${sum}>${(told) => html`
    ${told.partitions > 0 && html`<${Barrier} of=${told} />`}
    <${Stages} of=${told} isOver=${isOver} />
    <${Partitions} id=${run.id} isOver=${isOver} planned=${told.planned} />`}<//>`;
}

function Barrier({ of }) {
  const badges = [["stuck", of.stuck, "stuck"], ["failed", of.failed, "failed"], ["drift", of.drifted, "re-crawled"], ["split", of.split, "split"]].filter(([, count]) => count > 0);
  return html`<div class="barrier"><p><strong>${number(of.done)}</strong> of <strong>${number(of.partitions)}</strong> partitions complete
    ${badges.map(([kind, count, text]) => html` <${Badge} kind=${kind}>${number(count)} ${text}<//>`)}</p>
    <${Bar} done=${of.done} all=${of.partitions} label="Partitions complete" />
    <p class="quiet">${number(of.walked)} rows read${of.counted !== null ? ` of about ${number(of.counted)}` : ""}${of.duplicates ? `, ${plural(of.duplicates, "duplicate")} skipped` : ""}</p></div>`;
}

const STAGES = [["plan", "Plan", "range", "to count"], ["crawl", "Crawl", "partition", "left"], ["audit", "Audit", "partition", "to recount"], ["consolidate", "Consolidate", "", ""]];
const STAGE = { active: "running", done: "succeeded", failed: "failed", canceled: "canceled" };

function Stages({ of, isOver }) {
  const ended = of.done + of.failed;
  const broken = [of.plan?.status === "failed" && "the plan failed", of.failed > 0 && `${plural(of.failed, "partition")} failed`, of.audit?.status === "failed" && "the audit failed"].find(Boolean);
  const crawl = of.partitions === 0 ? null : { status: of.done === of.partitions ? "done" : ended === of.partitions ? "failed" : isOver ? "canceled" : "active", left: of.partitions - ended };
  return html`<ol class="stages" aria-label="Stages">${STAGES.map(([name, title, things, todo]) => {
    const stage = name === "crawl" ? crawl : of[name];
    return html`<li class=${`stage ${stage ? `stage-${stage.status}` : ""}`}><span class="stage-name">${title}</span>
      ${stage ? html`<${Status} of=${STAGE[stage.status]} />` : html`<span class="quiet">${isOver ? "Skipped" : "Not started"}</span>`}
      ${!stage && isOver && html`<span class="quiet">${broken ? `because ${broken}` : "the run ended before"}</span>`}
      ${stage && html`<span class="quiet">${(stage.status === "failed" && stage.last_error?.message) || (stage.status === "active" && stage.left && things ? `${plural(stage.left, things)} ${todo}` : stage.steps ? plural(stage.steps, "step") : "")}</span>`}</li>`;
  })}</ol>`;
}

const COLUMNS = ["Price", "Pages", "Rows", "Status", "Last commit"];

function Partitions({ id, isOver, planned }) {
  const mayAct = useMay(STARTS);
  const reset = (each) => (reason) => post(`runs/${id}/lanes/${each.lane_id}/restart`, { reason, from_start: true });
  const load = async (cursor) => {
    const { partitions, next } = await get(`page-ingestions/${id}/partitions`, { cursor, limit: PARTITIONS, heat: BUCKETS });
    const most = Math.max(1, ...partitions.flatMap((each) => (each.heat ?? []).map((cell) => cell.ms)));
    return { rows: partitions.map((each) => ({ ...each, most, reset: mayAct && !isOver && each.status === "active" ? reset(each) : null })), next };
  };
  return html`<${Section} title="Partitions" note=${html`by price; one cell per page, <span class="in-light">darker</span><span class="in-dark">brighter</span> = slower`}>
    <${Legend} />
    <${Table} caption="Partitions by price, with their pages" columns=${COLUMNS} className="heat">
      <${Pages} load=${load} row=${partition} columns=${COLUMNS.length} every_s=${isOver ? 0 : 4} turn=${isOver ? 1 : 0}
        empty=${html`<${Empty}><p>${planned ? "No partitions: there is nothing in this price range." : "Planning: partitions appear when the plan is done."}</p><//>`} />
    <//>
  <//>`;
}

// Its lane is not asked for here, so a wait is not told from work; failed attempts are.
const partitionState = (each) => (each.status === "active" ? (each.attempts > 0 ? "retrying" : "running") : STAGE[each.status]);

const partition = (each) => html`<tr key=${each.key}>
  <${Cell} className="nowrap">${dollars(each.low, each.high)}${each.crawl > 1 && html` <${Badge} kind="drift">crawl ${each.crawl}<//>`}<//>
  <${Cell} name="Pages" className="cells"><${Heat} of=${each} /><//>
  <${Cell} name="Rows" className="nowrap">${number(each.offset)}${each.counted !== null ? ` of ${number(each.counted)}` : ""}<//>
  <${Cell} name="Status"><${Status} of=${partitionState(each)} />${each.split && html` <${Badge} kind="split">split<//>`}${each.stuck && html` <${Badge} kind="stuck">stuck<//>`}
    ${each.attempts > 0 && html` <span class="quiet">attempt ${each.attempts + 1}</span>`}${each.last_error && each.status !== "done" && html` <span class="error-line">${each.last_error.message}</span>`}<//>
  <${Cell} name="Last commit"><${Ago} at=${each.updated_at} />${each.reset && html` <${Action} label="Read again" title=${`Read ${dollars(each.low, each.high)} again`} explains=${`Its ${plural(each.offset, "row")} are read again from the first page. What it read before doesn't count.`} action=${each.reset} done="Restarted from its first page." />`}<//></tr>`;

const CELL = 12;
// One cell per page; of a long crawl each stands for an equal share of them, so that its length still says how far it is.
function Heat({ of }) {
  const told = of.heat ?? [];
  const steps = told.reduce((sum, cell) => sum + cell.steps, 0);
  const pages = Math.max(of.status === "active" ? (of.pages_expected ?? 0) : 0, steps, 1);
  const columns = Math.min(BUCKETS, pages);
  const filled = Math.ceil((columns * steps) / pages);
  const bad = told.filter((cell) => !["moved", "done", "waited"].includes(cell.outcome)).length;
  const label = `${plural(steps, "step")} of about ${plural(pages, "page")}${bad ? `, ${bad} with errors` : ""}`;
  return html`<svg class="cells" role="img" aria-label=${label} width=${columns * CELL} height=${CELL} viewBox=${`0 0 ${columns * CELL} ${CELL}`}>
    ${Array.from({ length: columns }, (_, n) => {
      const cell = n < filled ? told[Math.floor((n * told.length) / filled)] : null;
      const [x, size] = [n * CELL + 0.5, CELL - 2];
      if (!cell) return html`<rect class="cell cell-none" x=${x} y="0.5" width=${size} height=${size} rx="2" />`;
      const shade = cell.outcome === "moved" || cell.outcome === "done" ? 1 + Math.round(3 * Math.sqrt(cell.ms / of.most)) : 0;
      return html`<rect class=${`cell cell-${cell.outcome} shade-${shade}`} x=${x} y="0.5" width=${size} height=${size} rx="2">
        <title>${`${plural(cell.steps, "step")}: ${outcomeName(cell.outcome)}, ${plural(cell.rows, "row")}, ${number(cell.ms)} ms each`}</title></rect>`;
    })}</svg>`;
}

const Legend = () => html`<p class="legend quiet" aria-hidden="true">
  ${[["done shade-1", "fast"], ["done shade-4", "slow"], ["waited", "waited"], ["retried", "retried"], ["throttled", "throttled"], ["failed", "failed"], ["none", "not read yet"]].map(([name, text]) => html`<span><svg width="11" height="11"><rect class=${`cell cell-${name}`} x="0.5" y="0.5" width="10" height="10" rx="2" /></svg> ${text}</span>`)}</p>`;

const pages = [{ path: "coverage", title: "Coverage", View: later(async () => (await import("./page_ingest/coverage.js")).default) }, { path: "sources", title: "Sources", View: later(async () => (await import("./page_ingest/sources.js")).default) }];

export default { title: "Page ingestion", New, pages, tabs: [{ path: "partitions", title: "Partitions", View: PartitionsTab }], facts, laneName, phaseName, moved };
