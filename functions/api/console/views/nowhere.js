import { html } from "../vendor/preact.js";
import { Heading, Link } from "../parts.js";

export default () => html`<${Heading} title="Nothing is here" /><p>There is no such view, or not for your role. <${Link} to="now">What is going on now<//>.</p>`;
