// What changes while somebody looks: asked again while the tab is seen, and a run's lines as they are written.
import { Problem, get, now, send, willPass } from "./api.js";
import { useEffect, useRef, useState } from "./vendor/preact.js";

const seen = () => document.visibilityState === "visible";

// Once a second while the tab is visible: for countdowns and ages.
export function useClock() {
  const [time, setTime] = useState(now());
  useEffect(() => {
    const timer = setInterval(() => seen() && setTime(now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return time;
}

// An answer that is asked for again every few seconds. What was last known stays while the API does not answer.
// `turn`: it is asked at once when this changes, after an action.
export function useAnswer(path, query = {}, every_s = 5, turn = 0) {
  const [state, setState] = useState({ data: null, problem: null });
  const asked = JSON.stringify([path, query]);
  const known = useRef(asked);
  useEffect(() => {
    if (known.current !== asked) setState({ data: null, problem: null }); // another pace is no other question
    known.current = asked;
    const ended = new AbortController();
    let timer = null;
    const look = async () => {
      clearTimeout(timer);
      let pause_s = every_s;
      try {
        const data = await get(path, query, ended.signal);
        setState({ data, problem: null });
      } catch (problem) {
        if (problem.name === "AbortError") return;
        setState((before) => ({ data: before.data, problem }));
        if (willPass(problem)) pause_s ||= 5;
      }
      if (pause_s && !ended.signal.aborted) timer = setTimeout(() => seen() && look(), pause_s * 1000);
    };
    const whenSeen = () => seen() && every_s && look();
    document.addEventListener("visibilitychange", whenSeen);
    look();
    return () => {
      ended.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", whenSeen);
    };
  }, [asked, every_s, turn]);
  return state;
}

// A run's server-sent events. EventSource cannot send a token, so they are read here; the rules are its own: the last
// number seen goes with the next request, and 204 means that all is known. Cut anywhere, every line is told once.
export function follow(runId, { onSnapshot, onLine, onState }) {
  let last = 0;
  let retry_ms = 2000;
  let failures = 0;
  let timer = null;
  let open = null;
  let over = false; // all is known
  let closed = false;

  const take = ({ event, data, id }) => {
    if (event === "snapshot") onSnapshot(JSON.parse(data));
    if (event === "line" && Number(id) > last) {
      onLine(JSON.parse(data));
      last = Number(id);
    }
  };

  const connect = async () => {
    if (closed) return undefined;
    open = new AbortController();
    try {
      const headers = last === 0 ? {} : { "last-event-id": String(last) };
      const answer = await send("GET", `runs/${runId}/events`, { headers, signal: open.signal });
      if (answer.status === 204 || (answer.status >= 400 && answer.status < 500 && answer.status !== 429)) {
        over = true; // all is known, or there is nothing to know
        return onState("ended");
      }
      if (!answer.ok) throw new Problem(answer.status, "stream", "no stream");
      onState("live");
      const said = await readEvents(answer.body, take);
      retry_ms = said ?? retry_ms;
      failures = 0;
    } catch (problem) {
      if (over || closed || problem.name === "AbortError") return undefined;
      failures += 1;
      onState("lost");
    }
    if (!over && !closed) timer = setTimeout(() => seen() && connect(), retry_ms * Math.min(2 ** failures, 8));
    return undefined;
  };

  const pause = () => {
    if (over || closed) return;
    clearTimeout(timer);
    open?.abort();
    if (seen()) connect();
    else onState("paused");
  };
  const atOnce = () => seen() && pause();
  document.addEventListener("visibilitychange", pause);
  addEventListener("online", atOnce);
  connect();
  return {
    again() { // after a retry: an ended run goes on
      if (!over) return;
      over = false;
      pause();
    },
    close() {
      closed = true;
      clearTimeout(timer);
      open?.abort();
      document.removeEventListener("visibilitychange", pause);
      removeEventListener("online", atOnce);
    },
  };
}

// Reads a stream to its end; an event counts when its empty line has come. Answers `retry`, if it was said.
async function readEvents(stream, take) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let retry = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return retry;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split("\n")) {
        const [, name, said] = /^(\w+): ?(.*)$/s.exec(line) ?? []; // `s`: JSON may hold U+2028
        if (name) fields[name] = said;
      }
      if (fields.retry) retry = Number(fields.retry);
      if (fields.event) take(fields);
    }
  }
}
