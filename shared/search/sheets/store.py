"""All SQL of the nightly sheet. What a step writes selects from `turn`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from shared.kernel import direct
from shared.kernel.model import Effect, Statement, Turn
from shared.search.sheets.model import MOST_COMPANIES, NightStatus, SeenRow

# --- nights

FOR_A_NIGHT = Statement(
    "sheet.for_a_night",
    """select s.connection, s.tab, s.zone, s.opens, s.closes, now() as now,
              (select max(n.night) from sheet_night n where n.tenant_id = s.tenant_id and n.sheet_id = s.id) as last_night,
              (select n.run_id from sheet_night n where n.tenant_id = s.tenant_id and n.sheet_id = s.id
                 and n.status = 'waiting' order by n.night desc limit 1) as waiting
       from search_sheet s where s.tenant_id = :tenant_id and s.id = cast(:sheet as uuid) and s.active""",
)
# The key is the lock: nothing comes back if this night has its sync already.
OPEN_NIGHT = Statement(
    "sheet.open_night",
    """insert into sheet_night (tenant_id, sheet_id, night, run_id, opens_at, closes_at)
       values (:tenant_id, cast(:sheet as uuid), cast(:night as date), :run_id, cast(:opens_at as timestamptz),
               cast(:closes_at as timestamptz))
       on conflict (tenant_id, sheet_id, night) do nothing""",
)
RUN_OF_NIGHT = Statement(
    "sheet.run_of_night",
    """select run_id from sheet_night
       where tenant_id = :tenant_id and sheet_id = cast(:sheet as uuid) and night = cast(:night as date)""",
)
# Of a run that has ended: its sheet, if there is to be another night.
FOLLOWING = Statement(
    "sheet.following",
    """select cast(n.sheet_id as text) as sheet, s.active from sheet_night n
       join search_sheet s on s.tenant_id = n.tenant_id and s.id = n.sheet_id
       where n.tenant_id = :tenant_id and n.run_id = cast(:run_id as uuid)""",
)
END_NIGHT = Statement(
    "sheet.end_night",
    """update sheet_night set status = :status, finished_at = now(), problem = cast(:problem as jsonb)
       where run_id = :run_id and finished_at is null""",
)
STATUS = Statement("sheet.status", "select status from sheet_night where run_id = :run_id")
# Where its rows stand is read anew every night: between two nights nobody needs it. An old night that is retried ends at once,
# perhaps while tonight's is being written, which must find its rows.
FORGET_AT_END = Statement(
    "sheet.forget_at_end",
    """delete from sheet_row r using sheet_night n
       where n.run_id = :run_id and r.tenant_id = n.tenant_id and r.sheet_id = n.sheet_id
         and not exists (select from sheet_night o where o.tenant_id = n.tenant_id and o.sheet_id = n.sheet_id
                                                     and o.run_id <> n.run_id and o.finished_at is null)""",
)
PRUNE = Statement("sheet.prune", "delete from sheet_night where run_id = :run_id and finished_at is not null")

# --- a sync

NIGHT = sa.text("""
select n.status, n.opens_at, n.closes_at, n.night, s.tab, s.active
from sheet_night n join search_sheet s on s.tenant_id = n.tenant_id and s.id = n.sheet_id
where n.tenant_id = :tenant_id and n.run_id = :run_id
""")
# What the sheet looked like last time is forgotten: its readers may have sorted it.
FORGET = Statement(
    "sheet.forget",
    "delete from sheet_row r using turn where r.tenant_id = turn.tenant_id and r.sheet_id = cast(:sheet as uuid)",
)
BEGIN = Statement(
    "sheet.begin",
    """update sheet_night n
       set status = 'running', started_at = now(), finished_at = null, problem = null, rows_written = 0, rows_cleared = 0,
           feedback_read = 0, feedback_ignored = 0
       from turn where n.run_id = turn.run_id""",
)
_SEEN = """jsonb_to_recordset(cast(:seen as jsonb)) as i (row_no integer, company uuid, feedback text, said boolean, again boolean)
           left join companies c on c.tenant_id = turn.tenant_id and c.id = i.company"""
# A key counts if it is a company of this tenant. One that is there twice keeps its first row.
SEE = Statement(
    "sheet.see",
    f"""insert into sheet_row (tenant_id, sheet_id, row_no, company_id, gone)
       select turn.tenant_id, cast(:sheet as uuid), i.row_no, c.id,
              c.id is not null and (i.again or exists (
                  select from sheet_row r where r.tenant_id = turn.tenant_id and r.sheet_id = cast(:sheet as uuid)
                    and r.company_id = c.id))
       from turn cross join {_SEEN}
       on conflict (tenant_id, sheet_id, row_no) do nothing""",  # noqa: S608 - our own words
)
# The newest word counts. A cell that says what it said when this sheet was last read is older than whatever was said since,
# over the API or in another sheet.
_NEWS = """f.heard ->> cast(:sheet as text) is not null
                or f.feedback is distinct from excluded.feedback"""
HEAR = Statement(
    "sheet.hear",
    f"""insert into company_feedback as f (tenant_id, company_id, feedback, said_by, said_at, heard)
       select distinct on (c.id) turn.tenant_id, c.id, i.feedback, 'sheet:' || cast(:sheet as text), now(),
              jsonb_build_object(cast(:sheet as text), i.feedback)
       from turn cross join {_SEEN}
       where c.id is not null and i.feedback is not null order by c.id, i.row_no desc
       on conflict (tenant_id, company_id) do update
       set heard = f.heard || excluded.heard,
           feedback = case when {_NEWS} then excluded.feedback else f.feedback end,
           said_by = case when {_NEWS} then excluded.said_by else f.said_by end,
           said_at = case when {_NEWS} then excluded.said_at else f.said_at end
       where f.heard ->> cast(:sheet as text) is distinct from excluded.feedback""",  # noqa: S608 - our own words
)
# A cell that says nothing any more may say the same again, and that is news. (A company's second row says nothing either way.)
SILENT = Statement(
    "sheet.silent",
    f"""update company_feedback f set heard = f.heard - cast(:sheet as text)
       from (select turn.tenant_id, c.id from turn cross join {_SEEN} where c.id is not null
             group by turn.tenant_id, c.id having bool_and(i.feedback is null)) s
       where f.tenant_id = s.tenant_id and f.company_id = s.id
         and f.heard ->> cast(:sheet as text) is not null
         and not exists (select from sheet_row r where r.tenant_id = f.tenant_id and r.sheet_id = cast(:sheet as uuid)
                           and r.company_id = f.company_id)""",  # noqa: S608 - our own words
)
# So may the cell of a company that has no row: it was blocked and has left, or somebody deleted it.
GONE = Statement(
    "sheet.gone",
    """update company_feedback f set heard = f.heard - cast(:sheet as text) from turn
       where f.tenant_id = turn.tenant_id and f.heard ->> cast(:sheet as text) is not null
         and not exists (select from sheet_row r where r.tenant_id = f.tenant_id and r.sheet_id = cast(:sheet as uuid)
                           and r.company_id = f.company_id)""",
)
COUNT_HEARD = Statement(
    "sheet.count_heard",
    f"""update sheet_night n set feedback_read = n.feedback_read + h.heard, feedback_ignored = n.feedback_ignored + h.ignored
       from (select turn.run_id, count(*) filter (where i.feedback is not null and c.id is not null) as heard,
                    count(*) filter (where i.said and (i.feedback is null or c.id is null)) as ignored
             from turn cross join {_SEEN} group by turn.run_id) h
       where n.run_id = h.run_id""",  # noqa: S608 - our own words
)
# Companies that are blocked leave; those that have no row yet take the first that are free.
LEAVE = Statement(
    "sheet.leave",
    """update sheet_row r set gone = true from turn, company_feedback f
       where r.tenant_id = turn.tenant_id and r.sheet_id = cast(:sheet as uuid) and not r.gone
         and f.tenant_id = r.tenant_id and f.company_id = r.company_id and f.feedback = 'blocked'""",
)
PLACE = Statement(
    "sheet.place",
    f"""with wanted as (
           select turn.tenant_id, c.id, row_number() over (order by c.first_seen_at, c.id) as n
           from turn join companies c on c.tenant_id = turn.tenant_id
           where not exists (select from company_feedback f where f.tenant_id = c.tenant_id and f.company_id = c.id
                               and f.feedback = 'blocked')
             and not exists (select from sheet_row r where r.tenant_id = c.tenant_id and r.sheet_id = cast(:sheet as uuid)
                               and r.company_id = c.id)
           order by c.first_seen_at, c.id limit {MOST_COMPANIES}),
       free as (
           select g as row_no, row_number() over (order by g) as n
           from turn, generate_series(2, 1 + (select count(*) from wanted)
                    + (select count(*) from sheet_row r, turn t where r.tenant_id = t.tenant_id and r.sheet_id = cast(:sheet as uuid))) g
           where not exists (select from sheet_row r where r.tenant_id = turn.tenant_id and r.sheet_id = cast(:sheet as uuid)
                               and r.row_no = g))
       insert into sheet_row (tenant_id, sheet_id, row_no, company_id, placed)
       select w.tenant_id, cast(:sheet as uuid), free.row_no, w.id, true from wanted w join free on free.n = w.n""",  # noqa: S608 - our own words
)
BATCH = sa.text("""
select r.row_no, r.gone, r.placed, c.id, c.name, c.open_offers, c.first_seen_at, c.last_seen_at, c.link,
       (select max(x.row_no) from sheet_row x where x.tenant_id = :tenant_id and x.sheet_id = :sheet
          and x.company_id is not null) as last_row
