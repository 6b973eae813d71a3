"""The steps of reading a source: plan, part, audit, consolidate. Read, ask the upstream, decide; the relay commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import Any

from shared.kernel import db
from shared.kernel.catalogue import Outside
from shared.kernel.errors import Later, Permanent, Refused, StepError, Throttled, Transient
from shared.kernel.model import (
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    NewLane,
    NewRun,
    Run,
    RunStatus,
    Starting,
    Turn,
)
from shared.kernel.params import parse, with_connection
from shared.kernel.ports import Tx
from shared.kernel.tokens import TokenRefused, TokenSource
from shared.kernel.wrong import available, unknown
from shared.page_ingest import decide
from shared.page_ingest.ports import PageTooBig
from shared.page_ingest.reader import answers, plan, settle, store, walk
from shared.page_ingest.reader.answers import PageRead, Row
from shared.page_ingest.reader.client import OAUTH, Client, Expired
from shared.page_ingest.reader.files import Files, scope_of
from shared.page_ingest.reader.model import (
    AuditCursor,
    ConsolidateCursor,
    PlanCursor,
    ReadCursor,
    SourceParams,
    read_lane,
)
from shared.page_ingest.reader.store import SourceStore
from shared.page_ingest.reader.words import instant
from shared.page_ingest.source.compile import Compiled, CompiledResource
from shared.page_ingest.source.migration import TYPES
from shared.page_ingest.source.model import Claim, Resource

BATCH = 1_000  # of what is judged gone
MOVED_AT_ONCE = 5_000
LOOKS_PER_STEP = 8
REPLAY_BATCH = 200
# How Postgres calls the types of the columns.
CALLED = {"timestamptz": "timestamp with time zone"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """`client` makes the client of a source for one step, with its account, bounded by the time that the step has left.
    `pages_per_step`: the most pages that a step reads."""

    files: Files
    client: Callable[[Compiled, SourceParams, Turn, Callable[[], float]], Client]
    tokens: TokenSource
    store: SourceStore
    pages_per_step: int = 1


# --- the run ----------------------------------------------------------------------------------------------------------


def start(files: Files, tx: Tx, starting: Starting) -> NewRun:
    """A run begins with the lane that divides its lists. What it is about is pinned: the file by its digest."""
    # First: fields of another source are not unknown, only in the wrong place.
    source, known = starting.params.get("source"), ["nivoda", *files.all()]
    if source is None:
        raise Refused("bad_params", f"`source` is required. {available(known)}")
    if source not in known:
        raise Refused("bad_params", unknown("source", str(source), known))
    wanted = parse(SourceParams, starting.params)
    found = files.all()[wanted.source]
    if wanted.digest not in (None, found.digest):
        raise Refused("bad_params", "digest: the file of this source has changed.")
    wanted = wanted.model_copy(update={"digest": found.digest})
    try:
        compiled = files.pinned(wanted)
    except Permanent as error:
        raise Refused("bad_params", error.message) from None
    chosen = _chosen(compiled, wanted)
    wanted = with_connection(tx, starting.tenant_id, wanted, wanted.source)
    if wanted.connection is None and (compiled.source.auth.way != "none" or compiled.source.settings):
        raise Refused("bad_params", f"connection: {wanted.source} needs one for its account and settings.")
    _tables_are_there(tx, [each for each in compiled.resources if each.resource.name in chosen])
    if wanted.replay:
        lanes = [NewLane(key=f"replay/{name}", cursor={"resource": name, "after": 0}) for name in chosen]
    else:
        lanes = [NewLane(key="plan/0", cursor=PlanCursor(shape=shape_of(compiled, wanted)).to_json())]
    return NewRun(
        params=wanted.model_dump(mode="json", exclude_none=True, exclude_defaults=False, by_alias=True), lanes=lanes,
        time_limit_s=wanted.time_limit_s, label=f"{wanted.source} {', '.join(chosen)}"[:200],
    )  # fmt: skip


def _chosen(compiled: Compiled, wanted: SourceParams) -> list[str]:
    known = [each.resource.name for each in compiled.resources]
    unknown = [name for name in wanted.resources or [] if name not in known]
    if unknown:
        raise Refused("bad_params", f"resources: {unknown[0]} is unknown. Available: {', '.join(known)}")
    ways = [
        [each.name for each in found]
        for found in plan.generations(compiled.source.resources, wanted.resources or known)
    ]
    chosen = [name for names in ways for name in names]
    if not wanted.replay:
        for name in chosen:
            split = compiled.source.resources[name].split
            if split is not None and split.way == "window":
                if wanted.begin is None:
                    raise Refused("bad_params", f"from: is needed, because {name} is read in windows of time")
                if wanted.to is not None and instant(wanted.begin) >= instant(wanted.to):
                    raise Refused("bad_params", "from: must be before to")
    return chosen


def shape_of(compiled: Compiled, wanted: SourceParams) -> dict[str, Any]:
    resources = compiled.source.resources
    ways = plan.generations(resources, wanted.resources or list(resources))
    chosen = [each.name for found in ways for each in found]
    since = {name: plan.parent_of(resources[name]) for name in chosen if resources[name].since is not None}
    lags = {name: rule.lag.usual_seconds for name in chosen if (rule := resources[name].since) is not None and rule.lag}
    return {
        "generations": [[each.name for each in found] for found in ways],
        "best": {
            each.resource.name: str(each.best.claim) for each in compiled.resources if each.resource.name in chosen
        },
        "parents": {name: parent for name in chosen if (parent := plan.parent_of(resources[name])) is not None},
        "since": since,
        "lags": lags,
        # Lists of changes that are read in windows.
        "spans": [name for name in since if _is_windowed(resources[name])],
        # Lists whose rows begin at a watermark of their parent: nobody knows from the lane whether all was read.
        "marked": [name for name, parent in since.items() if parent is not None and not wanted.full],
    }


def _tables_are_there(tx: Tx, resources: Sequence[CompiledResource]) -> None:
    """A reviewed migration makes the tables; a run makes none."""
    found: dict[str, dict[str, str]] = {}
    for row in tx.read(store.COLUMNS, {"tables": [each.table for each in resources]}):
        found.setdefault(row["table_name"], {})[row["column_name"]] = row["data_type"]
    for each in resources:
        wrong = _what_it_lacks(each, found.get(each.table))
        if wrong is not None:
            raise Refused("no_table", wrong)


def _what_it_lacks(each: CompiledResource, there: Mapping[str, str] | None) -> str | None:
    """What is wrong with a table for this file, and what to do. `there`: its columns and how Postgres calls their types."""
    file = f"sources/{each.table.removesuffix(f'_{each.resource.name}')}.toml"
    if there is None:
        return (
            f"Table {each.table} is missing. Write its migration with `baton source migration {file}`, with --again if the source"
            " already has tables. Then review and deploy it."
        )
    for column in each.resource.columns:
        wanted = CALLED.get(TYPES[column.type], TYPES[column.type])
        if column.name not in there:
            return (
                f"Table {each.table} has no column {column.name}. Write a migration with `baton source migration {file} --again`."
                " Then review and deploy it."
            )
        if there[column.name] != wanted:
            return (
                f"Column {column.name} of table {each.table} is {there[column.name]}, but the file needs {wanted}. Give the column"
                f" a new name in the file, and add it with `baton source migration {file} --again`."
            )
    return None


def gates(turn: Turn) -> list[str]:
    asks = turn.key.startswith(("plan/", "part/", "audit/")) or turn.cursor.get("stage") == "look"
    return [SourceParams.model_validate(dict(turn.params)).account] if asks else []


def on_end(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
    """Watermarks are written with the run's end, in its transaction, and only if the run succeeded."""
    if ending.status is RunStatus.SUCCEEDED:
        params = SourceParams.model_validate(dict(run.params))
        names = {"source": params.source, "connection": params.connection or ""}
        tx.apply(Effect(store.WRITE_MARKS, {"run_id": run.id, "consolidations": f"consolidate/{run.epoch}/%", **names}))
    return ()


