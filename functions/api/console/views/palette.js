// Everything by its name: views, what can be started, and runs by a part of their label or ID.
import { get } from "../api.js";
import { shortId } from "../format.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { deployedKinds, kindOf } from "../kinds.js";
import { Dialog, STARTS, Status, Trouble, runName, useMay } from "../parts.js";
import { go } from "../router.js";

const LEAST = 2; // letters that runs are searched for by
const FEW = 8;

export default function Palette({ views, onClose }) {
  const mayStart = useMay(STARTS);
  const [text, setText] = useState("");
  const [runs, setRuns] = useState({ of: "", found: [] });
  const [problem, setProblem] = useState(null);
  const [at, setAt] = useState(0);
  const list = useRef(null);
  const asked = text.trim();

  useEffect(() => {
    if (asked.length < LEAST) {
      setRuns({ of: asked, found: [] });
      return undefined;
    }
    const ended = new AbortController();
    const timer = setTimeout(() => get("runs", { q: asked, limit: FEW }, ended.signal).then(
      ({ runs: found }) => { setRuns({ of: asked, found }); setProblem(null); },
      (error) => error.name !== "AbortError" && setProblem(error),
    ), 150);
    return () => {
      clearTimeout(timer);
      ended.abort();
    };
  }, [asked]);

  const has = (name) => name.toLowerCase().includes(asked.toLowerCase());
  const all = [
    ...runs.found.map((run) => ({ key: run.id, to: `runs/${run.id}`, name: runName(run), note: html`<${Status} of=${run.state} /> ${kindOf(run.kind).title} <code>${shortId(run.id)}</code>` })),
    ...views.filter((view) => has(view.name)).map((view) => ({ key: view.path, to: view.path, name: view.name, note: "Go to" })),
    ...(mayStart ? deployedKinds().filter((kind) => has(`new ${kind.one ?? kind.title}`)).map((kind) => ({ key: `new ${kind.name}`, to: `work/${kind.name}/new`, name: `New ${(kind.one ?? kind.title).toLowerCase()}`, note: "Start" })) : []),
  ];
  const chosen = Math.min(at, all.length - 1);
  useEffect(() => list.current?.children[chosen]?.scrollIntoView({ block: "nearest" }), [chosen]);
  const open = (entry) => {
    onClose();
    go(entry.to);
  };
  const key = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((chosen + step + all.length) % Math.max(all.length, 1));
    } else if (event.key === "Enter" && all[chosen]) {
      event.preventDefault();
      open(all[chosen]);
    }
  };
  const isSearching = asked.length >= LEAST && runs.of !== asked && !problem;
  return html`<${Dialog} title="Go to" className="palette" onClose=${onClose}>
    <input type="search" role="combobox" aria-label="Search runs, pages and actions" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${all[chosen] ? `palette-${chosen}` : undefined}
      placeholder="Search runs by label or ID, pages, actions" autofocus autocomplete="off" value=${text} onInput=${(event) => { setText(event.target.value); setAt(0); }} onKeyDown=${key} />
    <ul id="palette-list" role="listbox" aria-label="Results" ref=${list}>${all.map((entry, n) => html`<li key=${entry.key} id=${`palette-${n}`} role="option" aria-selected=${n === chosen} onClick=${() => open(entry)}>
      <span class="name">${entry.name}</span> <span class="quiet">${entry.note}</span></li>`)}</ul>
    <${Trouble} problem=${problem} />
    <p class="quiet" role="status">${isSearching ? "Searching…" : all.length === 0 ? "Nothing found." : asked.length < LEAST ? "Type to search for runs." : ""}</p>
  <//>`;
}
