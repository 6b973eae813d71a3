"""The steps of a remote query: look at the remote system, decide; the relay commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from shared.kernel import db
from shared.kernel.catalogue import Kind, Outside
from shared.kernel.clock import stopwatch
from shared.kernel.decide import Limits
from shared.kernel.errors import Later, Permanent, Refused, Throttled, Transient
from shared.kernel.log import logger
from shared.kernel.metrics import write_out
from shared.kernel.model import (
    Continue,
    Decision,
    Effect,
    Ending,
    Fail,
    Finish,
    Json,
    Looks,
    NewLane,
    NewRun,
    Problem,
    RemoteCall,
    Run,
    RunStatus,
    Say,
    Signal,
    Start,
    Starting,
    Turn,
    Wait,
)
from shared.kernel.params import parse
from shared.kernel.points import point
from shared.kernel.ports import Tx
from shared.kernel.retry import spread_s
from shared.kernel.tokens import Token, TokenRefused
from shared.query_run import decide, store
from shared.query_run.decide import After, Failed
from shared.query_run.export import export_step
from shared.query_run.model import (
    EXPORT,
    KEY_PREFIX,
    KIND,
    UPSTREAM,
    CleanCursor,
    CleanPhase,
    Column,
    ExportCursor,
    Phase,
    QueryCursor,
    QueryParams,
    Rowset,
    customer_key,
    export_key,
)
from shared.query_run.ports import Ports, QueryMetric, Remote

T = TypeVar("T")
MAIN = "query"
LOOKS = Looks(first_s=20, times=2, apart_s=15)  # a query that was started shows itself only after a while
ADOPTED = "adopted"  # in place of the task's id, which the lost answer had
SLOT_WAIT_S, LONGEST_SLOT_WAIT_S = 5.0, 30.0
READ_SIZE = 50
DRAIN_S, LONGEST_DRAIN_WAIT_S = 20.0, 120.0
CALL_IS_OVER_S = 17 * 60.0  # when the kernel knows of every call that it is over
MOST_POLLS_SHOWN = 64
LATE = "query_run.late"
ASSET_TYPES = {"data_extension": "DataExtension", "query_definition": "QueryDefinition"}
MOST_KEYS, MOST_STRAYS = 5_000, 500  # of one look through an account: what is there, and what of it belongs to no run
MOST_REFUSALS = 3  # in a row. One is an odd answer; three, each with a token that was just fetched, are meant so.


class QueryPoint(StrEnum):
    ASKED = "query_run.asked"
    DELETED = "query_run.deleted"


@dataclass(slots=True)
class Asked:
    """The remote system for one step, with a token. A token that is refused is forgotten when the step is over."""

    remote: Remote
    token: Token
    refused: bool = False
    refusal: Permanent | None = None  # of a look that goes on without the answer
    progress: QueryCursor | None = None  # what the answers so far have made of the cursor

    def ask(self, call: Callable[[Token], T]) -> T:
        point(QueryPoint.ASKED)
        try:
            return call(self.token)
        except TokenRefused:
            self.refused = True
            raise

    def unless_unknown(self, what: str, call: Callable[[Token], T]) -> T | None:
        """None if there is no proper answer this time; a look goes on without it, and a refusal is one. A throttle is
        everybody's business."""
        try:
            return self.ask(call)
        except (Transient, Permanent) as error:
            if isinstance(error, Permanent):
                self.refusal = error
            logger.warning("a remote query could not be asked", extra={"what": what, "error": str(error)})
            return None

    def count_refusals(self, cursor: QueryCursor) -> QueryCursor | Fail:
        """After a look: how many of them in a row were refused, or that it is over."""
        if not self.refused and self.refusal is None:
            return cursor.but(refusals=0)
        if cursor.refusals + 1 < MOST_REFUSALS:
            return cursor.but(refusals=cursor.refusals + 1)
        if (refusal := self.refusal) is not None:
            return Fail(Problem(refusal.code, str(refusal)))
        return Fail(Problem("access_refused", "Marketing Cloud keeps refusing new tokens: check the account's scopes."))


