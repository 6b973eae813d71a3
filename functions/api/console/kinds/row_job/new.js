// A new row job: the file goes straight from the browser to the bucket; how it is read is shown before anything runs.
import { get, newKey, now, post } from "../../api.js";
import { about, bytes, number, plural } from "../../format.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { useAnswer } from "../../live.js";
import { Bar, Cell, Empty, Field, Heading, Link, Loading, NONE, NewRun, Section, Table, Trouble } from "../../parts.js";
import { go, place } from "../../router.js";

const AT = "work/row_job/new";
const FIELDS = { title: "Title", brand: "Brand", sku: "SKU" };
const LOOKS = 120; // once a second, until the bucket has told that the file is there

export default function New({ kind }) {
  const [fileId, setFileId] = useState(place().query.get("file"));
  const done = (id) => {
    go(`${AT}?file=${id}`, { quiet: true, replace: true }); // a page that is loaded again need not upload again
    setFileId(id);
  };
  const again = () => {
    go(AT, { replace: true });
    setFileId(null);
  };
  return fileId ? html`<${Look} kind=${kind} fileId=${fileId} onAgain=${again} />` : html`<${Choose} kind=${kind} onDone=${done} />`;
}

// --- the upload

function Choose({ kind, onDone }) {
  const [sending, setSending] = useState(null);
  const [isOver, setOver] = useState(false);
  const [problem, setProblem] = useState(null);
  const request = useRef(null);
  const isGone = useRef(false);
  useEffect(() => () => {
    isGone.current = true;
    request.current?.abort();
  }, []);

  const take = async (files) => {
    setOver(false);
    if (files.length === 0 || sending) return;
    setProblem(null);
    try {
      if (files.length > 1) throw new Error("Upload one file at a time. Each becomes a job of its own.");
      const [file] = files;
      if (file.size === 0) throw new Error(`${file.name} is empty.`);
      const from = now();
      setSending({ name: file.name, sent: 0, all: file.size, from });
      const given = await post("row-jobs/uploads", { name: file.name.slice(-200), size: file.size, hold: true }, { "idempotency-key": newKey() });
      await put(given, file, request, (sent) => setSending({ name: file.name, sent, all: file.size, from }));
      setSending({ name: file.name, sent: file.size, all: file.size, from, isSent: true });
      await arrived(given.file_id, isGone);
      if (!isGone.current) onDone(given.file_id);
    } catch (error) {
      if (isGone.current) return;
      setSending(null);
      if (error.name !== "AbortError") setProblem(error);
    }
  };
  const drag = (over) => (event) => {
    event.preventDefault();
    setOver(over);
  };
  const drop = (event) => {
    event.preventDefault();
    take([...event.dataTransfer.files]);
  };
  return html`<${Heading} title=${`New ${kind.title.toLowerCase()}`} />
    <div class="sheet">
      ${sending ? html`<${Sending} of=${sending} onCancel=${() => request.current?.abort()} />` : html`
        <label class=${`drop ${isOver ? "drop-over" : ""}`} onDragEnter=${drag(true)} onDragOver=${drag(true)} onDragLeave=${drag(false)} onDrop=${drop}>
          <input type="file" class="hidden" accept=".csv,.tsv,.txt,.xlsx,.zip,image/*" onChange=${(event) => take([...event.target.files])} />
          <strong>Drop a file here, or choose one</strong>
          <span class="hint">CSV or XLSX with the names of the columns in its first line, an image, or a ZIP archive of images. Nothing runs until you have seen how it is read.</span>
        </label>`}
      <${Trouble} problem=${problem} />
      <div class="buttons"><${Link} to=${`work/${kind.name}`} class="button">Back<//></div>
    </div>`;
}

