"""Every SQL statement of row jobs. Those of steps select from `turn`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.clock import stopwatch
from shared.kernel.model import Effect, Statement
from shared.row_job import grid
from shared.row_job.model import SHEET, UPLOADS, Status, Which
from shared.row_job.ports import ExportState, FixRow, OpenRows, Progress, Snapshot
from shared.row_job.table import Row

# The start of a job, in the transaction that creates its run.
FILE = Statement(
    "row_job.file",
    """select id, name, size, version_id, hold, options, created_by, ip_address::text as ip_address, arrived_at is not null as arrived,
              (select j.run_id from file_jobs j where j.file_id = f.id) as run_id
       from files f where id = :file_id and tenant_id = :tenant_id for update""",
)
ARRIVE = Statement(
    "row_job.arrive",
    """update files set size = cast(:size as bigint), version_id = :version_id, etag = :etag, arrived_at = now()
       where id = :file_id and tenant_id = :tenant_id and arrived_at is null""",
)
ADD_JOB = Statement(
    "row_job.add",
    """insert into file_jobs (run_id, tenant_id, file_id, user_id, ip_address, job_type, slots, process_upto, created_at)
       values (:run_id, :tenant_id, :file_id, :user_id, cast(:ip_address as inet), :job_type, cast(:slots as smallint),
               cast(:process_upto as bigint), now())
       on conflict (file_id) do nothing""",
)
# The reading of its file. Rows are written as they are read, and the place behind them with the step: one that did not come
# to its end is done again from where it began. Rows are written in order and under the lane's lock, so those that are there
# already are the first ones of a batch. Whoever says `on conflict` instead pays for it with every row.
# Lists side by side are taken apart faster than a list of records, and no slower than COPY, which row-level security forbids.
ADD_ROWS = Statement(
    "row_job.rows",
    """insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, normalized_json,
                              last_error, permanent, due_at, updated_at)
       select j.run_id, r.n, j.tenant_id, j.user_id, j.job_type, r.n % j.slots,
              case when r.p is null then 'PENDING' else 'SKIPPED' end, r.i, nullif(r.c, 'null'), r.p, r.p is not null,
              timestamptz '2000-01-01 00:00+00', now()
       from turn t join file_jobs j on j.run_id = t.run_id
       cross join lateral (
           select coalesce(max(i.row_no), 0) as n from job_items i
           where i.run_id = t.run_id and i.row_no > cast(:after as bigint)
             and i.row_no <= cast(:after as bigint) + cast(:count as bigint)) there
       cross join lateral (
           select cast(:after as bigint) + x.at as n, x.i, x.c,
                  case when cast(:problems as jsonb) is not null then cast(:problems as jsonb) ->> x.at::text end as p
           from (select generate_series(1, cast(:count as bigint)) as at,
                        jsonb_array_elements(cast(:inputs as jsonb)) as i,
                        jsonb_array_elements(cast(:normalized as jsonb)) as c) x) r
       where r.n > there.n""",
)


def kept(rows: Sequence[Row]) -> Effect:
    """Rows that follow each other, as they are kept."""
    problems = {str(at): row.problem for at, row in enumerate(rows, 1) if row.problem is not None}
    return Effect(
        ADD_ROWS,
        {
            "after": rows[0].row_no - 1, "count": len(rows), "inputs": db.jsonb([row.input for row in rows]),
            "normalized": db.jsonb([row.normalized for row in rows]), "problems": db.jsonb(problems) if problems else None,
        },
    )  # fmt: skip


NOTE_READ = Statement(
    "row_job.read",
    """update file_jobs j set dialect = coalesce(cast(:dialect as jsonb), j.dialect),
              columns = coalesce(cast(:columns as jsonb), j.columns), read_bytes = cast(:read_bytes as bigint),
              read_rows = cast(:read_rows as bigint), batch_rows = cast(:batch_rows as integer),
              read_at = case when :done then now() else j.read_at end
       from turn t where j.run_id = t.run_id""",
)

# The work. A lane owns its slot while no elder lane of it is active, so a row that is at work without us was left by one that
# died. It is taken again as the same attempt: nobody knows of an answer. And alone, after all others or, if the claim before this one
# died too, before them: it may be what kills, and the rows beside it must not die with it. What a tenant may have at work is shared by
# all its lanes. More of them than there are shares need not be counted: each gets one.
# Postgres asks conditions in any order it likes: the key of another lane has no number to read.
_GENERATION = "case when o.key like 'work:%' then split_part(o.key, ':', 3)::integer end"
_OF_SLOT = """i.run_id = t.run_id and i.slot = cast(:slot as smallint)
                       and (j.process_upto is null or i.row_no <= j.process_upto)"""
# What is picked is named by its numbers: how many a limit lets through that isn't known yet is a guess, and joined with the table
# it was read as a whole.
CLAIM = Statement(
    "row_job.claim",
    f"""with picked as materialized (
           select p.row_no, p.was_left from turn t
           join file_jobs j on j.run_id = t.run_id
           cross join lateral (
               with waiting as materialized (
                   select i.row_no, false as was_left from job_items i
                   where {_OF_SLOT} and i.status = 'PENDING' and i.due_at <= now()
                     and not (cast(:alone as boolean)
                              and exists (select from job_items i where {_OF_SLOT} and i.status = 'PROCESSING'))
                   order by i.due_at, i.row_no
                   limit (select least(cast(:most as integer), greatest(1, cast(:tenant_most as integer) / greatest(1, count(*))))
                          from (select from lane l where l.tenant_id = t.tenant_id and l.kind = t.kind
                                  and l.status = 'active' and l.key like 'work:%'
                                limit cast(:tenant_most as integer)) l)),
               left_behind as (
                   select i.row_no, true from job_items i
                   where {_OF_SLOT} and i.status = 'PROCESSING' and not exists (select from waiting)
                   order by i.due_at, i.row_no limit 1)
               select * from waiting union all select * from left_behind) p
           where not exists (
               select from lane o where o.run_id = t.run_id and o.status = 'active' and o.key like 'work:' || cast(:slot as text) || ':%'
                 and {_GENERATION} < cast(:gen as integer)))
       update job_items i set status = 'PROCESSING', attempts = i.attempts + (i.status = 'PENDING')::int,
              locked_by = cast(:holder as uuid), locked_at = now(), updated_at = now(),
              due_at = case when i.status = 'PENDING' then now() + cast(:lease_s as double precision) * interval '1 s' else i.due_at end
       where i.run_id = (select run_id from turn) and i.row_no = any(array(select row_no from picked))
       returning i.row_no, i.attempts, i.misses, i.turned, i.normalized_json as normalized, i.last_error, (select bool_or(was_left) from picked) as was_left""",
    returns=True,
)
# The price is that of the result: an offer without one has none, whatever an earlier one cost.
FINISH_ROWS = Statement(
    "row_job.finish",
    """update job_items i set status = r.status, attempts = r.attempts, misses = i.misses + r.missed::int,
              turned = i.turned + r.missed::int, result_json = coalesce(r.result, i.result_json),
              price = case when r.result is null then i.price else r.price end, last_error = r.message, permanent = r.permanent, locked_by = null,
              locked_at = null, updated_at = now(),
              due_at = now() + coalesce(r.again_s, 0) * interval '1 s'
       from turn t cross join jsonb_to_recordset(cast(:items as jsonb)) as r (row_no bigint, claimed integer, status text,
            attempts integer, missed boolean, result jsonb, price numeric, message text, permanent boolean, again_s double precision)
       where i.run_id = t.run_id and i.row_no = r.row_no and i.status = 'PROCESSING' and i.attempts = r.claimed
         and i.locked_by = cast(:holder as uuid)""",
)
ADD_EVENTS = Statement(
    "row_job.events",
    """insert into search_events (run_id, tenant_id, row_no, attempt, strategy, domain, status, ms, at)
       select t.run_id, t.tenant_id, e.row_no, e.attempt, e.strategy, e.domain, e.status, e.ms, now()
       from turn t cross join jsonb_to_recordset(cast(:events as jsonb)) as e (row_no bigint, attempt integer, strategy text,
            domain text, status text, ms integer)""",
)
# What a deleted job leaves goes in batches; its run stays as the record that it was there.
ERASE_ROWS = Statement(
    "row_job.erase",
    """delete from job_items i using turn t where i.run_id = t.run_id and i.row_no = any(array(
           select x.row_no from job_items x where x.run_id = t.run_id order by x.row_no limit cast(:most as integer)))
       returning i.row_no""",
    returns=True,
)
ERASE_EVENTS = Statement("row_job.erase_events", "delete from search_events e using turn t where e.run_id = t.run_id")
PRUNE_ITEMS = Statement(
    "row_job.prune_items",
    """delete from job_items where run_id = :run_id and row_no = any(array(
           select row_no from job_items where run_id = :run_id order by row_no limit cast(:most as integer)))""",
)
PRUNE_EVENTS = Statement(
    "row_job.prune_events",
    """delete from search_events where ctid = any(array(
           select ctid from search_events where run_id = :run_id limit cast(:most as integer)))""",
)
PRUNE_JOB = Statement("row_job.prune", "delete from file_jobs where run_id = :run_id")
# Whatever file has no job, or none any more, leaves when its job would: who uploaded it, and from where, is kept no longer.
# So do those that were asked for and never came. Their objects are gone by then.
PRUNE_FILES = Statement(
    "row_job.prune_files",
    """delete from files where id = any(array(
           select f.id from files f
           where f.tenant_id = :tenant_id and f.created_at < now() - make_interval(days => cast(:days as integer))
             and not exists (select from file_jobs j where j.file_id = f.id)
             and not exists (select from row_fixes x where x.file_id = f.id)
           order by f.created_at limit cast(:most as integer)))""",
)

# Rows that a person opens are taken as those that were never tried are: in the order of the file, before any that come again.
_FIRST = "timestamptz '2000-01-01 00:00+00'"
# What a person does to a job, under its run's lock. Only what has ended is worked on again, or, if it is named, what waits for
# a later time: nobody works on either. What has nothing to search for can only be fixed. What was refused for what is in it would
# be refused again: only whoever asks for it gets it. All begin with fresh attempts, in the way that comes next.
_AGAIN = """i.run_id = :run_id and i.tenant_id = :tenant_id and i.status = any(cast(:statuses as text[]))
         and (i.status <> 'PENDING' or i.due_at > now()) and i.normalized_json is not null and (:permanent or not i.permanent)
         and (cast(:row_nos as bigint[]) is null or i.row_no = any(cast(:row_nos as bigint[])))"""
RESET = Statement(
    "row_job.reset",
    f"""update job_items i set status = 'PENDING', attempts = 0, misses = 0, permanent = false, locked_by = null, locked_at = null,
              updated_at = now(), due_at = {_FIRST}
       where {_AGAIN}""",
)
COUNT_RESET = Statement("row_job.count_reset", f"select count(*) as count from job_items i where {_AGAIN}")
OPEN_AMONG = Statement(
    "row_job.open_among",
    """select row_no, status, normalized_json is null as is_empty from job_items where run_id = :run_id and tenant_id = :tenant_id
         and row_no = any(cast(:row_nos as bigint[]))
         and (status = 'PROCESSING' or status = 'PENDING' and due_at <= now() or normalized_json is null)
       order by row_no limit 20""",
)
SLOTS = Statement(
    "row_job.slots",
    """select j.slots, j.columns, j.deleted_at is not null as deleted
       from file_jobs j where j.run_id = :run_id and j.tenant_id = :tenant_id for update of j""",
)
# The last lane of each share of the rows. Nobody claims one of them meanwhile: one that is free sees what was written here.
NEWEST_LANES = Statement(
    "row_job.newest_lanes",
    f"""select split_part(l.key, ':', 2)::integer as slot, split_part(l.key, ':', 3)::integer as gen, l.id, l.status = 'active' as active,
              l.claim_token is not null as claimed
       from lane l where l.id = any(array(
           select distinct on (split_part(o.key, ':', 2)) o.id from lane o
           where o.run_id = :run_id and o.tenant_id = :tenant_id and o.key like 'work:%'
           order by split_part(o.key, ':', 2), {_GENERATION} desc))
       for no key update of l""",
)
PROMOTE = Statement(
    "row_job.promote",
    "update file_jobs set process_upto = null where run_id = :run_id and tenant_id = :tenant_id and process_upto is not null",
)
DELETE = Statement(
    "row_job.delete",
    "update file_jobs set deleted_at = now() where run_id = :run_id and tenant_id = :tenant_id and deleted_at is null",
)
# How many rows are in which state. Counted, never added to; by one lane now and then, and when the job ends.
_COUNTED = """select count(*) as total, count(*) filter (where i.status = 'PENDING') as pending,
                  count(*) filter (where i.status = 'PROCESSING') as processing, count(*) filter (where i.status = 'DONE') as done,
                  count(*) filter (where i.status = 'ERROR') as errors, count(*) filter (where i.status = 'NOT_FOUND') as not_found,
                  count(*) filter (where i.status = 'SKIPPED') as skipped"""
_KEEP_COUNTS = """total_items = c.total, processed_items = c.done + c.errors + c.not_found + c.skipped,
              failed_items = c.errors + c.not_found, counts = to_jsonb(c), counted_at = now()"""
ROWS = Statement(
    "row_job.rows",
    """select run_id, processed_items - failed_items as done, failed_items as failed, total_items as total from file_jobs
       where run_id = any(cast(:run_ids as uuid[])) and tenant_id = :tenant_id and total_items > 0""",
)
COUNT = Statement(
    "row_job.count",
    f"""with c as ({_COUNTED} from job_items i where i.run_id = :run_id)
       update file_jobs j set {_KEEP_COUNTS} from c where j.run_id = :run_id and j.tenant_id = :tenant_id""",
)
# Whoever has the job's row goes on to its lanes: a lane that counts does not wait for him.
COUNT_NOW = Statement(
    "row_job.count_now",
    f"""update file_jobs j set {_KEEP_COUNTS}
       from (select t.run_id from turn t join file_jobs k on k.run_id = t.run_id
             where k.counted_at is null or k.counted_at < now() - cast(:every_s as double precision) * interval '1 s'
             for no key update of k skip locked) due
       cross join lateral ({_COUNTED} from job_items i where i.run_id = due.run_id) c
       where j.run_id = due.run_id
       returning c.pending""",
    returns=True,
)

# A scan. What was seen is kept with the scan that saw it first as it is now; another one that finds it unchanged takes it.
SEE = Statement(
    "row_job.see",
    """insert into scanned_files (tenant_id, source, name, size, stamp, first_run, seen_at)
       select t.tenant_id, :source, f.name, f.size, f.stamp, t.run_id, now()
       from turn t cross join jsonb_to_recordset(cast(:files as jsonb)) as f (name text, size bigint, stamp text)
       on conflict (tenant_id, source, name) do update set seen_at = now(), size = excluded.size, stamp = excluded.stamp,
           first_run = case when (scanned_files.size, scanned_files.stamp) = (excluded.size, excluded.stamp)
                            then scanned_files.first_run else excluded.first_run end,
           file_id = case when (scanned_files.size, scanned_files.stamp) = (excluded.size, excluded.stamp)
                          then scanned_files.file_id end
       returning name, size, stamp, file_id, first_run <> (select run_id from turn) as settled""",
    returns=True,
)
FORGET = Statement(
    "row_job.forget",
    """delete from scanned_files s using turn t
       where s.tenant_id = t.tenant_id and s.source = :source and s.seen_at < now() - interval '90 days'""",
)
TAKEN = Statement(
    "row_job.taken",
    """update scanned_files s set file_id = cast(:file_id as uuid) from turn t
       where s.tenant_id = t.tenant_id and s.source = :source and s.name = :name and s.size = cast(:size as bigint)
         and s.stamp = :stamp""",
)
# A scan issues uploads as the API does; their ids follow from the file, so that one that is issued again is the same.
ISSUE_SCANNED = Statement(
    "row_job.issue",
    """insert into files (id, tenant_id, name, options, created_by)
       select cast(:file_id as uuid), t.tenant_id, :name, cast(:options as jsonb), r.created_by
       from turn t join run r on r.id = t.run_id
       on conflict (id) do nothing""",
)

# Exports. The snapshot is opened under the lane's token; whoever changes a row from then on keeps it as it was.
EXPORTABLE = Statement(
    "row_job.exportable",
    """select f.name, j.job_type from file_jobs j join files f on f.id = j.file_id
       where j.run_id = :job_id and j.tenant_id = :tenant_id and j.deleted_at is null""",
)
EXPORTING = Statement(
    "row_job.exporting",
    """select e.run_id from row_exports e join run r on r.id = e.run_id and r.status in ('queued', 'running')
       where e.job_id = :job_id and e.tenant_id = :tenant_id and e.format = :format and e.rows = :rows
         and e.created_by is not distinct from cast(:created_by as text) and not e.open and e.gen = 0 limit 1""",
)
ADD_EXPORT = Statement(
    "row_job.add_export",
    """insert into row_exports (run_id, tenant_id, job_id, format, rows, created_by, created_at)
       values (:run_id, :tenant_id, :job_id, :format, :rows, :created_by, now())""",
)
OPEN_EXPORT = Statement(
    "row_job.open_export",
    """update row_exports e set open = true, gen = e.gen + 1, taken_at = now(), written = null, finished_at = null, files = '[]',
              upto = coalesce((select max(i.row_no) from job_items i where i.run_id = e.job_id), 0)
       from turn t where e.run_id = t.run_id returning e.gen, e.upto""",
    returns=True,
)
END_EXPORT = Statement(
    "row_job.end_export",
    """update row_exports e set open = false, files = cast(:files as jsonb), written = cast(:written as bigint), finished_at = now()
       from turn t where e.run_id = t.run_id""",
)
CLOSE_EXPORT = Statement(
    "row_job.close_export",
    "update row_exports set open = false where run_id = :run_id and tenant_id = :tenant_id and open",
)
IS_KEPT = Statement(
    "row_job.is_kept",
    "select from export_kept where export_id = :run_id and tenant_id = :tenant_id limit 1",
)
UNKEEP_ROWS = Statement(
    "row_job.unkeep",
    """delete from export_kept k using turn t where k.export_id = t.run_id and (k.gen, k.row_no) in (
           select x.gen, x.row_no from export_kept x join row_exports e on e.run_id = x.export_id
           where x.export_id = t.run_id and (not e.open or x.gen < e.gen) order by x.gen, x.row_no limit cast(:most as integer))
       returning k.row_no""",
    returns=True,
)
PRUNE_KEPT = Statement(
    "row_job.prune_kept",
    """delete from export_kept where export_id = :run_id and (gen, row_no) in (
           select gen, row_no from export_kept where export_id = :run_id order by gen, row_no limit cast(:most as integer))""",
)
PRUNE_EXPORT = Statement("row_job.prune_export", "delete from row_exports where run_id = :run_id")
PRUNE_FIXES = Statement("row_job.prune_fixes", "delete from row_fixes where run_id = :run_id")

# Fixes. A row is replaced only if it is as it was downloaded, and nobody works on it.
_HASH = "left(md5({of}.input_json::text), 16)"
HASH = _HASH.format(of="i")
FIXABLE = Statement(
    "row_job.fixable",
    f"""select i.row_no, i.status, {HASH} as hash, i.input_json as input from job_items i
       where i.run_id = :run_id and i.tenant_id = :tenant_id and i.row_no = any(cast(:row_nos as bigint[]))""",
)
_REPLACE = f"""status = 'PENDING', input_json = r.input, normalized_json = r.normalized, result_json = null, price = null, attempts = 0,
              misses = 0, turned = 0, last_error = null, permanent = false, locked_by = null, locked_at = null, updated_at = now(), due_at = {_FIRST}
       from {{of}} jsonb_to_recordset(cast(:fixes as jsonb)) as r (n bigint, hash text, input jsonb, normalized jsonb)
       where i.run_id = {{run}} and i.row_no = r.n and i.status in ('ERROR', 'NOT_FOUND', 'SKIPPED') and {HASH} = r.hash"""
FIX_ROWS = Statement(
    "row_job.fix_rows",
    "update job_items i set " + _REPLACE.format(of="turn t cross join", run="t.run_id") + " returning i.row_no",
)
FIX_NOW = Statement(
    "row_job.fix_now",
    "update job_items i set " + _REPLACE.format(of="", run=":run_id") + " and i.tenant_id = :tenant_id",
)
FIX_FILE = Statement(
    "row_job.fix_file",
    """select f.id, f.arrived_at is not null as arrived, j.run_id as job_id, x.run_id as fixes, x.finished_at is not null as done
       from files f left join file_jobs j on j.file_id = f.id left join row_fixes x on x.file_id = f.id
       where f.id = :file_id and f.tenant_id = :tenant_id for update of f""",
)
ADD_FIX = Statement(
    "row_job.add_fix",
    """insert into row_fixes (file_id, run_id, tenant_id, created_by, created_at)
       values (:file_id, :run_id, :tenant_id, :created_by, now())""",
)
# What a file of fixed rows has brought. `effect_0` is FIX_ROWS in the same commit: only rows that it wrote count. Of two files
# that bring the same row at once, the one that comes second has found it as it was and not changed it.
NOTE_FIX = Statement(
    "row_job.note_fix",
    """update row_fixes x set fixed = x.fixed + cast(:fixed as bigint) - lost.n, unchanged = x.unchanged + cast(:unchanged as bigint),
              unmatched = x.unmatched + cast(:unmatched as bigint) + lost.n,
              examples = case when jsonb_array_length(x.examples) < 100 then x.examples || cast(:examples as jsonb) || lost.told
                              else x.examples end,
              finished_at = case when :done then now() end
       from turn t cross join (
           select count(*) as n, coalesce(jsonb_agg(jsonb_build_object('row', j.row_no, 'code', 'changed', 'message', cast(:words as text))
                                                    order by j.row_no) filter (where j.at <= 100), '[]') as told
           from (select r.row_no, row_number() over (order by r.row_no) as at from unnest(cast(:row_nos as bigint[])) r (row_no)
                 where not exists (select from effect_0 w where w.row_no = r.row_no)) j) lost
       where x.run_id = t.run_id and x.file_id = cast(:file_id as uuid)""",
)

PROGRESS = sa.text("""
select f.id as file_id, f.name, f.version_id, f.size, j.dialect, j.columns, j.read_bytes, j.read_rows, j.read_at is not null as read_done
from file_jobs j join files f on f.id = j.file_id where j.run_id = :run_id and j.tenant_id = :tenant_id
""")
# A file that could not be read to its end brings no more rows either.
OPEN_ROWS = sa.text(f"""
select (j.read_at is not null
        or not exists (select from lane l where l.run_id = j.run_id and l.key = 'ingest' and l.status = 'active'))
       and not exists (select from lane l where l.run_id = j.run_id and l.key like 'fix:%' and l.status = 'active') as read_done,
       (select extract(epoch from i.due_at - now())::double precision from job_items i
        where i.run_id = j.run_id and i.slot = cast(:slot as smallint) and i.status in ('PENDING', 'PROCESSING')
          and (j.process_upto is null or i.row_no <= j.process_upto)
        order by i.due_at, i.row_no limit 1) as next_due_s,
       j.process_upto is not null and exists (
           select from job_items i where i.run_id = j.run_id and i.slot = cast(:slot as smallint)
             and i.status in ('PENDING', 'PROCESSING') and i.row_no > j.process_upto) as held_back,
       exists (select from lane o where o.run_id = j.run_id and o.status = 'active' and o.key like 'work:' || cast(:slot as text) || ':%'
                 and {_GENERATION} < cast(:gen as integer)) as elder
