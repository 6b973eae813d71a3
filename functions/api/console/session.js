// Who is logged in. Tokens live as long as a tab is open: in this tab's storage, lent to new tabs by those that are open.

const LOGIN = JSON.parse(document.querySelector('meta[name="baton-login"]').content);
const KEPT = "baton.session";
const ASKED = "baton.asked"; // what was sent to the issuer's page, until it sends the visitor back
const LENT_WITHIN_MS = 200;

export const takesPassword = LOGIN.password_url !== "";

// `isFinal`: asked again it would be the same. Else it was only the way there.
class SignInError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.isFinal = status >= 400 && status < 500 && status !== 429;
  }
}

const tabs = new BroadcastChannel("baton.session");
const listeners = new Set();
let current = read();
let renewing = null;

export const session = () => current;

export function onSession(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    return null;
  }
}

function keep(next) {
  current = next;
  if (next === null) sessionStorage.removeItem(KEPT);
  else sessionStorage.setItem(KEPT, JSON.stringify(next));
  for (const listener of listeners) listener();
}

tabs.onmessage = ({ data }) => {
  if (data.type === "wanted" && current !== null) tabs.postMessage({ type: "lent", session: current });
  if (data.type === "lent" && current === null && data.session.client_id === LOGIN.client_id) keep(data.session);
  if (data.type === "renewed" && current?.refresh === data.was) keep(data.session); // some refresh tokens serve once
  if (data.type === "ended" && current !== null) keep(null);
};

// What is there to begin with: this tab's own session, one that another tab lends, or the issuer's answer in the address.
export async function enter() {
  const asked = new URLSearchParams(location.search);
  if (asked.has("state") && (asked.has("code") || asked.has("error"))) return await finishAtIssuer(asked);
  if (current === null) {
    tabs.postMessage({ type: "wanted" });
    const until = performance.now() + LENT_WITHIN_MS;
    while (current === null && performance.now() < until) await new Promise((done) => setTimeout(done, 20));
  }
  return null;
}

export async function logIn(username, password) {
  const answer = await askPool("InitiateAuth", {
    AuthFlow: "USER_PASSWORD_AUTH", ClientId: LOGIN.client_id,
    AuthParameters: { USERNAME: username, PASSWORD: password },
  });
  if (!answer.AuthenticationResult) {
    throw new SignInError(`The user pool asks for ${answer.ChallengeName}, which this page can't answer. Set a permanent password first.`);
  }
  const given = answer.AuthenticationResult;
  keep({ client_id: LOGIN.client_id, name: username, access: given.AccessToken, refresh: given.RefreshToken });
}

async function askPool(target, body) {
  let answer;
  try {
    answer = await fetch(`${LOGIN.password_url}/`, {
      method: "POST",
      headers: { "content-type": "application/x-amz-json-1.1", "x-amz-target": `AWSCognitoIdentityProviderService.${target}` },
      body: JSON.stringify(body),
    });
  } catch {
    throw new SignInError("The user pool isn't responding. Check your connection, then try again.");
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new SignInError(said.message || said.Message || `Log-in failed: the user pool answered ${answer.status}.`, answer.status);
  return said;
}

// --- the issuer's own page: OpenID Connect, code flow with PKCE

async function issuer() {
  const place = `${LOGIN.issuer.replace(/\/$/, "")}/.well-known/openid-configuration`;
  const answer = await fetch(place).catch(() => null);
  if (!answer?.ok) throw new SignInError(`The sign-in service ${LOGIN.issuer} isn't responding. Try again in a moment.`);
  return answer.json();
}

// Registered at the issuer, so it never changes; the console forwards it to its first view.
const home = () => new URL("now", document.baseURI).href;
const encoded = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const random = () => encoded(crypto.getRandomValues(new Uint8Array(32)));

export async function goToIssuer() {
  const { authorization_endpoint } = await issuer();
  const asked = { state: random(), verifier: random(), back: location.href };
  sessionStorage.setItem(ASKED, JSON.stringify(asked));
  const challenge = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(asked.verifier));
  const query = new URLSearchParams({
    response_type: "code", client_id: LOGIN.client_id, redirect_uri: home(), scope: LOGIN.scopes,
    state: asked.state, code_challenge: encoded(challenge), code_challenge_method: "S256",
  });
  location.assign(`${authorization_endpoint}?${query}`);
}

