// Failures: what went wrong in the last day, grouped by cause, and every run that failed.
import { html } from "../vendor/preact.js";
import { useAnswer } from "../live.js";
import { Answer, Empty, Section } from "../parts.js";
import { Causes, RunList } from "./runs.js";

export default function Failures({ query }) {
  const answer = useAnswer("now", {}, 10);
  return html`<${RunList} title="Failures" query=${query} fixed=${{ status: "failed" }} at="failures" name="Failed runs" empty="No run has failed."
    lead=${html`<${Section} title="Last 24 hours" note="grouped by cause"><${Answer} of=${answer}>${({ failing }) => (failing.groups.length > 0
      ? html`<${Causes} of=${failing.groups} />` : html`<${Empty}><p>No run failed in the last 24 hours.</p><//>`)}<//><//>`} />`;
}