from file_jobs j where j.run_id = :run_id and j.tenant_id = :tenant_id
""")


FIX_PROGRESS = sa.text("""
select f.id as file_id, f.name, f.version_id, f.size, j.dialect, j.columns, j.read_bytes, j.read_rows, true as read_done
from file_jobs j join row_fixes x on x.run_id = j.run_id join files f on f.id = x.file_id
where j.run_id = :run_id and j.tenant_id = :tenant_id and x.file_id = cast(:file_id as uuid)
""")
EXPORT_STATE = sa.text("""
select e.job_id, e.gen, e.open, j.run_id is null or j.deleted_at is not null as deleted, j.columns
from row_exports e left join file_jobs j on j.run_id = e.job_id where e.run_id = :run_id and e.tenant_id = :tenant_id
""")
HORIZON = sa.text("""
select pg_snapshot_xmin(s)::text::bigint as low, pg_snapshot_xmax(s)::text::bigint as high from pg_current_snapshot() s
""")
THERE = sa.text("""
select count(*) as n from job_items i where i.run_id = :job_id and i.tenant_id = :tenant_id
  and i.row_no > cast(:after as bigint) and i.row_no <= cast(:upto as bigint)
""")
IS_EXPORTING = sa.text("""
select exists (select from row_exports e join lane l on l.run_id = e.run_id and l.key = 'export' and l.lease_until > now()
               where e.job_id = :job_id and e.tenant_id = :tenant_id) as yes
