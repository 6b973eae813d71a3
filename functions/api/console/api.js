// The public API, called as anyone may call it: with the visitor's token, in the tenant they chose.
import { renew, session } from "./session.js";

const ROOT = new URL("../api/v1/", document.baseURI);
let tenant = null;
let ahead_ms = 0;

export const chooseTenant = (id) => {
  tenant = id;
};

// What the server's clock says now: countdowns must not depend on this machine's.
export const now = () => Date.now() + ahead_ms;

// What went wrong, in the API's own words.
export class Problem extends Error {
  constructor(status, code, detail, fields = []) {
    super(detail);
    Object.assign(this, { status, code, fields });
  }
}

// Since when nobody answers; null: somebody does.
let lost_at = null;
const watchers = new Set();
export const lostSince = () => lost_at;
export const onConnection = (listener) => {
  watchers.add(listener);
  return () => watchers.delete(listener);
};
function note(isLost) {
  if (isLost === (lost_at !== null)) return;
  lost_at = isLost ? now() : null;
  for (const listener of watchers) listener();
}

const LOST = "The API isn't responding. Retrying automatically.";
const UNSURE = "The API didn't respond, so this may or may not have happened. Check before you try again.";
const lost = (method) => new Problem(0, "offline", method === "GET" ? LOST : UNSURE);

// Whether it is worth asking again in a moment.
export const willPass = (problem) => problem.status === 0 || problem.status === 429 || problem.status >= 500;

export async function send(method, path, { query = {}, body, headers = {}, signal } = {}) {
  const url = new URL(path, ROOT);
  const wanted = tenant; // whatever is chosen while this is under way
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  const ask = () =>
    fetch(url, {
      method, signal, cache: "no-store",
      headers: {
        ...headers,
        authorization: `Bearer ${session()?.access}`,
        ...(wanted === null ? {} : { "x-tenant-id": wanted }),
        ...(body === undefined ? {} : { "content-type": "application/json" }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  try {
    let answer = await ask();
    if (answer.status === 401 && (await renew())) answer = await ask();
    const said = Date.parse(answer.headers.get("date"));
    if (Math.abs(said - now()) > 2000) ahead_ms = said - Date.now(); // it only tells whole seconds
    note(answer.status === 502 || answer.status === 504);
    return answer;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    note(true);
    throw lost(method);
  }
}

export async function ask(method, path, options = {}) {
  const answer = await send(method, path, options);
  const text = await answer.text().catch((error) => {
    throw error.name === "AbortError" ? error : lost(method);
  });
  let said = null;
  try {
    said = text === "" ? null : JSON.parse(text);
  } catch {
    // A gateway's own words.
  }
  if (answer.ok) return method === "POST" && answer.status === 200 && said?.id ? { ...said, already: true } : said; // 201: it is new
  const isGateways = said?.code === undefined; // its own words say neither what happened nor what to do
  if (answer.status === 502 || answer.status === 504 || (answer.status === 503 && isGateways)) throw new Problem(answer.status, "gateway", method === "GET" ? LOST : UNSURE);
  if (answer.status === 429 && isGateways) throw new Problem(429, "throttled", "Too many requests. Wait a moment, then try again.");
  throw new Problem(answer.status, said?.code || "unexpected", said?.detail || said?.message || `Something went wrong: the API answered ${answer.status}.`, said?.fields);
}

export const get = (path, query, signal) => ask("GET", path, { query, signal });
export const post = (path, body = {}, headers = {}) => ask("POST", path, { body, headers });

// For an action that creates something: sent twice with the same key, it happens once.
export const newKey = () => crypto.randomUUID();
