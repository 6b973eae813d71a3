import { html } from "../vendor/preact.js";
import { Heading, Link } from "../parts.js";

export default () => html`<${Heading} title="Page not found" /><p>This page doesn't exist, or your role doesn't include it. <${Link} to="overview">Go to the overview<//>.</p>`;