""")
# What is in the bucket of a job: files of its exports, whole or not, also of those that failed; and what its spreadsheets, its own
# and those of fixed rows, were written down as.
_SHEET = SHEET.format(tenant_id="' || x.tenant_id || '", file_id="' || x.file_id || '")
EXPORTED = sa.text(f"""
select f ->> 'key' as key from row_exports e cross join jsonb_array_elements(e.files) f
where e.job_id = :job_id and e.tenant_id = :tenant_id
union
select c.key from row_exports e join lane l on l.run_id = e.run_id and l.key = 'export'
cross join lateral (
    select f ->> 'key' from jsonb_array_elements(coalesce(l.cursor -> 'files', '[]')) f
    union all select l.cursor ->> 'tail') c (key)
where e.job_id = :job_id and e.tenant_id = :tenant_id and c.key is not null
union
select l.cursor -> 'sheet' ->> 'tail' from lane l
where l.run_id = :job_id and l.tenant_id = :tenant_id and l.key like 'fix:%' and l.cursor -> 'sheet' ->> 'tail' is not null
union
select '{_SHEET}' from row_fixes x where x.run_id = :job_id and x.tenant_id = :tenant_id
union all
select '{_SHEET}' from file_jobs x where x.run_id = :job_id and x.tenant_id = :tenant_id
""")
# A row as it was at the snapshot: as it was kept, or as it is.
_AS_IT_WAS = ", ".join(
    f"case when k.row_no is null then i.{name} else k.{name} end as {name}"
    for name in ("status", "input_json", "normalized_json", "result_json", "attempts", "last_error", "updated_at")
)
_SNAPSHOT = f"""from job_items i
    left join export_kept k on k.export_id = '{{export_id}}' and k.gen = {{gen:d}} and k.row_no = i.row_no
         and k.row_no > {{after:d}} and k.row_no <= {{upto:d}}
    cross join lateral (select {_AS_IT_WAS}) v"""
_PAGE = (
    """where i.run_id = '{job_id}' and i.tenant_id = '{tenant_id}' and i.row_no > {after:d} and i.row_no <= {upto:d}"""
)
_CELLS = ", ".join(f"{column.sql} as {column.name}" for column in grid.COLUMNS)
COPY_ALL = f"""copy (select {_CELLS}, null as cut {_SNAPSHOT} {grid.BEST} {_PAGE} order by i.row_no)
to stdout with (format csv, force_quote ({", ".join(grid.QUOTED)}))"""
COPY_FAILED = f"""copy (select jsonb_build_object('n', i.row_no, 'status', v.status, 'error', v.last_error,
                               'hash', {_HASH.format(of="v")}, 'input', v.input_json)
      {_SNAPSHOT} {_PAGE} and v.status in ('ERROR', 'NOT_FOUND', 'SKIPPED') order by i.row_no) to stdout"""


class RowStore:
    """What steps read between their turns; every statement is bound to the tenant."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def progress(self, tenant_id: UUID, run_id: UUID) -> Progress | None:
        elapsed = stopwatch()
        loan = direct.alone(self._engine, tenant_id)
        waited_s = elapsed()
        with loan as line:
            row = line.one(PROGRESS, {"run_id": run_id, "tenant_id": tenant_id})
        if row is None:
            return None
        known = dict(row)
        key = UPLOADS.format(tenant_id=tenant_id, file_id=known.pop("file_id"))
        return Progress(key=key, pool_wait_ms=waited_s * 1000, **known)

    def open_rows(self, tenant_id: UUID, run_id: UUID, slot: int, gen: int) -> OpenRows:
        params = {"run_id": run_id, "tenant_id": tenant_id, "slot": slot, "gen": gen}
        with direct.alone(self._engine, tenant_id) as line:
            line.ahead(direct.IN_ORDER, {})
            row = line.one(OPEN_ROWS, params)
        if row is None:
            return OpenRows(read_done=True, next_due_s=None, held_back=False, elder=False)
        return OpenRows(**row)

    def fixing(self, tenant_id: UUID, run_id: UUID, file_id: UUID) -> Progress | None:
        with direct.alone(self._engine, tenant_id) as line:
            row = line.one(FIX_PROGRESS, {"run_id": run_id, "tenant_id": tenant_id, "file_id": file_id})
        if row is None:
            return None
        known = {name: value for name, value in row.items() if name != "file_id"}
        return Progress(key=UPLOADS.format(tenant_id=tenant_id, file_id=file_id), **known)

    def fixable(self, tenant_id: UUID, run_id: UUID, row_nos: Sequence[int]) -> dict[int, FixRow]:
        asked = {"run_id": run_id, "tenant_id": tenant_id, "row_nos": list(row_nos)}
        with direct.alone(self._engine, tenant_id) as line:
            return fix_rows(line.all(sa.text(FIXABLE.sql), asked))

    def export(self, tenant_id: UUID, run_id: UUID) -> ExportState | None:
        with direct.alone(self._engine, tenant_id) as line:
            row = line.one(EXPORT_STATE, {"run_id": run_id, "tenant_id": tenant_id})
        return None if row is None else ExportState(**row)

    def horizon(self) -> tuple[int, int]:
        with direct.alone(self._engine) as line:
            row = line.one(HORIZON, {})
        assert row is not None
        return int(row["low"]), int(row["high"])

    def copied(self, tenant_id: UUID, of: Snapshot, which: Which, after: int, upto: int) -> Iterator[list[bytes]]:
        """The text holds ids and numbers, no value of anybody: COPY takes no parameters."""
        form = COPY_ALL if which is Which.ALL else COPY_FAILED
        text = form.format(
            export_id=of.export_id, gen=of.gen, job_id=of.job_id, tenant_id=tenant_id, after=after, upto=upto
        )
        with direct.alone(self._engine, tenant_id) as line:
            yield from line.copy_out(text)

    def there(self, tenant_id: UUID, job_id: UUID, after: int, upto: int) -> int:
        with direct.alone(self._engine, tenant_id) as line:
            asked = {"job_id": job_id, "tenant_id": tenant_id, "after": after, "upto": upto}
            return int(line.scalars(THERE, asked)[0])

    def is_exporting(self, tenant_id: UUID, job_id: UUID) -> bool:
        with direct.alone(self._engine, tenant_id) as line:
            return bool(line.scalars(IS_EXPORTING, {"job_id": job_id, "tenant_id": tenant_id})[0])

    def exported(self, tenant_id: UUID, job_id: UUID) -> list[str]:
        asked = {"job_id": job_id, "tenant_id": tenant_id}
        with direct.alone(self._engine, tenant_id) as line:
            return [str(key) for key in line.scalars(EXPORTED, asked)]