def prune(tx: Tx, run: Run, most: int) -> int:
    gone = 0
    for statement in (store.PRUNE_QUARANTINE, store.PRUNE_MARKS, store.PRUNE):
        gone += tx.apply(Effect(statement, {"run_id": run.id, "most": most - gone}))
    return gone


# --- the steps --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    ports: Ports

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        params = SourceParams.model_validate(dict(turn.params))
        compiled = self.ports.files.pinned(params)
        key = turn.key.partition("/")[0]
        if key == "replay":
            return self._replay(turn, compiled, params)
        if key == "consolidate" and turn.cursor.get("stage") != "look":
            return self._consolidate(turn, compiled, params)
        client = self.ports.client(compiled, params, turn, outside.time_left_s)
        client.now = turn.now
        token = None
        if compiled.source.auth.way in OAUTH:
            token = self.ports.tokens.of(turn, params.account, client.log_in)
            client.token = token.value
        asked = Asking(
            turn,
            params,
            compiled,
            client,
            self.ports.store,
            outside.time_left_s,
            outside.write,
            self.ports.pages_per_step,
        )
        try:
            return self._look(key, asked)
        except TokenRefused:
            asked.token_refused = True
            raise
        finally:
            if token is not None and asked.token_refused:
                self.ports.tokens.forget(turn, params.account, token)

    def _look(self, key: str, asked: Asking) -> Decision:
        cursor = asked.turn.cursor
        match key:
            case "plan":
                return _plan(PlanCursor.read(cursor), asked)
            case "part":
                return _part(ReadCursor.read(cursor), asked)
            case "audit":
                return _audit(AuditCursor.read(cursor), asked)
            case "consolidate":
                return _look_up(ConsolidateCursor.read(cursor), asked)
            case _:
                raise Permanent(f"there is no lane {asked.turn.key} in the reading of a source", "unknown_lane")

    # --- into the table

    def _consolidate(self, turn: Turn, compiled: Compiled, params: SourceParams) -> Decision:
        """A bounded batch of the run's rows; then what it did not see is judged, if it may be."""
        cursor = ConsolidateCursor.read(turn.cursor)
        each = _of(compiled, cursor.resource)
        connection = params.connection or ""
        if cursor.stage == "rows":
            upto = self.ports.store.batch_ends_at(turn, cursor.resource, cursor.after, MOVED_AT_ONCE)
            if upto is not None:
                columns = tuple((column.name, column.type) for column in each.resource.columns)
                replays = cursor.claim == settle.REPLAYED
                statement = store.consolidation(each.table, columns, drops=cursor.drops, replays=replays)
                batch = {"resource": cursor.resource, "connection": connection, "after": cursor.after, "upto": upto}
                batch |= {"said_source": params.source} if replays else {}
                effects = [
                    Effect(statement, batch),
                    store.release(params.source, connection, cursor.resource, cursor.after, upto),
                ]
                return Continue(cursor=cursor.but(after=upto).to_json(), effects=effects)
            return self._rows_are_moved(turn, cursor, each, connection)
        wanted = unseen_params(cursor, connection)
        upto = self.ports.store.unseen_ends_at(turn, each.table, wanted, cursor.after, BATCH)
        if upto is None:
            return Finish(cursor=cursor.to_json())
        effect = Effect(store.mark_gone(each.table), {"after": cursor.after, "upto": upto, **wanted})
        return Continue(cursor=cursor.but(after=upto).to_json(), effects=[effect])

    def _rows_are_moved(
        self, turn: Turn, cursor: ConsolidateCursor, each: CompiledResource, connection: str
    ) -> Decision:
        gone = each.resource.gone
        unseen = gone.way == "unseen" and cursor.claim == Claim.COMPLETE
        looks = gone.way == "look" and cursor.full and cursor.claim in settle.REASONS
        if not unseen and not looks:
            return Finish(cursor=cursor.to_json())
        alive, missed = self.ports.store.fuse(turn, each.table, unseen_params(cursor, connection))
        if unseen and missed * 100 > gone.most * alive:
            return Finish(cursor=cursor.but(fuse=blown(missed, alive, gone.most)).to_json())
        stage = "gone" if unseen else "look"
        counted = missed if unseen else 0
        forgets = [] if unseen else [Effect(store.forget_missed(each.table), {"connection": connection})]
        then = cursor.but(stage=stage, after="", alive=alive, gone=counted)
        return Continue(cursor=then.to_json(), effects=forgets)

    def _replay(self, turn: Turn, compiled: Compiled, params: SourceParams) -> Decision:
        """Rows of the quarantine, read again by the file as it is now; those that fit are rows of this run."""
        cursor, resource = turn.cursor, _of(compiled, turn.cursor["resource"]).resource
        rows = self.ports.store.quarantined(
            turn, params.source, params.connection or "", resource.name, cursor["after"], REPLAY_BATCH
        )
        if not rows:
            return Finish(cursor=dict(cursor))
        fit: list[tuple[Row, str, int]] = []
        for row in rows:
            try:
                read = answers.read_row(resource, row["payload"])
            except StepError:
                continue
            if read.state != answers.QUARANTINED and read.key == row["key"]:
                fit.append((read, row["partition"], row["page"]))
        effects = store.replayed(resource.name, fit)
        return Continue(cursor={**cursor, "after": rows[-1]["id"]}, effects=effects, rows=len(fit))


