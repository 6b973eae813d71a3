"""All SQL of sources. Names of tables and columns come from a compiled file: small letters, digits and _."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.model import Effect, Statement, Turn
from shared.page_ingest.reader.answers import QUARANTINED, Row
from shared.page_ingest.source.migration import TYPES

# One statement for the pages of a step. What this walk has seen before is not written again unless it changed. Keys come
# sorted, so two lanes cannot deadlock.
UPSERT = Statement(
    "source.upsert",
    """insert into source_raw as r (run_id, resource, key, tenant_id, partition, page, state, hash, payload, cols, seen_at)
       select turn.run_id, cast(:resource as text), item ->> 0, turn.tenant_id, turn.key, turn.seq, item ->> 1, item ->> 2,
              item -> 3, item -> 4, now()
       from turn, jsonb_array_elements(cast(:items as jsonb)) as item
       order by 3
       on conflict (run_id, resource, key) do update
       set partition = excluded.partition, page = excluded.page, state = excluded.state, hash = excluded.hash,
           payload = excluded.payload, cols = excluded.cols, seen_at = excluded.seen_at
       where r.hash <> excluded.hash or r.state <> excluded.state or r.partition <> excluded.partition or r.page < :began""",
)
QUARANTINE = Statement(
    "source.quarantine",
    """insert into source_quarantine as q (tenant_id, source, connection, resource, key, run_id, partition, page, why, payload, at)
       select turn.tenant_id, cast(:q_source as text), cast(:q_connection as text), cast(:q_resource as text), item ->> 0,
              turn.run_id, turn.key, turn.seq, item ->> 1, item -> 2, now()
       from turn, jsonb_array_elements(cast(:bad as jsonb)) as item
       order by 5
       on conflict (tenant_id, source, connection, resource, key) do update
       set run_id = excluded.run_id, partition = excluded.partition, page = excluded.page, why = excluded.why,
           payload = excluded.payload, at = excluded.at""",
)
# A page of a step that goes on: its rows, and where the lane stands after it, as a row of no list (`resource` is empty). The
# lane's own cursor moves with the step's end. Each part is a statement of its own within the one that holds the turn.
_STANDS = """insert into source_raw as p (run_id, resource, key, tenant_id, partition, page, state, hash, payload, cols, seen_at)
       select turn.run_id, '', turn.key, turn.tenant_id, turn.key, turn.seq, 'kept_out', cast(:base as text), cast(:stands as jsonb),
              '[]', now()
       from turn
       on conflict (run_id, resource, key) do update
       set page = excluded.page, hash = excluded.hash, payload = excluded.payload, seen_at = excluded.seen_at"""
SAVE = Statement("source.save", f"{_STANDS}), of_rows as ({UPSERT.sql}")
SAVE_BAD = Statement("source.save_bad", f"{SAVE.sql}), of_bad as ({QUARANTINE.sql}")
SAVE_PLACE = Statement("source.save_place", _STANDS)
PLACE = sa.text(
    "select payload from source_raw where run_id = :run_id and resource = '' and key = :key and hash = :base"
)
WALKED = sa.text("""
select (select count(*) from source_raw where run_id = :run_id and resource = :resource and partition = :partition and page >= :began)
     + (select count(*) from jsonb_array_elements_text(cast(:keys as jsonb)) k
        where not exists (select from source_raw where run_id = :run_id and resource = :resource and key = k
                                                 and partition = :partition and page >= :began))
""")
SLICES = sa.text("""
select key from (
    select key, row_number() over (order by key) as n, count(*) over () as all_of_them
    from source_raw where run_id = :run_id and resource = :resource and state in ('row', 'gone')) k