def fix_rows(rows: Sequence[Mapping[str, Any]]) -> dict[int, FixRow]:
    return {row["row_no"]: FixRow(**{**row, "status": Status(row["status"])}) for row in rows}


COUNTED_AT_ONCE = 20_000  # rows that are counted whenever somebody asks; of more, the last count is told with its age
# What the API asks. The tenant's walls hold it, and those of somebody who sees only their own.
ISSUE = sa.text("""
insert into files (id, tenant_id, name, options, hold, created_by, ip_address)
values (:file_id, :tenant_id, :name, cast(:options as jsonb), :hold, :created_by, cast(:ip_address as inet)) returning id
""")
UPLOADED = sa.text("""
select f.id, f.name, f.size, f.version_id, f.options, f.arrived_at is not null as arrived,
       (select j.run_id from file_jobs j where j.file_id = f.id) as run_id
from files f where f.id = :file_id and f.tenant_id = :tenant_id
""")
GET = sa.text(f"""
select r.id, r.status, r.paused_at is not null as paused, r.error, r.created_at, r.finished_at, f.name, j.file_id, j.user_id,
       host(j.ip_address) as ip_address, j.job_type, j.columns, j.dialect, j.read_bytes, f.size, j.read_rows,
       j.read_at is not null as read_done, j.process_upto,
       (select max(l.updated_at) from lane l where l.run_id = r.id) as last_heartbeat,
       (select max(l.attempts) from lane l where l.run_id = r.id) as attempts,
       (select g.reason from gate g where g.tenant_id = j.tenant_id and g.key = 'product_search:' || (r.params ->> 'connection')
          and g.state <> 'open' and r.finished_at is null) as held_up,
       case when small.yes then now() else j.counted_at end as counted_at,
       case when small.yes then to_jsonb(live) else j.counts end as counts
from file_jobs j join run r on r.id = j.run_id join files f on f.id = j.file_id
cross join lateral (select j.read_rows <= {COUNTED_AT_ONCE} or j.counts is null as yes) small
cross join lateral ({_COUNTED} from job_items i where i.run_id = j.run_id and small.yes) live
where j.run_id = :run_id and j.tenant_id = :tenant_id and j.deleted_at is null
""")
# Lists. Each status (and type) is a stretch of an index in the order of the list; several are merged, so that a page costs the
# same wherever it begins and whatever it is filtered by. The rows themselves are read for those of the page alone, and never what
# they were read from, which may be long. A row that moves meanwhile may come twice or not at all: such a list is live.
_SHOWN = f"""i.row_no, i.status, i.attempts, i.permanent, i.locked_by, i.locked_at, i.updated_at, i.last_error,
       i.normalized_json ->> 'title' as title, i.normalized_json ->> 'brand' as brand, i.normalized_json ->> 'sku' as sku,
       array[{", ".join(f"({column.sql.replace('v.', 'i.')})::text" for column in grid.COLUMNS)}] as cells"""
