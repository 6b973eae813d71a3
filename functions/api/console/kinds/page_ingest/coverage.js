// Which prices of the catalogue were read on which day. A gap leads to the form that fills it.
import { dollars, number, plural } from "../../format.js";
import { html } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Ago, Answer, Cell, Empty, Heading, Link, NONE, STARTS, Section, Table, useMay } from "../../parts.js";

const DAY_MS = 86_400_000;
const SIZE = 14;
const SHORT = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const WORDS = { complete: "complete", read: "read, not proved complete", running: "running", failed: "failed", not_read: "not read" };
const SHADES = { complete: "done shade-3", read: "waited", running: "running", failed: "failed", not_read: "none" };
const LATEST = { complete: "Complete", read: "Read", running: "Running", failed: "Failed" };

const dayOf = (text) => Date.parse(`${text}T00:00:00Z`);

export default function Coverage({ kind }) {
  const answer = useAnswer("page-ingestion-coverage", {}, 30);
  return html`<${Heading} title="Coverage" /><${Answer} of=${answer}>${(told) => html`<${CoverageMap} kind=${kind} of=${told} />`}<//>`;
}

const COLUMNS = ["Price", "Days", "Last complete", "Latest run", { name: "", className: "actions" }];

function CoverageMap({ kind, of }) {
  const mayStart = useMay(STARTS);
  if (of.bands.length === 0) return html`<${Empty}><p>No ingestion has run in these days. ${mayStart && html`<${Link} to=${`work/${kind.name}/new`}>Start one<//>.`}</p><//>`;
  const days = Array.from({ length: (dayOf(of.until) - dayOf(of.since)) / DAY_MS + 1 }, (_, n) => dayOf(of.since) + n * DAY_MS);
  return html`<${Section} title="Prices by day" note="by the day a run started, in UTC">
    ${of.gaps.length > 0 && html`<p>${plural(of.gaps.length, "price range")} without a complete run in ${plural(days.length, "day")}: ${of.gaps.slice(0, 5).map((gap, n) => html`${n > 0 && ", "}<strong class="nowrap">${dollars(gap.low, gap.high)}</strong>`)}${of.gaps.length > 5 && `, and ${number(of.gaps.length - 5)} more`}.</p>`}
    <p class="legend quiet" aria-hidden="true">${Object.entries(WORDS).map(([state, text]) => html`<span><svg width="11" height="11"><rect class=${`cell cell-${SHADES[state]}`} x="0.5" y="0.5" width="10" height="10" rx="2" /></svg> ${text}</span>`)}</p>
    <${Table} caption="Prices and the days on which they were read" columns=${COLUMNS} className="heat coverage">
      <tbody>${of.bands.map((band) => html`<${Row} key=${`${band.low} ${band.high}`} ...${{ kind, band, days, mayStart }} />`)}</tbody>
    <//>
    <p class="quiet">${SHORT.format(days[0])} – ${SHORT.format(days.at(-1))}; the newest day is on the right.</p><//>`;
}

function Row({ kind, band, days, mayStart }) {
  const isGap = band.complete_at === null;
  return html`<tr>
    <${Cell} className="nowrap">${dollars(band.low, band.high)}<//>
    <${Cell} name="Days" className="cells"><${Days} of=${band} days=${days} /><//>
    <${Cell} name="Last complete">${isGap ? html`<span class="error-line">not in these days</span>` : html`<${Ago} at=${band.complete_at} />`}<//>
    <${Cell} name="Latest run">${band.latest_run ? html`<${Link} to=${`runs/${band.latest_run}`}>${LATEST[band.latest_state]}<//>` : NONE}<//>
    <${Cell} className="actions">${mayStart && html`<${Link} to=${`work/${kind.name}/new?low=${band.low}&high=${band.high}`} class=${`button ${isGap && band.latest_state !== "running" ? "main" : ""}`} aria-label=${`Ingest ${dollars(band.low, band.high)}`}>Ingest<//>`}<//></tr>`;
}

function Days({ of, days }) {
  const known = new Map(of.days.map((each) => [dayOf(each.day), each]));
  const count = (state) => of.days.filter((each) => each.state === state).length;
  const told = Object.keys(LATEST).filter((state) => count(state) > 0).map((state) => `${WORDS[state]} on ${plural(count(state), "day")}`);
  return html`<svg class="cells" role="img" aria-label=${told.join(", ") || "not read"} width=${days.length * SIZE} height=${SIZE} viewBox=${`0 0 ${days.length * SIZE} ${SIZE}`}>
    ${days.map((day, n) => {
      const { state, partly } = known.get(day) ?? { state: "not_read", partly: false };
      return html`<rect class=${`cell cell-${SHADES[state]} ${partly ? "cell-partly" : ""}`} x=${n * SIZE + 0.5} y="0.5" width=${SIZE - 2} height=${SIZE - 2} rx="2"><title>${`${SHORT.format(day)}: ${WORDS[state]}${partly ? "; some of these prices stand better" : ""}`}</title></rect>`;
    })}</svg>`;
}
