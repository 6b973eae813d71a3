// The form that saves a search at a job board.
import { post } from "../../api.js";
import { html, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Action, Field, Link } from "../../parts.js";

// What is asked for most at each board. The rest is in docs/searches.md, and goes into "More parameters".
const BOARDS = {
  infojobs: { title: "InfoJobs", fields: [["q", "Words"], ["province", "Provinces", "Separated by commas, as barcelona, girona"]], lists: ["province"] },
  adzuna: { title: "Adzuna", fields: [["what", "Words"], ["where", "Place"], ["country", "Country", "As gb or es"]], lists: [] },
};
const MONTH_MS = 30 * 86_400_000;

export default function Add({ again }) {
  return html`<${Action} label="Save a search" tone="main" reason=${null} explains="It is read with the next cycle, at most a quarter of an hour from now, then every day." done="Saved. It is read with the next cycle."
    action=${async (_, given, key) => { await post("searches", asked(given), { "idempotency-key": key }); again(); }}><${Fields} /><//>`;
}

function Fields() {
  const [board, setBoard] = useState("infojobs");
  const connections = useAnswer("connections", { provider: board, limit: 100 }, 0);
  const ready = connections.data?.connections.filter((each) => each.ready) ?? [];
  const text = (name, label, hint) => html`<${Field} key=${`${board} ${name}`} label=${label} hint=${hint}>${(id) => html`<input id=${id} name=${name} maxlength="200" autocomplete="off" />`}<//>`;
  return html`<${Field} label="Name">${(id) => html`<input id=${id} name="name" required maxlength="200" autocomplete="off" />`}<//>
    <${Field} label="Job board">${(id) => html`<select id=${id} name="client" value=${board} onChange=${(event) => setBoard(event.target.value)}>
      ${Object.entries(BOARDS).map(([name, { title }]) => html`<option value=${name} selected=${name === board}>${title}</option>`)}</select>`}<//>
    ${connections.data !== null && ready.length === 0 && html`<p class="trouble" role="alert">There is no connection to ${BOARDS[board].title} yet. <${Link} to="connections">Add one<//> first.</p>`}
    <${Field} label="Connection">${(id) => html`<select id=${id} name="connection" required>${ready.map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select>`}<//>
    ${BOARDS[board].fields.map(([name, label, hint]) => text(`param.${name}`, `${label} (optional)`, hint))}
    <${Field} label="More parameters (optional)" hint='JSON, as {"salary_min": 30000}'>${(id) => html`<input id=${id} name="more" autocomplete="off" />`}<//>
    <${Field} label="History from" hint="The first day to read.">${(id) => html`<input id=${id} name="seed_from" type="date" required defaultValue=${new Date(Date.now() - MONTH_MS).toISOString().slice(0, 10)} />`}<//>`;
}

function asked(given) {
  const client = given.get("client");
  const params = read(given.get("more").trim());
  for (const [name] of BOARDS[client].fields) {
    const said = given.get(`param.${name}`).trim();
    if (said) params[name] = BOARDS[client].lists.includes(name) ? said.split(",").map((each) => each.trim()).filter(Boolean) : said;
  }
  return { name: given.get("name").trim(), client, connection: given.get("connection"), seed_from: given.get("seed_from"), params };
}

function read(text) {
  if (text === "") return {};
  let found = null;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`More parameters: this isn't valid JSON. ${error.message}`);
  }
  if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error('More parameters: write a JSON object, as {"salary_min": 30000}.');
  return found;
}
