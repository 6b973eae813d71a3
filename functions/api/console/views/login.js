// Log in: here where the user pool takes a password, otherwise on the issuer's own page.
import { html, useEffect, useState } from "../vendor/preact.js";
import { Field, Trouble } from "../parts.js";
import { goToIssuer, logIn, takesPassword } from "../session.js";

export default function Login({ refusal }) {
  const [problem, setProblem] = useState(refusal ? new Error(refusal) : null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    document.title = "Log in · Baton";
  }, []);
  const attempt = async (how) => {
    setBusy(true);
    setProblem(null);
    try {
      await how();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    attempt(() => logIn(given.get("username"), given.get("password")));
  };
  return html`<main class="alone login">
    <h1>Baton</h1>
    <p class="quiet">Long work, short functions.</p>
    ${takesPassword
      ? html`<form onSubmit=${submit}>
          <${Field} label="Email">${(id) => html`<input id=${id} name="username" type="email" autocomplete="username" required autofocus />`}<//>
          <${Field} label="Password">${(id) => html`<input id=${id} name="password" type="password" autocomplete="current-password" required />`}<//>
          <${Trouble} problem=${problem} />
          <button type="submit" class="button main wide" disabled=${isBusy}>${isBusy ? "Logging in…" : "Log in"}</button>
          <p class="hint">In a local cloud, <code>baton console</code> shows the email and password.</p>
        </form>`
      : html`<${Trouble} problem=${problem} />
          <button type="button" class="button main wide" disabled=${isBusy} onClick=${() => attempt(goToIssuer)}>${isBusy ? "Logging in…" : "Log in"}</button>`}
  </main>`;
}