_BEST = grid.BEST.replace("v.", "i.")


def _items(compares: str, order: str) -> sa.TextClause:
    return sa.text(f"""
with keys as (
    select k.updated_at, k.row_no from unnest(cast(:statuses as text[])) s (status)
    cross join lateral (
        select i.updated_at, i.row_no from job_items i
        where i.run_id = :run_id and i.tenant_id = :tenant_id and i.status = s.status
          and (i.updated_at, i.row_no) {compares} (cast(:after_at as timestamptz), cast(:after_row as bigint))
          and i.updated_at >= cast(:from_at as timestamptz) and i.updated_at < cast(:before_at as timestamptz)
        order by i.updated_at {order}, i.row_no {order} limit :most) k
    order by k.updated_at {order}, k.row_no {order} limit :most)
select {_SHOWN}
from keys k join job_items i on i.run_id = :run_id and i.row_no = k.row_no and i.tenant_id = :tenant_id {_BEST}
order by k.updated_at {order}, k.row_no {order}
""")


ITEMS = {"updated_at": _items(">", ""), "-updated_at": _items("<", "desc")}
# By the row's number, which never changes: no row comes twice and none is passed over while lanes work.
ITEMS_IN_ORDER = sa.text(f"""
select {_SHOWN} from job_items i {_BEST}
where i.run_id = :run_id and i.tenant_id = :tenant_id and i.row_no > cast(:after_row as bigint)
order by i.row_no limit :most
""")
_PENDING_KEYS = """
    select i.updated_at, i.run_id, i.row_no from job_items i
    where i.tenant_id = :tenant_id {mine} and i.job_type = y.job_type and i.status = s.status and i.status in ('PENDING', 'PROCESSING')
      and (i.updated_at, i.run_id, i.row_no) > (cast(:after_at as timestamptz), cast(:after_run as uuid), cast(:after_row as bigint))
      and i.updated_at >= cast(:from_at as timestamptz) and i.updated_at < cast(:before_at as timestamptz)
    order by i.updated_at, i.run_id, i.row_no limit :most"""