function Sending({ of, onCancel }) {
  const seconds = (now() - of.from) / 1000;
  const left = of.sent > 0 && seconds > 1 ? (seconds / of.sent) * (of.all - of.sent) : null;
  return html`<div class="drop" role="status">
    <strong>${of.isSent ? "Uploaded. Checking the file…" : `Uploading ${of.name}`}</strong>
    <${Bar} done=${of.sent} all=${of.all} label="Upload" />
    <span class="hint">${bytes(of.sent)} of ${bytes(of.all)}${left !== null && !of.isSent ? ` · about ${about(left)} left` : ""}</span>
    ${!of.isSent && html`<div><button type="button" class="button" onClick=${onCancel}>Cancel upload</button></div>`}
  </div>`;
}

// A form to the bucket, as the API signed it: its fields first, the file last. Only this kind of request tells how far it is.
export function put(given, file, request, onProgress) {
  const form = new FormData();
  for (const [name, value] of Object.entries(given.fields)) form.append(name, value);
  form.append("file", file);
  return new Promise((resolve, reject) => {
    const sends = new XMLHttpRequest();
    request.current = sends;
    sends.upload.onprogress = (event) => onProgress(Math.min(event.loaded, file.size));
    sends.onload = () => (sends.status < 300 ? resolve() : reject(new Error(`The file wasn't accepted (${sends.status}). Upload it again.`)));
    sends.onerror = () => reject(new Error("The upload was interrupted. Nothing was kept: upload the file again."));
    sends.onabort = () => reject(new DOMException("", "AbortError"));
    sends.open("POST", given.url);
    sends.send(form);
  });
}

export async function arrived(fileId, isGone) {
  for (let n = 0; n < LOOKS && !isGone.current; n += 1) {
    if ((await get(`row-jobs/uploads/${fileId}`)).arrived) return;
    await new Promise((done) => setTimeout(done, 1000));
  }
  if (!isGone.current) throw new Error("The file was uploaded, but its arrival isn't known yet. Try again in a minute.");
}

// --- how it is read