def unseen_params(cursor: ConsolidateCursor, connection: str) -> dict[str, Any]:
    since, until = cursor.covers or (None, None)
    return {"resource": cursor.resource, "connection": connection, "since": since, "until": until}


def blown(gone: int, alive: int, most: float) -> str:
    return f"{gone:,} of {alive:,} rows would be gone, more than {most:g} %: none was judged"


def _of(compiled: Compiled, name: str) -> CompiledResource:
    return next(each for each in compiled.resources if each.resource.name == name)


@dataclass(slots=True)
class Asking:
    """What one step may ask: the upstream with its account, and the store about the run's own rows."""

    turn: Turn
    params: SourceParams
    compiled: Compiled
    client: Client
    store: SourceStore
    time_left_s: Callable[[], float]
    write: Callable[[Effect], object]
    pages_per_step: int = 1
    token_refused: bool = False

    @property
    def scope(self) -> str:
        return scope_of(self.compiled.digest, self.client.settings)

    def resource(self, name: str) -> Resource:
        return self.compiled.source.resources[name]

    def hold(self, scope: str) -> None:
        """A run is about one list. If its connection was pointed elsewhere meanwhile, it cannot go on."""
        if scope != self.scope:
            raise Permanent(
                "The settings of the connection have changed since this run started. Start a new run.",
                "settings_changed",
            )

    @property
    def connection(self) -> str:
        return self.params.connection or ""

    def count(self, resource: Resource, part: Mapping[str, Any], since: str | None) -> tuple[int, bool]:
        """A refused token is noted, also where the step keeps what it did before."""
        try:
            return self.client.count(resource, part, since)
        except TokenRefused:
            self.token_refused = True
            raise