async function finishAtIssuer(answered) {
  const asked = JSON.parse(sessionStorage.getItem(ASKED) || "null");
  sessionStorage.removeItem(ASKED);
  const back = asked === null ? home() : asked.back;
  history.replaceState(null, "", back); // the code is used once, and nobody should find it in the address
  if (asked === null || asked.state !== answered.get("state")) return "That sign-in was not started in this tab. Log in again.";
  if (answered.has("error")) return answered.get("error_description") || answered.get("error");
  try {
    keep(await tokens({ grant_type: "authorization_code", code: answered.get("code"), code_verifier: asked.verifier, redirect_uri: home() }));
  } catch (error) {
    return error.message;
  }
  return null;
}

async function tokens(form) {
  const { token_endpoint } = await issuer();
  const body = new URLSearchParams({ client_id: LOGIN.client_id, ...form });
  const answer = await fetch(token_endpoint, { method: "POST", body }).catch(() => null);
  const said = await answer?.json().catch(() => ({}));
  if (!answer?.ok) throw new SignInError(said?.error_description || said?.error || "The sign-in service gave no tokens. Log in again.", answer?.status);
  // Some issuers' access tokens are for somebody else, or for nobody to read: the gateway takes the one that is for us.
  const ours = [said.access_token, said.id_token].find((token) => isFor(claimsOf(token), LOGIN.audience));
  const { email, preferred_username, sub } = claimsOf(said.id_token);
  return { client_id: LOGIN.client_id, name: email || preferred_username || sub || "", access: ours ?? said.access_token, refresh: said.refresh_token || form.refresh_token };
}

function claimsOf(token) {
  try {
    return JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
  } catch {
    return {};
  }
}

const isFor = ({ aud, client_id }, audience) => [aud, client_id].flat().includes(audience);

// --- its end

// A new access token; false: the session is over. Whoever asks meanwhile waits for the same answer.
export function renew() {
  renewing ??= tryToRenew().finally(() => {
    renewing = null;
  });
  return renewing;
}

async function tryToRenew() {
  const before = current;
  // One tab at a time: a refresh token that serves once must not be shown twice.
  return await navigator.locks.request("baton.renew", async () => {
    if (before === null || current !== before) return current !== null; // another tab was quicker, or it ended meanwhile
    let next = null;
    try {
      next = await renewed(before);
    } catch (error) {
      if (!error.isFinal) throw error; // whoever asked says that nobody answers, and asks again
    }
    if (current !== before) return current !== null;
    keep(next);
    if (next !== null) tabs.postMessage({ type: "renewed", was: before.refresh, session: next });
    return next !== null;
  });
}

async function renewed(old) {
  if (!takesPassword) return { ...(await tokens({ grant_type: "refresh_token", refresh_token: old.refresh })), name: old.name };
  const { AuthenticationResult: given } = await askPool("InitiateAuth", {
    AuthFlow: "REFRESH_TOKEN_AUTH", ClientId: LOGIN.client_id, AuthParameters: { REFRESH_TOKEN: old.refresh },
  });
  return { ...old, access: given.AccessToken };
}

export async function logOut() {
  const ended = current;
  keep(null);
  tabs.postMessage({ type: "ended" });
  try {
    if (takesPassword) await askPool("RevokeToken", { ClientId: LOGIN.client_id, Token: ended.refresh });
    else {
      const { end_session_endpoint, revocation_endpoint } = await issuer();
      const body = new URLSearchParams({ client_id: LOGIN.client_id, token: ended.refresh });
      if (revocation_endpoint && ended.refresh) await fetch(revocation_endpoint, { method: "POST", body }).catch(() => {});
      if (end_session_endpoint) {
        const query = new URLSearchParams({ client_id: LOGIN.client_id, logout_uri: home(), post_logout_redirect_uri: home() });
        location.assign(`${end_session_endpoint}?${query}`);
      }
    }
  } catch {
    // It is forgotten here either way, and ends by itself.
  }
}