function Look({ kind, fileId, onAgain }) {
  const [mapping, setMapping] = useState({});
  const upload = useAnswer(`row-jobs/uploads/${encodeURIComponent(fileId)}`, {}, 0);
  const preview = useAnswer(`row-jobs/uploads/${encodeURIComponent(fileId)}/preview`, mapping, 0);
  const connections = useAnswer("connections", { provider: "product_search", limit: 100 }, 0);
  const ready = connections.data?.connections.filter((each) => each.ready) ?? [];
  const shown = useRef(null); // while another mapping is tried, the columns stay
  if (preview.data) shown.current = preview.data;
  const found = shown.current;
  const isImages = found?.job_type === "image";
  const request = (given) => {
    const body = { file_id: fileId, connection: given.get("connection"), ...(isImages ? {} : { mapping: found.mapping }) };
    const retailers = given.get("retailers").split(",").map((each) => each.trim()).filter(Boolean);
    if (retailers.length > 0) body.retailers = retailers;
    if (given.get("canary")) body.canary = Number(given.get("canary"));
    return { path: "row-jobs", body };
  };
  const choose = (field) => (event) => {
    const next = { ...found.mapping, [field]: event.target.value };
    setMapping(Object.fromEntries(Object.entries(next).filter(([, column]) => column)));
  };
  const again = html`<button type="button" class="button" onClick=${onAgain}>Upload another file</button>`;
  if (upload.data?.run_id) return html`<${Heading} title=${upload.data.name} /><${Empty}><p>This file has its job already: <${Link} to=${`runs/${upload.data.run_id}/rows`}>open it<//>.</p><p>${again}</p><//>`;
  if (!found) return html`<${Heading} title=${`New ${kind.title.toLowerCase()}`} />${preview.problem ?? upload.problem ? html`<${Trouble} problem=${preview.problem ?? upload.problem} /><p>${again}</p>` : html`<${Loading} />`}`;
  const isUsable = Boolean(found.mapping.title || found.mapping.sku);
  return html`<${NewRun} kind=${kind} request=${request} isReady=${isUsable && ready.length > 0 && !preview.problem} opens="rows" verb=${["Start job", "Starting…", "Started."]}>
      <p>${upload.data && html`<strong>${upload.data.name}</strong>, ${bytes(upload.data.size)}. `}Nothing runs yet. ${again}</p>
      ${connections.data !== null && ready.length === 0 && html`<p class="trouble" role="alert">There is no connection to a product search yet. An admin can <${Link} to="connections">add one<//>.</p>`}
      ${isImages ? html`<p class="hint">Each image is searched for by its name: <code>acme-x200.jpg</code> is “acme x200”.</p>` : html`<fieldset><legend>Columns</legend><div class="pair trio">
        ${Object.entries(FIELDS).map(([field, label]) => html`<${Field} label=${label} key=${field}>${(id) => html`<select id=${id} onChange=${choose(field)}>
          <option value="" selected=${!found.mapping[field]}>Not in the file</option>
          ${found.columns.map((column) => html`<option value=${column} selected=${found.mapping[field] === column}>${column}</option>`)}</select>`}<//>`)}</div>
        ${!isUsable && html`<p class="trouble" role="alert">Choose the column that holds the title or the SKU.</p>`}
        <p class="hint">${found.encoding === "xlsx" ? "Read from the first sheet, each cell as it is shown." : `Read as ${found.encoding}, cells separated by ${{ "\t": "tabs", ";": "semicolons", ",": "commas", "|": "bars" }[found.delimiter] ?? found.delimiter}.`}</p>
      </fieldset>`}
      <fieldset><legend>Search</legend><div class="pair trio">
        <${Field} label="Connection" hint="The account to use.">${(id) => html`<select id=${id} name="connection" required>${ready.map((each) => html`<option value=${each.id}>${each.name}</option>`)}</select>`}<//>
        <${Field} label="Retailers (optional)" hint="Where to look first, separated by commas.">${(id) => html`<input id=${id} name="retailers" autocomplete="off" placeholder="shop1.example" />`}<//>
        <${Field} label="Canary (optional)" hint="So many rows first; the rest when you process all rows.">${(id) => html`<input id=${id} name="canary" type="number" min="1" max="10000" />`}<//></div>
      </fieldset>
      <${Trouble} problem=${preview.problem} />
    <//>
    <${Preview} of=${found} />`;
}

function Preview({ of }) {
  const [onlyBad, setOnlyBad] = useState(false);
  const rows = onlyBad ? of.rows.filter((row) => row.problem) : of.rows;
  const side = of.problems > 0 && html`<label class="inline"><input type="checkbox" checked=${onlyBad} onChange=${(event) => setOnlyBad(event.target.checked)} />Only rows with a problem</label>`;
  const fields = Object.keys(FIELDS).filter((field) => of.mapping[field]);
  const others = of.columns.filter((column) => !Object.values(of.mapping).includes(column)).slice(0, 4);
  const columns = ["Row", ...fields.map((field) => FIELDS[field]), ...others, "Problem"];
  const note = of.rows.length === 0 ? null : `the first ${plural(of.rows.length, "row")}${of.problems ? `, ${number(of.problems)} would be skipped` : ", all can be used"}`;
  return html`<${Section} title="Preview" note=${note} side=${side}>
    ${rows.length === 0 ? html`<${Empty}><p>The file holds no rows.</p><//>` : html`<div class="tall" tabindex="0" role="region" aria-label="Preview of the rows"><${Table} caption="The first rows as they would be read" columns=${columns}><tbody>
      ${rows.map((row) => html`<tr key=${row.row_no}><${Cell} name="Row">${number(row.row_no)}<//>
        ${fields.map((field) => html`<${Cell} name=${FIELDS[field]} className="long">${row.normalized?.[field] ?? row.input[of.mapping[field]] ?? NONE}<//>`)}
        ${others.map((column) => html`<${Cell} name=${column} className="long">${row.input[column] || NONE}<//>`)}
        <${Cell} name="Problem" className="long">${row.problem ? html`<span class="error-line">${row.problem}</span>` : NONE}<//></tr>`)}</tbody><//></div>`}
  <//>`;
}