def _plan(cursor: PlanCursor, asked: Asking) -> Decision:
    """A few counts; those before a failure are kept."""
    if cursor.planned:  # a lane that was done and is restarted in its place
        return Finish()
    if cursor.todo is None:
        cursor = _begun(cursor, asked)
    else:
        asked.hold(cursor.scope)
    for probes in range(decide.PROBES_PER_STEP):
        while cursor.todo and not plan.is_counted(asked.resource(cursor.todo[0]["resource"]), cursor.todo[0]):
            cursor = plan.taken(cursor)
        if not cursor.todo:
            lanes = [read_lane(_first(cursor, part, asked)) for part in cursor.parts]
            return Finish(lanes=lanes, cursor=cursor.but(planned=True, parts=()).to_json())
        part = cursor.todo[0]
        resource = asked.resource(part["resource"])
        try:
            count, _ = asked.count(resource, part, cursor.marks.get(resource.name))
        except (Transient, Throttled, Later) as error:
            if not probes:
                raise
            return _so_far(cursor.to_json(), error)
        cursor = plan.probed(cursor, resource, count)
        if asked.client.pause is not None:
            return Continue(cursor=cursor.to_json(), throttled=asked.client.pause)
    return Continue(cursor=cursor.to_json())


def _begun(cursor: PlanCursor, asked: Asking) -> PlanCursor:
    """What there is to divide, as of now."""
    turn, params = asked.turn, asked.params
    scope = asked.scope
    if cursor.scope:
        asked.hold(cursor.scope)
    t = turn.now.astimezone(UTC).replace(microsecond=0) if cursor.t is None else instant(cursor.t)
    ways = plan.generations(asked.compiled.source.resources, params.resources or list(asked.compiled.source.resources))
    todo: list[Any] = []
    for resource in ways[cursor.generation]:
        parent = plan.parent_of(resource)
        if parent is not None:
            todo += plan.slices(resource, asked.store.slices(turn, parent, plan.PARENTS_A_LANE))
        else:
            todo += plan.roots(resource, params.begin, params.to, t)
    scopes = {
        name: plan.mark_scope(scope, params.begin, params.to) if _is_windowed(resource) else scope
        for name, resource in asked.compiled.source.resources.items()
    }
    marks = {} if params.full else asked.store.marks(turn, params.source, asked.connection, scopes)
    since = {
        name: plan.said(instant(through) - _span(asked.resource(name)))
        for name, through in marks.items()
        if name in asked.compiled.source.resources and asked.resource(name).since is not None
    }
    return cursor.but(t=plan.said(t), scope=scope, todo=todo, parts=[], marks=since)