_PENDING_OF_JOB = """
    select i.updated_at, i.run_id, i.row_no from job_items i
    where i.run_id = j.run_id and i.tenant_id = :tenant_id and i.status = s.status
      and (i.updated_at, i.row_no) > (cast(:after_at as timestamptz), cast(:after_row as bigint))
      and i.updated_at >= cast(:from_at as timestamptz) and i.updated_at < cast(:before_at as timestamptz)
    order by i.updated_at, i.row_no limit :most"""
_TYPES_AND_STATUSES = (
    "unnest(cast(:types as text[])) y (job_type) cross join unnest(cast(:statuses as text[])) s (status)"
)


# A job has one type and one owner: whether they are asked for is a question to the job, not to each of its rows.
_JOB_AND_STATUSES = """file_jobs j cross join unnest(cast(:statuses as text[])) s (status)"""
_IS_ASKED = "where j.run_id = :job_id and j.tenant_id = :tenant_id and j.job_type = any(cast(:types as text[])) {mine}"


def _pending(keys: str, mine: str) -> sa.TextClause:
    of, only = (
        (_JOB_AND_STATUSES, _IS_ASKED.format(mine=mine.replace("i.", "j.")))
        if keys is _PENDING_OF_JOB
        else (_TYPES_AND_STATUSES, "")
    )
    return sa.text(f"""
with keys as (
    select k.updated_at, k.run_id, k.row_no from {of}
    cross join lateral ({keys.format(mine=mine)}) k {only}
    order by k.updated_at, k.run_id, k.row_no limit :most)
select i.run_id, i.row_no, i.updated_at, i.status, i.attempts, i.locked_by, i.locked_at, i.job_type, i.user_id,
       i.normalized_json ->> 'title' as title, i.normalized_json ->> 'brand' as brand, i.normalized_json ->> 'sku' as sku,
       f.name as job_name, r.status as run_status, r.paused_at is not null as paused, j.counts, j.counted_at,
       j.deleted_at is not null as gone
from keys k join job_items i on i.run_id = k.run_id and i.row_no = k.row_no and i.tenant_id = :tenant_id
join file_jobs j on j.run_id = i.run_id join files f on f.id = j.file_id join run r on r.id = i.run_id
order by k.updated_at, k.run_id, k.row_no
""")


