// Jobs: the queue, the form that adds one, attempts with their logs, definitions and workers. The contract is in ../kinds.js.
// What it shows is loaded when it is opened.
import { duration } from "../format.js";
import { MANAGES, later } from "../parts.js";

export default {
  title: "Job",
  many: "Jobs",
  one: "Job",
  listTitle: "Jobs",
  New: later(async () => (await import("./job/new.js")).default),
  List: later(async () => (await import("./job/list.js")).default),
  pages: [
    { path: "definitions", title: "Definitions", View: later(async () => (await import("./job/definitions.js")).default) },
    { path: "triggers", title: "Triggers", roles: MANAGES, View: later(async () => (await import("./job/triggers.js")).default) },
    { path: "workers", title: "Workers", roles: [], View: later(async () => (await import("./job/admin.js")).Workers) },
    { path: "tenants", title: "All tenants", roles: [], View: later(async () => (await import("./job/admin.js")).Tenants) },
  ],
  tabs: [{ path: "attempts", title: "Attempts", View: later(async () => (await import("./job/attempts.js")).default) }],
  facts: ({ params }) => [["Definition", `${params.definition_key}, version ${params.version}`], ["Attempts allowed", params.max_attempts], ["Time limit", `${duration(params.timeout_seconds)} per attempt`]],
  waits: { queued: { path: "", label: "Show queue" }, inactive: { path: "definitions", label: "Definitions" } },
  laneName: (key) => (key === "run" ? "Command" : null),
  words: { retry: "Runs the command again, with fresh attempts. They are numbered on.", failed: "Fix the cause, then retry: the command runs again.", cancel: "A waiting job ends at once; a running command is stopped.", canceling: "Canceling: the command is being stopped." },
};