def _is_windowed(resource: Resource) -> bool:
    return resource.split is not None and resource.split.way == "window"


def _span(resource: Resource) -> timedelta:
    assert resource.since is not None
    return timedelta(seconds=resource.since.lookback.usual_seconds)


def _first(cursor: PlanCursor, part: Mapping[str, Any], asked: Asking) -> ReadCursor:
    assert cursor.t is not None
    resource = asked.resource(part["resource"])
    since = cursor.marks.get(resource.name) if resource.since is not None else None
    return ReadCursor(part=dict(part), t=cursor.t, scope=cursor.scope, since=since, limit=resource.page.size)


def _so_far(cursor: Mapping[str, Any], error: Exception, effects: Sequence[Effect] = (), rows: int = 0) -> Continue:
    """What was done before the upstream asked to wait, or failed, is kept."""
    throttled = error if isinstance(error, Throttled) else None
    after_s = error.after_s if isinstance(error, Later) else 0.0
    return Continue(cursor=dict(cursor), effects=effects, rows=rows, throttled=throttled, after_s=after_s)


# --- pages ------------------------------------------------------------------------------------------------------------


def _part(cursor: ReadCursor, asked: Asking) -> Decision:
    """Some pages of one partition, one after the other, while there is time; each is kept before the next one is asked for."""
    asked.hold(cursor.scope)
    if cursor.ended and "slice" not in cursor.part:  # as a plan that is restarted
        return Finish()
    if "slice" not in cursor.part:
        # Whoever took this step before may have kept pages of it. Nothing else says so: a claim that was given back, because its
        # commit was refused, is not counted. Read once more, they would count as seen by a walk that may not see them again.
        stands = asked.store.place(asked.turn)
        cursor = cursor if stands is None else ReadCursor.read(stands)
    reading = Reading(cursor, asked, asked.resource(cursor.resource), asked.time_left_s())
    while True:
        try:
            decision = reading.next_page()
        except (Transient, Throttled, Later) as error:
            if isinstance(error, TokenRefused):
                asked.token_refused = True
            if not reading.moved:
                raise
            return _so_far(reading.cursor.to_json(), error, reading.effects(), reading.read)
        if decision is not None:
            return decision
        reading.save()