# Whose rows: two statements, not one with a parameter that may be missing.
_MINE = "and i.user_id = :user_id"
PENDING_MINE, PENDING_OF_TENANT = _pending(_PENDING_KEYS, _MINE), _pending(_PENDING_KEYS, "")
PENDING_MINE_OF_JOB, PENDING_OF_JOB = _pending(_PENDING_OF_JOB, _MINE), _pending(_PENDING_OF_JOB, "")
PENDING_OF_ALL_TENANTS = sa.text("""
select * from pending_of_all_tenants(:subject, cast(:types as text[]), cast(:statuses as text[]), cast(:after_at as timestamptz),
    cast(:after_run as uuid), cast(:after_row as bigint), cast(:from_at as timestamptz), cast(:before_at as timestamptz),
    cast(:most as integer))
""")
MOST_COUNTED = 10_000


def _pending_count(mine: str) -> sa.TextClause:
    return sa.text(f"""
select coalesce(sum(k.n), 0)::bigint as n from {_TYPES_AND_STATUSES} cross join lateral (
    select count(*) as n from (
        select from job_items i
        where i.tenant_id = :tenant_id {mine} and i.job_type = y.job_type and i.status = s.status
          and i.status in ('PENDING', 'PROCESSING') limit {MOST_COUNTED + 1}) few) k
""")