class QueryRuns:
    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.config = ports.config
        self._sweeping: dict[tuple[UUID, str], tuple[Callable[[], float], Token]] = {}

    def start(self, tx: Tx, starting: Starting) -> NewRun:
        wanted = parse(QueryParams, starting.params)
        if wanted.connection is None and self.ports.needs_connection:
            raise Refused("bad_params", "connection: name the Marketing Cloud connection to use.")
        if wanted.connection is not None:
            connection = tx.find_connection(starting.tenant_id, UPSTREAM, wanted.connection)
            if connection is None:
                raise Refused("unknown_connection", "connection: no Marketing Cloud connection has this id or name.")
            wanted = wanted.model_copy(update={"connection": str(connection)})
        tx.apply(Effect(store.CREATE, {"run_id": starting.run_id, "tenant_id": starting.tenant_id}))
        return NewRun(
            params=wanted.model_dump(mode="json", exclude_none=True),
            lanes=[NewLane(key=MAIN, cursor=QueryCursor().to_json())],
            label=wanted.snippet_name or " ".join(wanted.sql_text.split())[:80],
        )

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        try:
            return self._take_step(turn, outside)
        finally:
            write_out(self.ports.meter)

    def _take_step(self, turn: Turn, outside: Outside) -> Decision:
        params = QueryParams.model_validate(dict(turn.params))
        if turn.key.startswith(f"{EXPORT}/"):
            return self._export_step(turn, outside, params)
        if turn.key != MAIN:
            return self._clean_step(turn, outside, params)
        cursor = QueryCursor.read(turn.cursor)
        if cursor.epoch != turn.run_epoch:  # a retry makes everything anew: what was there is being cleaned up
            cursor = QueryCursor(epoch=turn.run_epoch)
        if cursor.phase == Phase.ADMIT:
            return self._admit(turn, outside, cursor)
        if (spent := self._spent(turn, cursor)) is not None:
            return spent
        with self._asked(turn, params, outside) as asked:
            match cursor.phase:
                case Phase.TARGET:
                    return self._create_target(outside, params, cursor, asked)
                case Phase.DEFINITION:
                    return self._create_query(outside, params, cursor, asked)
                case Phase.START:
                    return self._start(turn, outside, cursor, asked)
                case Phase.POLL:
                    return self._poll(turn, cursor, asked)
                case Phase.VERIFY:
                    return self._verify(turn, cursor, asked)
                case _:
                    raise Permanent(f"A query has no phase {cursor.phase!r}.", "unknown_phase")

    def at_closed_gate(self, turn: Turn) -> Decision | None:
        """A query's time runs on while its account is told to wait."""
        return self._spent(turn, QueryCursor.read(turn.cursor)) if turn.key == MAIN else None

    def _spent(self, turn: Turn, cursor: QueryCursor) -> Fail | None:
        if cursor.epoch != turn.run_epoch or cursor.phase != Phase.POLL:
            return None
        spent = decide.budget_spent(cursor, turn.now, self.config)
        if spent is None:
            return None
        self._count(QueryMetric.TIMED_OUT)
        return Fail(spent, asked=False)

    @contextmanager
    def _asked(self, turn: Turn, params: QueryParams, outside: Outside) -> Iterator[Asked]:
        remote = self.ports.remote(turn.tenant_id, params, outside.time_left_s)
        token = self.ports.tokens.of(turn, params.token_account, remote.authenticate)
        asked = Asked(remote, token)
        try:
            yield asked
        finally:
            if asked.refused:
                self.ports.tokens.forget(turn, params.token_account, token)

    def _count(self, metric: QueryMetric, **dimensions: str) -> None:
        self.ports.meter.count(metric, **dimensions)

    # --- execute

    def _admit(self, turn: Turn, outside: Outside, cursor: QueryCursor) -> Decision:
        """So many queries of a tenant at once, and no more: the next one waits."""
        most = self.config.max_in_flight
        if not outside.write(Effect(store.TAKE_SLOT, {"most": most})) and not self.ports.store.has_slot(turn):
            # The more often it has come in vain, the longer the line: then another one comes soon enough.
            wait_s = min(SLOT_WAIT_S * 2 ** min(cursor.waits, 10), LONGEST_SLOT_WAIT_S)
            return Wait(
                after_s=spread_s(wait_s, self.ports.chance.fraction()),
                cursor=cursor.but(waits=cursor.waits + 1).to_json(),
                waits_for=f"one of the {most} queries in flight to end",
            )
        cursor = cursor.but(
            phase=Phase.TARGET,
            target_key=customer_key(turn.run_id, turn.run_epoch, "target"),
            query_key=customer_key(turn.run_id, turn.run_epoch, "query"),
        )
        return Continue(cursor=cursor.to_json())

    def _create_target(self, outside: Outside, params: QueryParams, cursor: QueryCursor, asked: Asked) -> Decision:
        columns, columns_from, note = self._columns(params, asked)
        shown = db.jsonb([column.model_dump(exclude_none=True) for column in columns])

        def create(_: str) -> str:
            # Before it is made: whoever finds it after a lost answer may be told of other columns by then.
            outside.write(Effect(store.KEEP_COLUMNS, {"columns": shown, "columns_from": columns_from, "note": note}))
            return asked.ask(
                lambda token: asked.remote.create_target(token, cursor.target_key, columns, self._kept_days)
            )

        target_id = outside.once(
            "target",
            kind="data_extension",
            call=create,
            look=lambda _: asked.ask(lambda token: asked.remote.find_target(token, cursor.target_key)),
            leaves_asset=True,
        )
        return Continue(cursor=cursor.but(phase=Phase.DEFINITION, target_id=target_id).to_json())

    @property
    def _kept_days(self) -> int:
        """After how many days the data leaves by itself, whatever happens to us: never before somebody may have read it."""
        return 1 + self.config.results_kept_s // 86_400

    def _columns(self, params: QueryParams, asked: Asked) -> tuple[Sequence[Column], str, str | None]:
        """What the result looks like, who says so, and what is to be noted. A query that is wrong fails here."""
        note, told = None, None
        try:
            said = asked.ask(lambda token: asked.remote.validate(token, params.sql_text))
        except TokenRefused:
            raise
        except (Transient, Permanent) as error:
            if isinstance(error, Permanent) and error.code == "request_refused":
                raise
            self._count(QueryMetric.VALIDATION_SKIPPED)
            note = f"The query was not validated: {error}"
        else:
            if not said.valid:
                raise Permanent(f"Marketing Cloud rejects the query: {said.message}", "invalid_query")
            told = said.columns
        if params.columns:
            return params.columns, "request", note
        if told:
            return told, "validation", note
        names = decide.select_list(params.sql_text)
        if names is None:
            raise Permanent(
                "The columns of the result cannot be told from the query. Name every column (no SELECT *, an alias for "
                "each expression), or pass `columns`.",
                "unknown_columns",
            )
        return [Column(name=name) for name in names], "select list, as text", note

    def _create_query(self, outside: Outside, params: QueryParams, cursor: QueryCursor, asked: Asked) -> Decision:
        object_id = outside.once(
            "query",
            kind="query_definition",
            call=lambda _: asked.ask(
                lambda token: asked.remote.create_query(
                    token, cursor.query_key, params.sql_text, cursor.target_key, cursor.target_id
                )
            ),
            look=lambda _: asked.ask(lambda token: asked.remote.find_query(token, cursor.query_key)),
            leaves_asset=True,
        )
        return Continue(cursor=cursor.but(phase=Phase.START, query_definition_id=object_id).to_json())

    def _start(self, turn: Turn, outside: Outside, cursor: QueryCursor, asked: Asked) -> Decision:
        object_id = cursor.query_definition_id
        assert object_id is not None
        starts = 1

        def look(_: str) -> str | None:
            """It runs, or it has written rows where there were none: it was started."""
            nonlocal starts
            starts = 2
            if asked.ask(lambda token: asked.remote.is_running(token, object_id)):
                return ADOPTED
            found = asked.ask(lambda token: asked.remote.rows(token, cursor.target_key, 1, 1))
            return ADOPTED if found.count else None

        task_id = outside.once(
            "start",
            kind="perform",
            call=lambda _: asked.ask(lambda token: asked.remote.start(token, object_id)),
            look=look,
            looks=LOOKS,
        )
        is_adopted = task_id == ADOPTED
        if starts > 1 and not is_adopted:
            self._count(QueryMetric.STARTED_AGAIN)
        started = cursor.but(
            phase=Phase.POLL,
            task_id=None if is_adopted else task_id,
            starts=1 if is_adopted else starts,
            poll_started_at=turn.now,
            signal_at=turn.now,
        )
        after_s = decide.next_delay_s(started, turn.now, self.config, self.ports.chance.fraction())
        return Continue(cursor=started.to_json(), after_s=after_s)

    # --- poll

    def _poll(self, turn: Turn, cursor: QueryCursor, asked: Asked) -> Decision:
        """One look. What cannot be asked this time is unknown, and counts against the budget."""
        self._count(QueryMetric.POLL)
        try:
            after = self._look(turn, cursor, asked)
        except Throttled as error:
            # What was asked before is known, and not asked again because the next question was one too many.
            known = cursor if asked.progress is None else asked.progress.but(poll_count=cursor.poll_count + 1)
            left_s = decide.time_left_s(cursor, turn.now, self.config)
            if (error.retry_after_s or 0) > left_s:
                # The account waits as long as it was told; the query does not have the time.
                return Continue(cursor=known.to_json(), after_s=left_s, throttled=error, goes_on=True)
            if asked.progress is None:
                raise
            return Continue(cursor=known.to_json(), throttled=error)
        if isinstance(after, Failed):
            return Fail(after.problem)
        polled = after.cursor.but(poll_count=cursor.poll_count + 1)
        if after.verify and polled.fast:
            self._count(QueryMetric.FAST_PATH)
            return self._ready(polled)
        if after.verify:
            verifying = decide.verifying(polled)
            try:
                return self._read(turn, verifying, asked)
            except Throttled as error:
                return Continue(cursor=verifying.to_json(), throttled=error)
        counted = asked.count_refusals(polled)
        if isinstance(counted, Fail):
            return counted
        after_s = decide.next_delay_s(after.cursor, turn.now, self.config, self.ports.chance.fraction())
        return Continue(cursor=counted.to_json(), after_s=after_s)

    def _look(self, turn: Turn, cursor: QueryCursor, asked: Asked) -> After | Failed:
        now, config, remote = turn.now, self.config, asked.remote
        said = None
        if (task_id := cursor.task_id) is not None:
            said = asked.unless_unknown("status", lambda token: remote.status(token, task_id))
        after = decide.after_soap(cursor, said, now)
        if isinstance(after, Failed) or after.verify:
            return after
        cursor = after.cursor
        asked.progress = cursor if task_id is not None else None
        if decide.wants_probe(cursor, now, config):
            self._count(QueryMetric.PROBE)
            size = config.row_probe_page_size
            found = asked.unless_unknown("rows", lambda token: remote.rows(token, cursor.target_key, 1, size))
            after = decide.after_probe(cursor, found, now, config)
            asked.progress = after.cursor
            if after.verify:
                return after
        return self._gate(turn, after.cursor, asked, said)

    def _gate(self, turn: Turn, cursor: QueryCursor, asked: Asked, said: Any) -> After | Failed:
        """The completion gate: only the system that runs the query knows whether it still does."""
        now, config = turn.now, self.config
        if cursor.query_definition_id is None:
            found = asked.unless_unknown("definition", lambda token: asked.remote.find_query(token, cursor.query_key))
            cursor = cursor.but(query_definition_id=found)
        object_id = cursor.query_definition_id
        if object_id is None or not decide.wants_gate(cursor, said, now, config):
            return After(cursor)
        if decide.is_stuck(cursor, now, config):
            self._count(QueryMetric.STUCK)
            cursor = cursor.but(stuck_fallbacks=cursor.stuck_fallbacks + 1)
        self._count(QueryMetric.REST_CHECK)
        running = asked.unless_unknown("is running", lambda token: asked.remote.is_running(token, object_id))
        after = decide.after_gate(cursor, running, now, config)
        if isinstance(after, Failed) or after.cursor.not_running_confirmations > cursor.not_running_confirmations:
            self._count(QueryMetric.NOT_RUNNING)
        return after

    # --- read

    def _verify(self, turn: Turn, cursor: QueryCursor, asked: Asked) -> Decision:
        self._count(QueryMetric.READY_RETRY)
        return self._read(turn, cursor, asked)

    def _read(self, turn: Turn, cursor: QueryCursor, asked: Asked) -> Decision:
        found: Rowset | None = asked.unless_unknown(
            "rows", lambda token: asked.remote.rows(token, cursor.target_key, 1, READ_SIZE)
        )
        after = decide.after_read(cursor, found, turn.now, self.config)
        if not isinstance(after, Failed) and after.rows is not None:
            after = self._last_word(after, asked)
        counted = asked.count_refusals(cursor if isinstance(after, Failed) else after)
        if isinstance(counted, Fail):
            return counted
        if isinstance(after, Failed):
            return Fail(after.problem)
        if counted.rows is not None:
            return self._ready(counted)
        if counted.phase == Phase.POLL:
            after_s = decide.next_delay_s(counted, turn.now, self.config, self.ports.chance.fraction())
        else:
            after_s = decide.read_delay_s(counted, turn.now, self.config)
        return Continue(cursor=counted.to_json(), after_s=after_s)

    def _last_word(self, cursor: QueryCursor, asked: Asked) -> QueryCursor | Failed:
        object_id, task_id = cursor.query_definition_id, cursor.task_id
        if object_id is None or not decide.wants_last_word(cursor, self.config):
            return cursor
        self._count(QueryMetric.REST_CHECK)
        running = asked.unless_unknown("is running", lambda token: asked.remote.is_running(token, object_id))
        said = None
        if not running and task_id is not None:
            said = asked.unless_unknown("status", lambda token: asked.remote.status(token, task_id))
        return decide.after_last_word(cursor, running, said, self.config)

    def _ready(self, cursor: QueryCursor) -> Decision:
        polls = next(most for most in (2, 4, 8, 16, 32, 64, 10**9) if cursor.poll_count <= most)
        self._count(QueryMetric.READY, polls=f"up to {polls}" if polls <= MOST_POLLS_SHOWN else "more")
        return Finish(rows=cursor.rows or 0, cursor=cursor.to_json())

    # --- the end

    def on_end(self, tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
        """The slot is free, the world is told, and a lane of its own removes what is left, whatever happened."""
        cursor = QueryCursor.read(next(lane for lane in tx.lanes(run.id) if lane.key == MAIN).cursor)
        is_ready = ending.status is RunStatus.SUCCEEDED
        tx.apply(Effect(store.FREE_SLOT, {"run_id": run.id}))
        made_here = cursor.epoch == run.epoch and cursor.phase != Phase.ADMIT
        if is_ready and made_here:
            kept = {"run_id": run.id, "kept_s": self.config.results_kept_s, "target_key": cursor.target_key}
            tx.apply(Effect(store.KEEP_RESULTS, {**kept, "row_count": cursor.rows}))
        payload = {"run_id": str(run.id), "epoch": run.epoch, "status": "ready" if is_ready else ending.status}
        tx.add_signal(
            run.tenant_id,
            f"query_run.{'ready' if is_ready else ending.status}",
            {**payload, "outcome": ending.outcome, "rows": cursor.rows},
        )
        if not made_here:  # it ended before it made anything in this epoch
            return []
        phase = CleanPhase.QUERY if is_ready else CleanPhase.DRAIN
        if ending.outcome == decide.TIMED_OUT and self.config.late_adoption:
            phase = CleanPhase.WATCH
        clean = CleanCursor(
            phase=phase,
            query=cursor.to_json(),
            keeps_results=is_ready,
            started=cursor.phase in (Phase.START, Phase.POLL, Phase.VERIFY),
            unsure=cursor.phase in (Phase.TARGET, Phase.DEFINITION, Phase.START),
        )
        return [NewLane(key=clean_lane(run.epoch), cursor=clean.to_json(), holds_run=False)]

    def _clean_step(self, turn: Turn, outside: Outside, params: QueryParams) -> Decision:
        cursor = CleanCursor.read(turn.cursor)
        if cursor.since is None:
            cursor = cursor.but(since=turn.now)
        match cursor.phase:
            case CleanPhase.WATCH:
                return self._watch(turn, outside, params, cursor)
            case CleanPhase.DRAIN:
                return self._drain(turn, outside, params, cursor)
            case CleanPhase.RESULTS:
                return Continue(cursor=cursor.but(phase=CleanPhase.TARGET).to_json())
            case _:
                return self._remove(turn, outside, params, cursor)

    def _watch(self, turn: Turn, outside: Outside, params: QueryParams, cursor: CleanCursor) -> Decision:
        """A query that timed out may still finish: looked at seldom, and adopted if it does."""
        query = QueryCursor.read(cursor.query)
        drain = Continue(cursor=cursor.but(phase=CleanPhase.DRAIN, since=turn.now).to_json())
        if turn.run_epoch != query.epoch:  # somebody retried the run meanwhile
            return drain
        assert cursor.since is not None
        if turn.now - cursor.since >= timedelta(seconds=self.config.late_watch_s):
            return drain
        with self._asked(turn, params, outside) as asked:
            after = self._look(turn, query, asked)
        if isinstance(after, Failed):
            return drain
        if after.verify:
            self._count(QueryMetric.LATE)
            said = Say(LATE, {"run_id": str(turn.run_id), "epoch": query.epoch})
            return Finish(says=[said], cursor=cursor.but(query=after.cursor.to_json()).to_json())
        confirming = after.cursor.not_running_at == turn.now  # heard just now, and asked once more when that counts
        gap_s = self.config.not_running_confirmation_min_gap_ms / 1000
        after_s = gap_s if confirming else spread_s(self.config.late_watch_interval_s, self.ports.chance.fraction())
        watched = cursor.but(query=after.cursor.to_json(), looks=cursor.looks + 1)
        return Wait(after_s=after_s, cursor=watched.to_json(), waits_for="a query that timed out to finish after all")

    def _drain(self, turn: Turn, outside: Outside, params: QueryParams, cursor: CleanCursor) -> Decision:
        """Nobody can stop a query that runs, and what it uses must not go: wait until it does not run, within bounds."""
        assert cursor.since is not None
        query = QueryCursor.read(cursor.query)
        remove = cursor.but(phase=CleanPhase.QUERY)
        object_id = query.query_definition_id
        waited_s = (turn.now - cursor.since).total_seconds()
        if not cursor.started or object_id is None or waited_s >= self.config.drain_s:
            return self._remove(turn, outside, params, remove)
        with self._asked(turn, params, outside) as asked:
            running = asked.unless_unknown("is running", lambda token: asked.remote.is_running(token, object_id))
            if running is None and self._is_gone(query, asked):
                return self._remove(turn, outside, params, remove)
        if running is False and (query.seen_running or waited_s >= DRAIN_S):
            return self._remove(turn, outside, params, remove)
        moved = cursor.but(query=query.but(seen_running=query.seen_running or bool(running)).to_json())
        after_s = min(DRAIN_S * 2 ** min(cursor.looks, 10), LONGEST_DRAIN_WAIT_S)
        return Wait(
            after_s=spread_s(after_s, self.ports.chance.fraction()),
            cursor=moved.but(looks=cursor.looks + 1).to_json(),
            waits_for="the remote query to stop running",
        )

    def _is_gone(self, query: QueryCursor, asked: Asked) -> bool:
        """Whether somebody else has removed it: then nobody says any more whether it runs."""
        found = asked.unless_unknown("definition", lambda token: [asked.remote.find_query(token, query.query_key)])
        return found == [None]

    def _remove(self, turn: Turn, outside: Outside, params: QueryParams, cursor: CleanCursor) -> Decision:
        """The definition at once, the data when nobody may read it any more."""
        keeps = cursor.keeps_results and cursor.phase == CleanPhase.QUERY
        own = QueryCursor.read(cursor.query)  # what other epochs made is theirs to remove: it may be in use
        assets = [
            each
            for each in outside.assets()
            if _key(each) in (own.target_key, own.query_key) and not (keeps and each.kind == "data_extension")
        ]
        if assets:
            with self._asked(turn, params, outside) as asked:
                for asset in assets:
                    asked.ask(lambda token, asset=asset: _delete(asked.remote, token, asset))  # type: ignore[misc]
                    point(QueryPoint.DELETED)
                    outside.note_cleaned(asset)
        if keeps:
            later = cursor.but(phase=CleanPhase.RESULTS).to_json()
            return Wait(after_s=self.config.results_kept_s, cursor=later, waits_for="the results to expire")
        if cursor.unsure and cursor.phase != CleanPhase.REST:
            later = cursor.but(phase=CleanPhase.REST).to_json()
            return Wait(after_s=CALL_IS_OVER_S, cursor=later, waits_for="calls that may be under way to be over")
        if cursor.keeps_results:
            self.ports.files.delete(export_key(turn.tenant_id, turn.run_id, own.epoch))
        return Finish(effects=self._look_around(turn, outside, params))

    def _look_around(self, turn: Turn, outside: Outside, params: QueryParams) -> list[Effect]:
        """Once a day whoever ends in an account lists what is there and belongs to no run. It touches none of it."""
        every_s = self.config.look_around_s
        if not outside.write(Effect(store.TAKE_LOOK, {"account": params.token_account, "every_s": every_s})):
            return []
        known = set(self.ports.store.expected(turn))  # first: whatever is made meanwhile was noted before it was made
        with self._asked(turn, params, outside) as asked:
            found = [(kind, self._there(asked, type_)) for kind, type_ in ASSET_TYPES.items()]
        if any(keys is None for _, keys in found):
            return []
        known |= set(self.ports.store.expected(turn))
        strays = [{"kind": kind, "key": key} for kind, keys in found for key in keys or () if key not in known]
        strays = strays[:MOST_STRAYS]
        if strays:
            logger.warning("things that belong to no run are in Marketing Cloud", extra={"count": len(strays)})
        account, found_ = params.token_account, db.jsonb(strays)
        return [
            Effect(store.FORGET_STRAYS, {"looked_through": account, "still_there": found_}),
            Effect(store.KEEP_STRAYS, {"account": account, "found": found_}),
        ]

    def _there(self, asked: Asked, type_: str) -> list[str] | None:
        return asked.unless_unknown(type_, lambda token: asked.remote.keys(token, type_, KEY_PREFIX, MOST_KEYS))

    # --- the result as a file

    def _export_step(self, turn: Turn, outside: Outside, params: QueryParams) -> Decision:
        cursor = ExportCursor.read(turn.cursor)
        with self._asked(turn, params, outside) as asked:
            decision = export_step(
                turn,
                cursor,
                lambda page, size: asked.ask(lambda token: asked.remote.rows(token, cursor.target_key, page, size)),
                self.ports.files,
            )
        if isinstance(decision, Finish):
            self._count(QueryMetric.EXPORTED)
        return decision

    def clean(self, asset: RemoteCall, params: Json, time_left_s: Callable[[], float]) -> None:
        """What the sweep found. It asks our own rows first: results that somebody may still read stay."""
        if asset.kind == "data_extension" and self.ports.store.results_are_kept(asset):
            raise Later(3_600, "the results to expire")
        wanted = QueryParams.model_validate(dict(params))
        remote = self.ports.remote(asset.tenant_id, wanted, time_left_s)
        key = (asset.tenant_id, wanted.token_account)
        age_s, token = self._sweeping.get(key, (None, None))
        if token is None or age_s is None or age_s() > token.expires_in_s / 2:
            token = remote.authenticate()
            self._sweeping[key] = (stopwatch(), token)
        try:
            _delete(remote, token, asset)
        except TokenRefused:
            self._sweeping.pop(key, None)
            raise

    def gates(self, turn: Turn) -> list[str]:
        """The account's own: a throttle on one of a tenant's accounts does not stop the others."""
        return [QueryParams.model_validate(dict(turn.params)).account]


def clean_lane(epoch: int) -> str:
    return f"clean/{epoch}"


def _key(asset: RemoteCall) -> str:
    return customer_key(asset.run_id, asset.epoch, asset.key)


def _delete(remote: Remote, token: Token, asset: RemoteCall) -> None:
    """Twice does no harm, and what is not there is gone, in whatever words that is said."""
    find = remote.find_target if asset.kind == "data_extension" else remote.find_query
    try:
        if asset.kind == "data_extension":
            remote.delete_target(token, _key(asset))
        elif (object_id := asset.remote_id or find(token, _key(asset))) is not None:
            remote.delete_query(token, object_id)
    except Permanent:
        if find(token, _key(asset)) is not None:
            raise


def adopt(tx: Tx, signal: Signal) -> Sequence[Start]:
    """A query that timed out has finished after all: the next epoch of its run reads the result and is ready."""
    run = tx.lock_run(UUID(str(signal.payload["run_id"])), signal.tenant_id)
    if run is None or run.epoch != signal.payload["epoch"] or run.outcome != decide.TIMED_OUT:
        return ()
    lanes = {lane.key: lane for lane in tx.lanes(run.id)}
    reopened = tx.reopen_run(run)
    if reopened is None:
        return ()
    tx.add_history(reopened, "adopted", {"reason": "the query finished after it had timed out"})
    # What the watch was told, not what the run knew: by it the last word is asked for. The reads are those of a new epoch.
    watched = QueryCursor.read(CleanCursor.read(lanes[clean_lane(run.epoch)].cursor).query)
    cursor = replace(decide.verifying(watched), epoch=reopened.epoch, rowset_ready_attempts=0, adopted=True)
    tx.restart_lane(lanes[MAIN].id, cursor.to_json())
    return ()


def prune(tx: Tx, run: Run, most: int) -> int:
    return tx.apply(Effect(store.PRUNE, {"run_id": run.id, "most": most}))


def query_run(ports: Ports, limits: Limits | None = None) -> Kind:
    queries = QueryRuns(ports)
    return Kind(
        name=KIND,
        take_step=queries.take_step,
        start=queries.start,
        settle=decide.settle,
        on_end=queries.on_end,
        gates=queries.gates,
        at_closed_gate=queries.at_closed_gate,
        clean=queries.clean,
        prune=prune,
        rows=store.ROWS,
        listens={LATE: adopt},
        limits=limits or Limits(max_attempts=12),
    )
