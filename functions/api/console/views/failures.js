// Failures of all kinds by cause: since when, how often, one of them in full; retry, fix or mute each. Below, every failed run.
import { number, plural } from "../format.js";
import { html, useEffect, useRef } from "../vendor/preact.js";
import { kindOf, laneName, withLaneNames } from "../kinds.js";
import { useAnswer } from "../live.js";
import { Actor, Ago, Answer, Cell, Empty, Json, Link, NONE, Section, Table, Until, useTurn } from "../parts.js";
import { FixConnection, MuteCause, RetryCause } from "./fixes.js";
import { RunList } from "./runs.js";

const COLUMNS = ["Cause", { name: "Runs", className: "count" }, "Last 7 days", "First seen", "Last seen", { name: "", className: "actions" }];

export default function Failures({ query }) {
  const [turn, again] = useTurn();
  const answer = useAnswer("failures", {}, 10, turn);
  const wanted = query.get("cause");
  const lead = html`<${Answer} of=${answer}>${({ causes, bucket_s: bucket, more }) => {
    const [loud, muted] = [causes.filter((each) => !each.muted), causes.filter((each) => each.muted)];
    const table = (rows, caption) => html`<${Table} caption=${caption} columns=${COLUMNS} className="causes">${rows.map((each) => html`<${Cause} key=${`${each.kind} ${each.fingerprint}`} of=${each} bucket=${bucket} isWanted=${each.fingerprint === wanted} again=${again} />`)}<//>`;
    return html`<${Section} title="Causes" note=${`of the last 7 days, newest first${more ? "; only the newest failures are counted" : ""}`}>
      ${loud.length > 0 ? table(loud, "Failures by cause") : html`<${Empty}><p>No run failed in the last 7 days${muted.length ? " of a cause that isn't muted" : ""}.</p><//>`}<//>
    ${muted.length > 0 && html`<${Section} title="Muted" note="not counted on the Overview">${table(muted, "Muted causes")}<//>`}`;
  }}<//>`;
  return html`<${RunList} title="Failures" query=${query} fixed=${{ status: "failed" }} at="failures" name="Failed runs" empty="No run has failed." lead=${lead} />`;
}

function Cause({ of, bucket, isWanted, again }) {
  const body = useRef(null);
  useEffect(() => {
    if (isWanted) body.current.scrollIntoView({ block: "nearest" });
  }, [isWanted]);
  const { sample } = of;
  const text = withLaneNames(of.kind, of.message || of.code || "Unknown error");
  const filter = { kind: of.kind, status: "failed", fingerprint: of.fingerprint };
  return html`<tbody ref=${body} class=${isWanted ? "wanted" : ""}><tr>
    <${Cell} className="long"><strong class="clamped" title=${text}>${text}</strong>
      <span class="quiet">${kindOf(of.kind).title}${of.lane_key ? ` · ${laneName(of.kind, of.lane_key)}` : ""}${of.code ? html` · <code>${of.code}</code>` : ""}</span>
      ${of.muted && html`<div class="quiet">Muted by <${Actor} of=${of.muted.by} />, ends <${Until} at=${of.muted.until} />: ${of.muted.reason}</div>`}
      <details class="sample" open=${isWanted}><summary>Latest run</summary>
        <p><${Link} to=${`runs/${sample.run_id}`}>${sample.label ?? sample.run_id}<//>${sample.lane_key ? html`, lane <span title=${sample.lane_key}>${laneName(of.kind, sample.lane_key)}</span>` : ""}${sample.step === null ? "" : `, after ${plural(sample.step, "step")}`}</p>
        ${sample.cursor && html`<p class="quiet">Where it stood</p><${Json} of=${sample.cursor} />`}
        ${sample.params && html`<p class="quiet">Parameters</p><${Json} of=${sample.params} />`}
        <p class="quiet">Fingerprint <code>${of.fingerprint}</code></p></details><//>
    <${Cell} name="Runs" className="count"><${Link} to=${`runs?status=failed&kind=${of.kind}&fingerprint=${of.fingerprint}`}>${number(of.count)}<//><//>
    <${Cell} name="Last 7 days"><${Counts} of=${of.counts} bucket=${bucket} /><//>
    <${Cell} name="First seen"><${Ago} at=${of.first_at} /><//><${Cell} name="Last seen"><${Ago} at=${of.last_at} /><//>
    <${Cell} className="actions">${of.fix && html`<${FixConnection} id=${of.fix.target} filter=${filter} onDone=${again} />`}${of.fingerprint ? html`<${RetryCause} cause=${of} onDone=${again} />` : NONE}<${MuteCause} cause=${of} onDone=${again} /><//></tr></tbody>`;
}

const [WIDTH, HEIGHT] = [5, 22];
function Counts({ of, bucket }) {
  const most = Math.max(...of, 1);
  const label = `Failed runs per ${bucket / 3600} hours, oldest first: ${of.join(", ")}`;
  return html`<svg class="counts" role="img" aria-label=${label} width=${of.length * WIDTH} height=${HEIGHT} viewBox=${`0 0 ${of.length * WIDTH} ${HEIGHT}`}>
    ${of.map((count, n) => {
      const height = count === 0 ? 1 : 4 + (HEIGHT - 4) * (count / most);
      return html`<rect class=${count ? "minute-failed" : "none"} x=${n * WIDTH} y=${HEIGHT - height} width=${WIDTH - 1} height=${height}><title>${`${plural(count, "run")}, ${number((of.length - n) * (bucket / 3600))} h ago`}</title></rect>`;
    })}</svg>`;
}
