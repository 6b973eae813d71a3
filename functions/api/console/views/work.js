// One kind of work: its runs, its own pages, and the form that starts one. What its file does not bring is general.
import { html } from "../vendor/preact.js";
import { Empty, Field, Heading, NewRun, STARTS, Tabs, Trouble, UnderHeading, useMay, useVisitor } from "../parts.js";
import { manyOf, whyOff } from "../kinds.js";
import NotFound from "./not_found.js";
import { RunList } from "./runs.js";

export default function Work({ kind, path, query }) {
  const mayStart = useMay(STARTS);
  const { role, isSuper } = useVisitor();
  const [first = "", ...rest] = path;
  if (first === "new" && path.length === 1 && mayStart) return kind.New ? html`<${kind.New} kind=${kind} />` : html`<${New} kind=${kind} />`;
  const pages = kind.pages.filter((each) => !each.roles || isSuper || each.roles.includes(role));
  const page = pages.find((each) => each.path === first);
  if (first !== "" && !page) return html`<${NotFound} />`;
  const shown = pages.filter((each) => whyOff(kind, each.path) === null);
  const off = page ? whyOff(kind, first) : null; // somebody kept a link to it
  const View = off ? Off : page ? page.View : kind.List;
  const tabs = shown.length > 0 && html`<${Tabs} label=${manyOf(kind)} below=${`work/${kind.name}`} tabs=${[{ path: "", title: kind.listTitle }, ...shown]} at=${first} />`;
  return html`<${Trouble} problem=${kind.problem} />
    <${UnderHeading.Provider} value=${tabs || null}>${View ? html`<${View} key=${first} kind=${kind} path=${rest} query=${query} title=${page?.title} why=${off} />` : html`<${RunList} title=${manyOf(kind)} query=${query} fixed=${{ kind: kind.name }} at=${`work/${kind.name}`} />`}<//>`;
}

const Off = ({ title, why }) => html`<${Heading} title=${title} /><${Empty}><p>${why}</p><//>`;

// The form of a kind that brings none: its parameters as JSON. The API says what is wrong with them.
function New({ kind }) {
  const request = (given) => {
    const label = given.get("label").trim();
    return { path: "runs", body: { kind: kind.name, params: read(given.get("params")), ...(label ? { label } : {}) } };
  };
  return html`<${NewRun} kind=${kind} request=${request}>
    <fieldset><legend>Run</legend>
      <${Field} label="Label (optional)" hint="A name to find it by.">${(id) => html`<input id=${id} name="label" maxlength="200" autocomplete="off" />`}<//>
      <${Field} label="Parameters" hint="A JSON object.">${(id) => html`<textarea id=${id} name="params" rows="10" spellcheck=${false} defaultValue=${"{\n}"}></textarea>`}<//>
    </fieldset>
  <//>`;
}

function read(text) {
  let params = null;
  try {
    params = JSON.parse(text);
  } catch (error) {
    throw new Error(`Parameters: this isn't valid JSON. ${error.message}`);
  }
  if (params === null || typeof params !== "object" || Array.isArray(params)) throw new Error('Parameters: write a JSON object, for example {"low": 200}.');
  return params;
}