@dataclass(slots=True)
class Reading:
    """The pages of one step: where they lead, and what they brought."""

    cursor: ReadCursor
    asked: Asking
    resource: Resource
    began_with_s: float
    moved: bool = False
    pages: int = 0
    rows: dict[str, Row] = field(default_factory=dict)  # not written yet; each once, the last one counts
    written: int = 0
    parent: Mapping[str, Any] | None = None

    @property
    def part(self) -> Mapping[str, Any]:
        return self.cursor.part if self.parent is None else {**self.cursor.part, "parent": self.parent["value"]}

    @property
    def since(self) -> str | None:
        return self.cursor.since if self.parent is None else self.parent["since"]

    @property
    def read(self) -> int:
        return self.written + len(self.rows)

    def save(self) -> None:
        """Keep a page before the next one is asked for: whoever dies now loses the one that is under way, and no other. Lists
        of children are often shorter than it takes to write them: theirs are kept together."""
        if "slice" in self.cursor.part:
            return
        self.asked.write(store.saved(self.asked.turn, self.effects(), self.cursor.to_json()))
        self.written += len(self.rows)
        self.rows = {}

    def next_page(self) -> Decision | None:
        """Read on by one page. None: there is more to do, and time for it."""
        if "slice" in self.cursor.part and self.parent is None:
            found = self._next_parent()
            if found is None:
                return self._done(self.cursor.but(ended=True, ok=self.cursor.why is None))
            if self.cursor.pages:  # another run may have ended since: a list is read to its end as it was asked for
                found = {**found, "since": self.cursor.since}
            self.parent, self.cursor = found, self.cursor.but(since=found["since"])
        cursor, client, resource = self.cursor, self.asked.client, self.resource
        # A list of children begins with its first parent: with a later one, the rows of those before would no longer be its own.
        if cursor.pages == 0 and not cursor.began and not cursor.parents:
            cursor = self.cursor = cursor.but(began=self.asked.turn.seq)
        if cursor.pages == 0 and cursor.counted is None and self._counts_apart():
            counted, exact = client.count(resource, self.part, self.since)
            self.cursor = cursor.but(counted=counted, exact=exact)
            self.moved = True
        cursor = self._paid()
        if client.pause is not None:  # the page is for the next step: what is left of the rate is for others
            return self._so_far(throttled=client.pause)
        asked = walk.request(resource, cursor)
        try:
            page = client.page(resource, self.part, self.since, asked)
        except PageTooBig as error:
            # After other pages less time was left for this one: the next step tells whether it is too big by itself.
            return self._so_far() if self.pages else self._ask_for_less(error)
        except Expired:
            return self._anew(walk.restarted(cursor))
        count, exact = (page.count, page.exact) if page.count is not None else (None, False)
        if self._counts_apart() and walk.wants_count(resource, cursor, page, asked):
            count, exact = self._or_owe("count", lambda: client.count(resource, self.part, self.since), cursor.known)
        then = walk.after_page(resource, cursor.but(known=None), page, asked, count if exact else None)
        half = walk.doubted(resource, then, page)
        if half is not None:
            named = self._or_owe("half", lambda: client.page(resource, self.part, self.since, half))
            walk.hold_to_next(resource, then, named)
        return self._after(then, page, count, exact=exact)

    def _or_owe(self, what: str, ask: Callable[[], Any], known: Any = None) -> Any:
        """A second question because of a page. If it has to wait, it comes before that page next time: at a slow pace a step
        has one question, and whoever asks for the page first each time never gets to the other."""
        if known is not None:
            return known
        try:
            if self.asked.client.pause is not None:
                raise self.asked.client.pause
            return ask()
        except (Transient, Throttled, Later):
            self.cursor, self.moved = self.cursor.but(owes=what), True
            raise

    def _paid(self) -> ReadCursor:
        """What an earlier step could not ask any more. A count that is taken before the last page is as good: the audit counts
        once more."""
        cursor, client = self.cursor, self.asked.client
        if cursor.owes is None or client.pause is not None:
            return cursor
        if cursor.owes == "count":
            paid = cursor.but(owes=None, known=client.count(self.resource, self.part, self.since))
        else:
            half = client.page(self.resource, self.part, self.since, walk.half_of(self.resource, cursor))
            walk.hold_to_next(self.resource, cursor, half)
            paid = cursor.but(owes=None, sure=True)
        self.cursor, self.moved = paid, True
        return paid

    def _counts_apart(self) -> bool:
        return (
            self.resource.count is not None and self.resource.count.request is not None and self.resource.since is None
        )

    def _after(self, cursor: ReadCursor, page: PageRead, count: int | None, *, exact: bool) -> Decision | None:
        self.rows |= {row.key: row for row in page.rows}
        quarantined = sum(row.state == answers.QUARANTINED for row in page.rows)
        cursor = self.cursor = cursor.but(quarantined=cursor.quarantined + quarantined)
        self.moved = True
        self.pages += 1
        if cursor.ended:
            if self.parent is not None:
                return self._parent_is_read()
            if _of(self.asked.compiled, self.resource.name).best.claim == Claim.COMPLETE:
                keys = list(self.rows)
                distinct = self.asked.store.walked(self.asked.turn, self.resource.name, cursor.began, keys)
                cursor = walk.judged(cursor, count, exact, distinct)
            if self.asked.client.pause is not None:  # the next step ends it: what is left of the rate is for others
                self.cursor = cursor
                return self._so_far(throttled=self.asked.client.pause)
            return self._done(cursor)
        if self.asked.client.pause is not None:
            return self._so_far(throttled=self.asked.client.pause)
        if cursor.empties:
            return self._so_far(after_s=decide.CONFIRM_AFTER_S if self.resource.page.style in CONFIRMS else 0.0)
        return None if self._goes_on() else self._so_far()

    # --- rows of a parent

    def _next_parent(self) -> Mapping[str, Any] | None:
        split, cursor, asked = self.resource.split, self.cursor, self.asked
        assert split is not None
        after, upto = cursor.part["slice"]
        row = asked.store.next_parent(
            asked.turn, path=list(answers.steps_of(split.parent_key)), source=asked.params.source, connection=asked.connection,
            resource=self.resource.name, scope=cursor.scope, parent=split.parent, after=cursor.parent or after, upto=upto,
        )  # fmt: skip
        if row is None:
            return None
        value = row["value"]
        if type(value) is not int and not (isinstance(value, str) and 0 < len(value) <= answers.LONGEST_KEY):
            raise Permanent(
                f"A row of {split.parent} has no {split.parent_key}, so its {self.resource.name} can't be read.",
                "bad_parent",
            )
        since = None
        if self.resource.since is not None and row["through"] is not None and not asked.params.full:
            since = plan.said(instant(row["through"]) - _span(self.resource))
        return {"key": row["key"], "value": value, "since": since}

    def _parent_is_read(self) -> Decision | None:
        """On to the next one. A walk of its children that was not in order is remembered for the whole share."""
        assert self.parent is not None
        cursor = self.cursor
        why = cursor.why if cursor.why is not None or cursor.ok else "a list of children was not read to its end"
        fresh = cursor.from_the_start().but(
            parent=self.parent["key"], parents=cursor.parents + 1, why=why, began=cursor.began, restarts=0,
            quarantined=cursor.quarantined, since=None, received_before=cursor.received_before + cursor.received,
            numbered=cursor.numbered,
        )  # fmt: skip
        self.cursor, self.parent = fresh, None
        return (
            None
            if self._goes_on() and self.asked.client.pause is None
            else self._so_far(throttled=self.asked.client.pause)
        )

    # --- what follows

    def _goes_on(self) -> bool:
        left_s = self.asked.time_left_s()
        is_early = self.began_with_s - left_s < decide.LONGEST_BURST_S and left_s > decide.LEAST_FOR_A_PAGE_S
        return self.pages < self.asked.pages_per_step and is_early and self.read < MOST_ROWS_A_STEP

    def _so_far(self, *, after_s: float = 0.0, throttled: Throttled | None = None) -> Continue:
        return Continue(
            cursor=self.cursor.to_json(), effects=self.effects(), rows=self.read, after_s=after_s, throttled=throttled
        )  # fmt: skip

    def _done(self, cursor: ReadCursor) -> Finish:
        self.cursor = cursor
        return Finish(effects=self.effects(), rows=self.read, cursor=cursor.to_json())

    def _anew(self, cursor: ReadCursor) -> Continue:
        """From the partition's first page. What was seen before does not count for the new walk."""
        if self.parent is not None:
            was = self.cursor
            cursor = cursor.but(
                parent=was.parent, parents=was.parents, why=was.why, received_before=was.received_before,
                quarantined=was.quarantined, numbered=was.numbered, began=was.began,
            )  # fmt: skip
        return Continue(cursor=cursor.to_json(), effects=self.effects(), rows=self.read)

    def _ask_for_less(self, error: PageTooBig) -> Decision:
        less = walk.smaller(self.resource, self.cursor)
        if less is None:
            raise Transient(f"Even the smallest page is too much. {error.message}", "page_too_big")
        if less.pages == 0 and self.cursor.pages:
            if self.asked.turn.attempts < TRIES_BEFORE_ANEW:  # what was read so far is worth another try
                raise Transient(error.message, error.code)
            return self._anew(less)
        return Continue(cursor=less.to_json())

    def effects(self) -> list[Effect]:
        asked = self.asked
        rows = self.rows.values()
        return store.upsert(asked.params.source, asked.connection, self.resource.name, rows, self.cursor.began)