where n % :share = 0 or n = all_of_them order by key
""")
# The next row of a parent, with how far its children were read before.
NEXT_PARENT = sa.text("""
select r.key, r.payload #> cast(:path as text[]) as value,
       (select to_char(m.through at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') from source_mark m
        where m.tenant_id = r.tenant_id and m.source = :source and m.connection = :connection and m.resource = :resource
          and m.part = r.key and m.scope = :scope) as through
from source_raw r
where r.run_id = :run_id and r.resource = :parent and r.key > :after and r.key <= :upto and r.state in ('row', 'gone')
order by r.key limit 1
""")
MARKS = sa.text("""
select resource, scope, to_char(through at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as through from source_mark
where tenant_id = :tenant_id and source = :source and connection = :connection and part = ''
""")
# With the run's end and never before: who begins at a watermark trusts that everything up to it is in its table.
WRITE_MARKS = Statement(
    "source.write_marks",
    """with ended as (
           select l.tenant_id, l.run_id, l.cursor ->> 'resource' as resource, coalesce(l.cursor ->> 'mark', l.cursor ->> 'scope') as scope,
                  (l.cursor ->> 't')::timestamptz as through, p.cursor -> 'shape' -> 'since' as since
           from lane l join lane p on p.run_id = l.run_id and p.key = 'plan/0'
           where l.run_id = :run_id and l.key like cast(:consolidations as text) and l.cursor ->> 'claim' = 'through T')
       insert into source_mark as m (tenant_id, source, connection, resource, part, scope, through, run_id)
       select e.tenant_id, :source, :connection, e.resource, coalesce(r.key, ''), e.scope, e.through, e.run_id
       from ended e
       left join source_raw r on r.run_id = e.run_id and r.resource = e.since ->> e.resource and r.state in ('row', 'gone')
       where jsonb_exists(e.since, e.resource) and (e.since ->> e.resource is null or r.key is not null)
       order by 4, 5
       on conflict (tenant_id, source, connection, resource, part) do update
       set scope = excluded.scope, through = excluded.through, run_id = excluded.run_id
       where m.scope <> excluded.scope or m.through < excluded.through""",
)
# Many rows, unless they are large: a batch is one statement.
BATCH_ENDS_AT = sa.text("""
select max(key) from (
    select key, row_number() over w as n, sum(pg_column_size(payload)) over w as bytes
    from source_raw where run_id = :run_id and resource = :resource and key > :after
    window w as (order by key rows unbounded preceding) order by key limit :most) batch
where n <= :least or bytes <= :bytes
""")
QUARANTINED_ROWS = sa.text("""
select q.id, q.key, q.payload, q.partition, q.page from source_quarantine q
where q.tenant_id = :tenant_id and q.source = :source and q.connection = :connection and q.resource = :resource
  and q.id > :after order by q.id limit :most
""")
REPLAYED = Statement(
    "source.replayed",
    """insert into source_raw as r (run_id, resource, key, tenant_id, partition, page, state, hash, payload, cols, seen_at)
       select turn.run_id, cast(:resource as text), item ->> 0, turn.tenant_id, item ->> 5, (item ->> 6)::bigint, item ->> 1,
              item ->> 2, item -> 3, item -> 4, now()
       from turn, jsonb_array_elements(cast(:items as jsonb)) as item
       order by 3 on conflict do nothing""",
)
# What was quarantined and fits now, as a later run or a replay brought it. What was put there since then is newer: it stays.
RELEASE = Statement(
    "source.release",
    """delete from source_quarantine q using turn, source_raw i
       where q.tenant_id = turn.tenant_id and q.source = :q_source and q.connection = :q_connection and q.resource = :q_resource
         and i.run_id = turn.run_id and i.resource = q.resource and i.key = q.key and i.state <> 'quarantined' and q.at <= i.seen_at
         and q.key > :q_after and q.key <= :q_upto""",
)
PRUNE = Statement(
    "source.prune",
    """delete from source_raw where ctid = any(array(
           select ctid from source_raw where run_id = :run_id order by resource, key limit :most))""",
)
PRUNE_QUARANTINE = Statement(
    "source.prune_quarantine",
    """delete from source_quarantine where id = any(array(
           select id from source_quarantine where run_id = :run_id order by id limit :most))""",
)
# A list that nobody has read since is read in full again: its connection or parent may be gone for good, and nobody would know.
PRUNE_MARKS = Statement(
    "source.prune_marks",
    """delete from source_mark where ctid = any(array(
           select ctid from source_mark where run_id = :run_id limit :most))""",
)
COLUMNS = Statement(
    "source.columns",
    """select table_name, column_name, data_type from information_schema.columns
       where table_schema = any(current_schemas(false)) and table_name = any(cast(:tables as text[]))""",
)
ROTATE = sa.text("""
update connection set secret_ref = :version, updated_at = now()
where id = :id and tenant_id = :tenant_id and provider = :provider and secret_ref = :before
""")

# In a complete run each partition has one last walk. A row that it did not write is one that is not there any more.
_LAST_WALKS = """last_walk as materialized (
           select distinct on (split_part(key, '#', 1)) key, began
           from (select l.key, (l.cursor ->> 'crawl')::integer as crawl, coalesce((l.cursor ->> 'began')::bigint, 0) as began
                 from turn join lane l on l.run_id = turn.run_id
                  and l.key like 'part/' || replace(cast(:resource as text), '_', '\\_') || '/%') p
           order by split_part(key, '#', 1), crawl desc)"""


@lru_cache(maxsize=200)
def consolidation(
    table: str, columns: tuple[tuple[str, str], ...], *, drops: bool = False, replays: bool = False
) -> Statement:
    """The newest run that says anything of a row wins, whichever is moved last. A run that is retried sees rows of today: what it has
    seen since the run that had the last word ended is newer than that. A replay says nothing new: its rows are as new as the run that
    put them into the quarantine, so that one which is still reading has the last word."""
    names = "".join(f', "{name}"' for name, _ in columns)
    values = "".join(
        f", i.cols -> {at}" if kind == "json" else f", (i.cols ->> {at})::{TYPES[kind]}"
        for at, (_, kind) in enumerate(columns)
    )
    sets = "".join(f', "{name}" = excluded."{name}"' for name, _ in columns)
    seen_last = "and exists (select from last_walk w where w.key = i.partition and i.page >= w.began)" if drops else ""
    whose = (
        """join source_quarantine q on q.tenant_id = i.tenant_id and q.source = :said_source and q.connection = :connection
            and q.resource = i.resource and q.key = i.key and q.at <= i.seen_at
       join run said on said.id = q.run_id"""
        if replays
        else f"""join run said on said.id = turn.run_id
       left join lateral (
           select case when o.said_by = said.id then o.said_at when w.finished_at < i.seen_at then i.seen_at end as at
           from {table} o left join run w on w.id = o.said_by
           where said.epoch > 1 and o.tenant_id = i.tenant_id and o.connection = :connection and o.source_key = i.key) s on true"""  # noqa: S608 - names of a compiled file
    )
    said_at = "said.created_at" if replays else "greatest(said.created_at, s.at)"
    return Statement(
        f"source.consolidate_{table}{'_last' if drops else '_replayed' if replays else ''}",
        f"""{f"with {_LAST_WALKS}" if drops else ""}
       insert into {table} as d (tenant_id, connection, source_key{names}, rest, hash, run_id, partition, page, said_by, said_at, gone_at)
       select i.tenant_id, :connection, i.key{values}, i.payload, i.hash, i.run_id, i.partition, i.page, said.id, {said_at},
              case i.state when 'gone' then now() end
       from turn
       join source_raw i on i.run_id = turn.run_id and i.resource = :resource and i.key > :after and i.key <= :upto
       {whose}
       where i.state in ('row', 'gone') {seen_last}
       order by i.key
       on conflict (tenant_id, connection, source_key) do update
       set rest = excluded.rest, hash = excluded.hash, run_id = excluded.run_id, partition = excluded.partition,
           page = excluded.page, said_by = excluded.said_by, said_at = excluded.said_at, missed_by = null,
           gone_at = case when excluded.gone_at is not null then coalesce(d.gone_at, excluded.gone_at) end{sets}
       where (d.said_at, d.said_by) <= (excluded.said_at, excluded.said_by)""",  # noqa: S608 - names of a compiled file
    )


# What a run looked for and did not see; in windows, of the time that it covered.
def _unseen(resource: str = ":resource") -> str:
    return f"""d.connection = :connection and d.gone_at is null
         and ((d.said_at, d.said_by) < (run.created_at, run.id) or (run.epoch > 1 and d.run_id = run.id))
         and (cast(:since as text) is null or (split_part(d.partition, '/', 3) >= cast(:since as text)
              and split_part(d.partition, '/', 4) <> '' and left(split_part(d.partition, '/', 4), 20) <= cast(:until as text)))
         and not exists (select from source_raw x where x.run_id = run.id and x.resource = {resource}
                                                  and x.key = d.source_key and x.state <> 'kept_out')"""


# The first witness was gone before the second came. Of two runs at once neither is in a row with the other, and what one
# misses after the other has looked at its fuse would be judged past it.
_MISSED_BEFORE = """d.missed_by is not null and d.missed_by <> run.id and not exists (
              select from run w where w.id = d.missed_by and (w.finished_at is null or w.finished_at >= run.created_at))"""


@lru_cache(maxsize=200)
def fuse(table: str) -> sa.TextClause:
    """How many rows there are, how many a second run in a row has missed, and how many were looked up and are gone."""
    return sa.text(f"""
with this as materialized (select id, tenant_id, epoch, created_at from run where id = :run_id)
select count(*) as alive, count(*) filter (where {_unseen()} and {_MISSED_BEFORE}) as gone
from this as run join {table} d on d.tenant_id = run.tenant_id where d.connection = :connection and d.gone_at is null
""")  # noqa: S608 - as above


@lru_cache(maxsize=200)
def unseen_ends_at(table: str) -> sa.TextClause:
    return sa.text(f"""
with run as materialized (select id, tenant_id, epoch, created_at from run where id = :run_id)
select max(source_key) from (
    select d.source_key from run join {table} d on d.tenant_id = run.tenant_id
    where d.source_key > :after and d.missed_by is distinct from run.id and {_unseen()}
    order by d.source_key limit :most) batch
""")  # noqa: S608 - as above


@lru_cache(maxsize=200)
def mark_gone(table: str) -> Statement:
    """One run may be wrong, so the first one is noted and the second one decides. Nothing is deleted."""
    return Statement(
        f"source.mark_gone_{table}",
        f"""update {table} d
       set gone_at = case when {_MISSED_BEFORE} then now() end, missed_by = run.id, said_by = run.id, said_at = run.created_at
       from turn join run on run.id = turn.run_id
       where d.tenant_id = turn.tenant_id and d.source_key > :after and d.source_key <= :upto
         and d.missed_by is distinct from run.id and {_unseen()}""",  # noqa: S608 - as above
    )


@lru_cache(maxsize=200)
def to_look_up(table: str, columns: tuple[str, ...]) -> sa.TextClause:
    names = "".join(f', d."{name}"' for name in columns)
    return sa.text(f"""
with run as materialized (select id, tenant_id, epoch, created_at from run where id = :run_id)
select d.source_key{names} from run join {table} d on d.tenant_id = run.tenant_id
where d.source_key > :after and {_unseen()} order by d.source_key limit :most
""")  # noqa: S608 - as above


@lru_cache(maxsize=200)
def just_seen(table: str, columns: tuple[str, ...]) -> sa.TextClause:
    """A row that this run has listed. What it listed is looked at first, for the table may be large and have none of it."""
    names = ", ".join(f'd."{name}"' for name in columns)
    return sa.text(f"""
select d.* from source_raw i
cross join lateral (
    select {names} from {table} d
    where d.tenant_id = :tenant_id and d.connection = :connection and d.source_key = i.key and d.run_id = :run_id and d.gone_at is null
    limit 1) d
where i.run_id = :run_id and i.resource = :resource and i.state = 'row'
order by i.key limit 1
""")  # noqa: S608 - as above


@lru_cache(maxsize=200)
def note_missed(table: str) -> Statement:
    """Not of what a newer run has found while it was looked up."""
    return Statement(
        f"source.note_missed_{table}",
        f"""update {table} d set missed_by = turn.run_id from turn join run on run.id = turn.run_id
       where d.tenant_id = turn.tenant_id and d.connection = :connection and d.gone_at is null
         and (d.said_at, d.said_by) <= (run.created_at, run.id)
         and d.source_key = any(array(select jsonb_array_elements_text(cast(:missed as jsonb))))""",  # noqa: S608 - as above
    )


@lru_cache(maxsize=200)
def forget_missed(table: str) -> Statement:
    """What an earlier attempt of this run noted is looked up again, and may be there by now; what blew the fuse is not judged."""
    return Statement(
        f"source.forget_missed_{table}",
        f"""update {table} d set missed_by = null from turn
       where d.tenant_id = turn.tenant_id and d.connection = :connection and d.gone_at is null
         and d.missed_by = turn.run_id""",  # noqa: S608 - as above
    )


@lru_cache(maxsize=200)
def judge_looked(table: str) -> Statement:
    """All that were looked up and are gone, at once. (If they are too many, they are forgotten instead.)"""
    return Statement(
        f"source.judge_looked_{table}",
        f"""update {table} d set gone_at = now(), said_by = run.id, said_at = run.created_at
       from turn join run on run.id = turn.run_id
       where d.tenant_id = turn.tenant_id and d.connection = :connection and d.gone_at is null and d.missed_by = turn.run_id""",  # noqa: S608 - as above
    )


SMALL_BATCH = {"least": 100, "bytes": 16 * 2**20}


class SourceStore:
    """What steps read beside their commit. Every statement is bound to the tenant of the turn."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def walked(self, turn: Turn, resource: str, began: int, keys: Sequence[str]) -> int:
        """How many different rows this walk has seen, together with these."""
        params = {
            "run_id": turn.run_id,
            "resource": resource,
            "partition": turn.key,
            "began": began,
            "keys": db.jsonb(keys),
        }
        return int(self._one(turn, WALKED, params))

    def place(self, turn: Turn) -> Mapping[str, Any] | None:
        """Where the lane stands, if somebody took this step before and died after some pages."""
        params = {"run_id": turn.run_id, "key": turn.key, "base": base_of(turn)}
        with direct.alone(self._engine, turn.tenant_id) as line:
            return next(iter(line.scalars(PLACE, params)), None)

    def slices(self, turn: Turn, parent: str, share: int) -> list[str]:
        with direct.alone(self._engine, turn.tenant_id) as line:
            return list(line.scalars(SLICES, {"run_id": turn.run_id, "resource": parent, "share": share}))

    def next_parent(self, turn: Turn, **params: Any) -> Mapping[str, Any] | None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            return line.one(NEXT_PARENT, {"run_id": turn.run_id, **params})

    def marks(self, turn: Turn, source: str, connection: str, scopes: Mapping[str, str]) -> dict[str, str]:
        """How far each resource was read before, as far as that was in the same scope."""
        params = {"tenant_id": turn.tenant_id, "source": source, "connection": connection}
        with direct.alone(self._engine, turn.tenant_id) as line:
            found = line.all(MARKS, params)
        return {row["resource"]: row["through"] for row in found if scopes.get(row["resource"]) == row["scope"]}

    def batch_ends_at(self, turn: Turn, resource: str, after: str, most: int) -> str | None:
        params = {"run_id": turn.run_id, "resource": resource, "after": after, "most": most, **SMALL_BATCH}
        found: str | None = self._one(turn, BATCH_ENDS_AT, params)
        return found

    def fuse(self, turn: Turn, table: str, params: Mapping[str, Any]) -> tuple[int, int]:
        with direct.alone(self._engine, turn.tenant_id) as line:
            row = line.one(fuse(table), {"run_id": turn.run_id, **params})
        assert row is not None
        return row["alive"], row["gone"]

    def unseen_ends_at(self, turn: Turn, table: str, params: Mapping[str, Any], after: str, most: int) -> str | None:
        found: str | None = self._one(
            turn, unseen_ends_at(table), {"run_id": turn.run_id, "after": after, "most": most, **params}
        )
        return found

    def to_look_up(
        self, turn: Turn, table: str, columns: Sequence[str], params: Mapping[str, Any], after: str, most: int
    ) -> list[Mapping[str, Any]]:
        with direct.alone(self._engine, turn.tenant_id) as line:
            asked = {"run_id": turn.run_id, "after": after, "most": most, **params}
            return list(line.all(to_look_up(table, tuple(columns)), asked))

    def just_seen(
        self, turn: Turn, table: str, columns: Sequence[str], connection: str, resource: str
    ) -> Mapping[str, Any] | None:
        params = {"tenant_id": turn.tenant_id, "connection": connection, "run_id": turn.run_id, "resource": resource}
        with direct.alone(self._engine, turn.tenant_id) as line:
            return line.one(just_seen(table, tuple(columns)), params)

    def quarantined(self, turn: Turn, source: str, connection: str, resource: str, after: int, most: int) -> list[Any]:
        params = {
            "tenant_id": turn.tenant_id, "source": source, "connection": connection, "resource": resource, "after": after,
            "most": most,
        }  # fmt: skip
        with direct.alone(self._engine, turn.tenant_id) as line:
            return list(line.all(QUARANTINED_ROWS, params))

    def rotate(self, tenant_id: UUID, provider: str, connection: UUID, before: str, version: str) -> bool:
        """The connection's secret is this version from now on, unless somebody changed it meanwhile."""
        params = {"id": connection, "tenant_id": tenant_id, "provider": provider, "before": before, "version": version}
        with direct.alone(self._engine, tenant_id) as line:
            return line.run(ROTATE, params) == 1

    def _one(self, turn: Turn, statement: sa.TextClause, params: Mapping[str, Any]) -> Any:
        with direct.alone(self._engine, turn.tenant_id) as line:
            return line.scalars(statement, dict(params))[0]


def upsert(source: str, connection: str, resource: str, rows: Iterable[Row], began: int) -> list[Effect]:
    """The rows of a step, each once; with those that go to the quarantine."""
    rows = list(rows)
    if not rows:
        return []
    items = [_item(row) for row in rows]
    effects = [Effect(UPSERT, {"resource": resource, "items": db.jsonb(items), "began": began})]
    bad = [(row.key, row.why, orjson.Fragment(row.body)) for row in rows if row.state == QUARANTINED]
    if bad:
        params = {"q_source": source, "q_connection": connection, "q_resource": resource, "bad": db.jsonb(bad)}
        effects.append(Effect(QUARANTINE, params))
    return effects


def saved(turn: Turn, effects: Sequence[Effect], cursor: Mapping[str, Any]) -> Effect:
    """The rows of a page together with the cursor behind it, before the step ends."""
    statement = (SAVE_PLACE, SAVE, SAVE_BAD)[len(effects)]
    params: dict[str, Any] = {"stands": db.jsonb(cursor), "base": base_of(turn)}
    for effect in effects:
        params |= effect.params
    return Effect(statement, params)


def base_of(turn: Turn) -> str:
    """Which beginning of a step a place goes on from: another epoch, or a lane that stands elsewhere by now, has no use for it."""
    began = orjson.dumps([turn.epoch, dict(turn.cursor)], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(began).hexdigest()[:32]


def replayed(resource: str, rows: Sequence[tuple[Row, str, int]]) -> list[Effect]:
    items = [(*_item(row), partition, page) for row, partition, page in rows]
    return [Effect(REPLAYED, {"resource": resource, "items": db.jsonb(items)})] if items else []


def _item(row: Row) -> tuple[Any, ...]:
    payload = b"null" if row.state == QUARANTINED else row.body
    return row.key, row.state, row.hash, orjson.Fragment(payload), row.cols


def release(source: str, connection: str, resource: str, after: str, upto: str) -> Effect:
    params = {"q_source": source, "q_connection": connection, "q_resource": resource, "q_after": after, "q_upto": upto}
    return Effect(RELEASE, params)