from sheet_row r join companies c on c.tenant_id = r.tenant_id and c.id = r.company_id
where r.tenant_id = :tenant_id and r.sheet_id = :sheet and r.row_no > :after order by r.row_no limit :most
""")
COUNT_WRITTEN = Statement(
    "sheet.count_written",
    """update sheet_night n set rows_written = n.rows_written + cast(:written as integer),
              rows_cleared = n.rows_cleared + cast(:cleared as integer)
       from turn where n.run_id = turn.run_id""",
)
END = Statement(
    "sheet.end",
    """update sheet_night n
       set status = :night_status, finished_at = now(), problem = cast(:night_problem as jsonb),
           rows_written = n.rows_written + cast(:written as integer), rows_cleared = n.rows_cleared + cast(:cleared as integer)
       from turn where n.run_id = turn.run_id and n.finished_at is null""",
)


def begin(sheet: str) -> list[Effect]:
    return [Effect(FORGET, {"sheet": sheet}), Effect(BEGIN)]


def saw(sheet: str, rows: Sequence[SeenRow]) -> list[Effect]:
    keys: set[Any] = set()
    told = []
    for row in rows:
        told.append(
            {
                "row_no": row.row, "company": None if row.company is None else str(row.company), "feedback": row.feedback,
                "said": row.said, "again": row.company is not None and row.company in keys,
            }
        )  # fmt: skip
        keys.add(row.company)
    return [
        Effect(SEE, {"sheet": sheet, "seen": orjson.dumps(told).decode()}), Effect(HEAR), Effect(SILENT), Effect(COUNT_HEARD)
    ] if told else []  # fmt: skip


def leave(sheet: str) -> list[Effect]:
    return [Effect(LEAVE, {"sheet": sheet}), Effect(GONE, {"sheet": sheet})]


def place(sheet: str) -> Effect:
    return Effect(PLACE, {"sheet": sheet})


def wrote(written: int, cleared: int) -> Effect:
    return Effect(COUNT_WRITTEN, {"written": written, "cleared": cleared})


def ended(status: NightStatus, problem: str | None = None, *, written: int = 0, cleared: int = 0) -> Effect:
    """With what the last step wrote: one statement changes a row once."""
    told = {"night_status": status, "night_problem": problem, "written": written, "cleared": cleared}
    return Effect(END, told)


@dataclass(frozen=True, slots=True)
class SheetStore:
    engine: sa.Engine

    def night(self, turn: Turn) -> Any:
        with direct.alone(self.engine, turn.tenant_id) as line:
            return line.one(NIGHT, {"tenant_id": turn.tenant_id, "run_id": turn.run_id})

    def batch(self, turn: Turn, sheet: str, after: int, most: int) -> list[Any]:
        with direct.alone(self.engine, turn.tenant_id) as line:
            return line.all(BATCH, {"tenant_id": turn.tenant_id, "sheet": sheet, "after": after, "most": most})


# --- what the API asks

ADD = sa.text("""
insert into search_sheet as s (id, tenant_id, connection, tab, zone, opens, closes, created_by)
values (:id, :tenant_id, :connection, :tab, :zone, cast(:opens as time), cast(:closes as time), :created_by)
on conflict (tenant_id, connection, tab) do update
set active = true, zone = excluded.zone, opens = excluded.opens, closes = excluded.closes
where not s.active
returning id
""")
# The night that a sheet waits for, if it was removed and is added again with another window.
WAITING_NIGHT = sa.text("""
select now() as now, (select max(o.night) from sheet_night o
                      where o.tenant_id = n.tenant_id and o.sheet_id = n.sheet_id and o.run_id <> n.run_id) as last_night