CONFIRMS = frozenset({"number", "offset", "after"})
MOST_ROWS_A_STEP = 5_000
TRIES_BEFORE_ANEW = 3


def _audit(cursor: AuditCursor, asked: Asking) -> Decision:
    """A few partitions counted again; those before a failure are kept."""
    asked.hold(cursor.scope)
    for counts in range(decide.COUNTS_PER_STEP):
        if not cursor.todo:
            return Finish(cursor=cursor.to_json())
        _, part, since, _ = cursor.todo[0]
        resource = asked.resource(part["resource"])
        try:
            count, exact = asked.count(resource, part, since)
        except (Transient, Throttled, Later) as error:
            if not counts:
                raise
            return _so_far(cursor.to_json(), error)
        cursor = settle.recounted(cursor, count, exact=exact)
        if asked.client.pause is not None:
            return Continue(cursor=cursor.to_json(), throttled=asked.client.pause)
    return Continue(cursor=cursor.to_json())


def _look_up(cursor: ConsolidateCursor, asked: Asking) -> Decision:
    """A few rows that a full walk did not see, each looked up; at the end all that are gone are judged at once, or none."""
    asked.hold(cursor.scope)
    each = _of(asked.compiled, cursor.resource)
    gone = each.resource.gone
    wanted = unseen_params(cursor, asked.connection)
    names = [column.name for column in each.resource.columns]
    rows = asked.store.to_look_up(asked.turn, each.table, names, wanted, cursor.after, LOOKS_PER_STEP)
    if not rows or cursor.gone * 100 > gone.most * cursor.alive:
        is_blown = cursor.gone * 100 > gone.most * cursor.alive
        judged = store.forget_missed(each.table) if is_blown else store.judge_looked(each.table)
        effect = Effect(judged, {"connection": asked.connection})
        fuse = blown(cursor.gone, cursor.alive, gone.most) if is_blown else None
        return Finish(cursor=cursor.but(fuse=fuse).to_json(), effects=[effect])
    if not cursor.after and not _can_be_looked_up(each, asked, names):
        return Finish(cursor=cursor.but(fuse=NOTHING_IS_FOUND).to_json())
    missed: list[str] = []
    failure: Exception | None = None
    for row in rows:
        try:
            if asked.client.is_gone(each.resource, {name: row[name] for name in names}):
                missed.append(row["source_key"])
        except (Transient, Throttled, Later) as error:
            if isinstance(error, TokenRefused):
                asked.token_refused = True
            if cursor.after == asked.turn.cursor["after"]:
                raise
            failure = error
            break
        cursor = cursor.but(after=row["source_key"])
        if asked.client.pause is not None:
            failure = asked.client.pause
            break
    params = {"connection": asked.connection, "missed": db.jsonb(missed)}
    effects = [Effect(store.note_missed(each.table), params)] if missed else []
    cursor = cursor.but(gone=cursor.gone + len(missed))
    if failure is not None:
        return _so_far(cursor.to_json(), failure, effects)
    return Continue(cursor=cursor.to_json(), effects=effects)


NOTHING_IS_FOUND = "a row that was just listed could not be looked up either: none was judged"


def _can_be_looked_up(each: CompiledResource, asked: Asking, names: Sequence[str]) -> bool:
    """Whether a look-up finds what is there: a path that is wrong in the file says of every row that it is gone."""
    row = asked.store.just_seen(asked.turn, each.table, names, asked.connection, each.resource.name)
    return row is None or not asked.client.is_gone(each.resource, row)