COUNT_MINE, COUNT_OF_TENANT = _pending_count(_MINE), _pending_count("")
ITEM = sa.text(f"""
select i.row_no, i.status, i.attempts, i.permanent, i.locked_by, i.locked_at, i.updated_at, i.last_error, i.due_at, i.input_json as input,
       i.normalized_json as normalized, i.result_json as result, {HASH} as hash
from job_items i where i.run_id = :run_id and i.tenant_id = :tenant_id and i.row_no = cast(:row_no as bigint)
""")
SEARCHES = sa.text("""
select e.attempt, e.strategy, e.domain, e.status, e.ms, e.at from search_events e
where e.run_id = :run_id and e.tenant_id = :tenant_id and e.row_no = cast(:row_no as bigint) order by e.attempt, e.at limit 50
""")
LIST_EXPORTS = sa.text("""
select e.run_id as id, e.format, e.rows, e.created_by, e.created_at, e.taken_at, e.upto, e.written, e.files, e.finished_at,
       r.status, r.error, now() as now,
       (select l.cursor from lane l where l.run_id = e.run_id and l.key = 'export') as cursor,
       (select f.name from files f where f.id = j.file_id) as name
from row_exports e join run r on r.id = e.run_id join file_jobs j on j.run_id = e.job_id and j.deleted_at is null
where e.tenant_id = :tenant_id and e.job_id = :job_id and e.run_id = coalesce(cast(:export_id as uuid), e.run_id)
order by e.created_at desc limit :most
""")
LIST_FIXES = sa.text("""
select x.file_id, f.name, x.created_by, x.created_at, x.finished_at, x.fixed, x.unchanged, x.unmatched, x.examples
from row_fixes x join files f on f.id = x.file_id
where x.tenant_id = :tenant_id and x.run_id = :run_id order by x.created_at desc limit :most
""")
DECISIONS = sa.text("""
select d.domain, d.at, d.rate_before, d.rate_after, d.reason, d.seen from pace_decision d
where d.tenant_id = :tenant_id and d.account = :account order by d.at desc, d.window_no desc limit :most
""")
ACCOUNT = sa.text("""
select r.params from run r join file_jobs j on j.run_id = r.id and j.deleted_at is null
where r.id = :run_id and r.tenant_id = :tenant_id
""")