from sheet_night n where n.tenant_id = :tenant_id and n.run_id = :run_id and n.status = 'waiting'
""")
MOVE_NIGHT = sa.text("""
update sheet_night set night = :night, opens_at = :opens_at, closes_at = :closes_at
where tenant_id = :tenant_id and run_id = :run_id and status = 'waiting'
""")
REMOVE = sa.text("update search_sheet set active = false where tenant_id = :tenant_id and id = :id and active")
LIST = sa.text("""
select s.id, s.connection, s.tab, s.zone, s.opens, s.closes, s.created_at,
       coalesce((select jsonb_agg(to_jsonb(n) order by n.night desc) from (
           select n.night, n.status, n.run_id, n.opens_at, n.closes_at, n.rows_written, n.rows_cleared, n.feedback_read,
                  n.feedback_ignored, n.problem, n.started_at, n.finished_at
           from sheet_night n where n.tenant_id = s.tenant_id and n.sheet_id = s.id order by n.night desc limit 8) n), '[]') as nights
from search_sheet s where s.tenant_id = :tenant_id and s.active order by s.created_at, s.id
""")
SAY = sa.text("""
insert into company_feedback as f (tenant_id, company_id, feedback, said_by, said_at)
select c.tenant_id, c.id, :feedback, :said_by, now() from companies c where c.tenant_id = :tenant_id and c.id = :company_id
on conflict (tenant_id, company_id) do update
set feedback = excluded.feedback, said_by = excluded.said_by, said_at = excluded.said_at
returning company_id
""")
UNSAY = sa.text("""
update company_feedback set feedback = null, said_by = :said_by, said_at = now()
where tenant_id = :tenant_id and company_id = :company_id
""")
KNOWN_COMPANY = sa.text("select 1 as one from companies where tenant_id = :tenant_id and id = :company_id")
