"""Every SQL statement of row jobs. Those of steps select from `turn`."""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sa

from shared.kernel import direct
from shared.kernel.clock import stopwatch
from shared.kernel.model import Statement
from shared.row_job.model import UPLOADS
from shared.row_job.ports import OpenRows, Progress

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
             and i.row_no <= cast(:after as bigint) + jsonb_array_length(cast(:inputs as jsonb))) there
       cross join lateral (
           select cast(:after as bigint) + x.at as n, x.i, x.c, cast(:problems as jsonb) ->> x.at::text as p
           from (select generate_series(1, jsonb_array_length(cast(:inputs as jsonb))) as at,
                        jsonb_array_elements(cast(:inputs as jsonb)) as i,
                        jsonb_array_elements(cast(:normalized as jsonb)) as c) x) r
       where r.n > there.n""",
)
NOTE_READ = Statement(
    "row_job.read",
    """update file_jobs j set dialect = coalesce(cast(:dialect as jsonb), j.dialect),
              columns = coalesce(cast(:columns as jsonb), j.columns), read_bytes = cast(:read_bytes as bigint),
              read_rows = cast(:read_rows as bigint), batch_rows = cast(:batch_rows as integer),
              read_at = case when :done then now() else j.read_at end
       from turn t where j.run_id = t.run_id""",
)

# The work. A lane owns its slot while no elder lane of it is active, so a row that is at work without us was left by one that
# died: it is taken again, in the same order, and its attempt was counted when it was taken. What a tenant may have at work is
# shared by all its lanes.
CLAIM = Statement(
    "row_job.claim",
    """update job_items i set status = 'PROCESSING', attempts = i.attempts + 1, locked_by = cast(:holder as uuid), locked_at = now(),
              updated_at = now(),
              due_at = case when i.status = 'PENDING' then now() + cast(:lease_s as double precision) * interval '1 s' else i.due_at end
       from (select p.run_id, p.row_no from turn t
             join file_jobs j on j.run_id = t.run_id
             cross join lateral (
                 select i.run_id, i.row_no from job_items i
                 where i.run_id = t.run_id and i.slot = cast(:slot as smallint) and i.status in ('PENDING', 'PROCESSING')
                   and (i.due_at <= now() or i.status = 'PROCESSING') and (j.process_upto is null or i.row_no <= j.process_upto)
                 order by i.due_at, i.row_no
                 limit (select least(cast(:most as integer), greatest(1, cast(:tenant_most as integer) / greatest(1, count(*))))
                        from run r join lane l on l.run_id = r.id and l.status = 'active' and l.key like 'work:%'
                        where r.tenant_id = t.tenant_id and r.kind = t.kind and r.status in ('queued', 'running'))) p
             where not exists (
                 select from lane o where o.run_id = t.run_id and o.status = 'active' and o.key like 'work:' || cast(:slot as text) || ':%'
                   and split_part(o.key, ':', 3)::integer < cast(:gen as integer))) c
       where i.run_id = c.run_id and i.row_no = c.row_no
       returning i.row_no, i.attempts, i.normalized_json as normalized, i.last_error""",
    returns=True,
)
FINISH_ROWS = Statement(
    "row_job.finish",
    """update job_items i set status = r.status, attempts = r.attempts, result_json = coalesce(r.result, i.result_json),
              price = coalesce(r.price, i.price), last_error = r.message, permanent = r.permanent, locked_by = null,
              locked_at = null, updated_at = now(),
              due_at = now() + coalesce(r.again_s, 0) * interval '1 s'
       from turn t cross join jsonb_to_recordset(cast(:items as jsonb)) as r (row_no bigint, claimed integer, status text,
            attempts integer, result jsonb, price numeric, message text, permanent boolean, again_s double precision)
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

# What a person does to a job, under its run's lock. Only what has ended is worked on again.
RESET = Statement(
    "row_job.reset",
    """update job_items i set status = 'PENDING', attempts = case when :anew or :named then 0 else i.attempts end, locked_by = null,
              locked_at = null, updated_at = now(), due_at = now(), permanent = false
       where i.run_id = :run_id and i.tenant_id = :tenant_id and i.status = any(cast(:statuses as text[]))
         and (cast(:row_nos as bigint[]) is null or i.row_no = any(cast(:row_nos as bigint[])))
         and (:anew or :named or i.attempts < case i.status when 'NOT_FOUND' then cast(:most_not_found as integer)
              else cast(:most_error as integer) end)""",
)
COUNT_RESET = Statement(
    "row_job.count_reset",
    """select count(*) as count from job_items i
       where i.run_id = :run_id and i.tenant_id = :tenant_id and i.status = any(cast(:statuses as text[]))
         and (cast(:row_nos as bigint[]) is null or i.row_no = any(cast(:row_nos as bigint[])))
         and (:anew or :named or i.attempts < case i.status when 'NOT_FOUND' then cast(:most_not_found as integer)
              else cast(:most_error as integer) end)""",
)
OPEN_AMONG = Statement(
    "row_job.open_among",
    """select row_no, status from job_items where run_id = :run_id and tenant_id = :tenant_id
         and row_no = any(cast(:row_nos as bigint[])) and status in ('PENDING', 'PROCESSING') order by row_no limit 20""",
)
SLOTS = Statement(
    "row_job.slots",
    """select j.slots, j.deleted_at is not null as deleted,
              (select count(*) from lane l where l.run_id = j.run_id and l.key like 'work:%') as lanes
       from file_jobs j where j.run_id = :run_id and j.tenant_id = :tenant_id for update of j""",
)
PROMOTE = Statement(
    "row_job.promote",
    "update file_jobs set process_upto = null where run_id = :run_id and tenant_id = :tenant_id and process_upto is not null",
)
DELETE = Statement(
    "row_job.delete",
    "update file_jobs set deleted_at = now() where run_id = :run_id and tenant_id = :tenant_id and deleted_at is null",
)
# An account that refused its key is asked again when the connection was changed.
OPEN_ACCOUNT = Statement(
    "row_job.open_account",
    """update gate set state = 'open', holder = null, until = now(), reason = null, updated_at = now()
       where key = :key and tenant_id = :tenant_id""",
)
WAKE_ACCOUNT = Statement(
    "row_job.wake_account",
    """update lane set next_due_at = now(), resend_no = resend_no + 1, resends = 0, sent_at = null, check_at = now()
       where id in (
           select l.id from run r join lane l on l.run_id = r.id and l.status = 'active'
           where r.tenant_id = :tenant_id and r.kind = 'row_job' and r.status in ('queued', 'running') and r.paused_at is null
             and l.waits_for = 'gate:' || :key and l.next_due_at > now() and l.claim_token is null
           for update of l skip locked)""",
)
WAITING_LANES = Statement(
    "row_job.waiting",
    """select id from lane where run_id = :run_id and status = 'active' and claim_token is null and next_due_at > now()
         and (key like 'work:%' or key = 'ingest')""",
)
# How many rows are in which state. Counted, never added to; by one lane now and then, and when the job ends.
_COUNTED = """select count(*) as total, count(*) filter (where i.status = 'PENDING') as pending,
                  count(*) filter (where i.status = 'PROCESSING') as processing, count(*) filter (where i.status = 'DONE') as done,
                  count(*) filter (where i.status = 'ERROR') as errors, count(*) filter (where i.status = 'NOT_FOUND') as not_found,
                  count(*) filter (where i.status = 'SKIPPED') as skipped"""
_KEEP_COUNTS = """total_items = c.total, processed_items = c.done + c.errors + c.not_found + c.skipped,
              failed_items = c.errors + c.not_found, counts = to_jsonb(c), counted_at = now()"""
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

# Images, by their number in the file.
ADD_IMAGES = Statement(
    "row_job.images",
    """insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, normalized_json,
                              last_error, permanent, due_at, updated_at)
       select j.run_id, r.n, j.tenant_id, j.user_id, j.job_type, r.n % j.slots,
              case when r.p is null then 'PENDING' else 'SKIPPED' end, r.i, r.c, r.p, r.p is not null,
              timestamptz '2000-01-01 00:00+00', now()
       from turn t join file_jobs j on j.run_id = t.run_id
       cross join jsonb_to_recordset(cast(:items as jsonb)) as r (n bigint, i jsonb, c jsonb, p text)
       on conflict (run_id, row_no) do nothing""",
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

PROGRESS = sa.text("""
select f.id as file_id, f.name, f.version_id, f.size, j.dialect, j.columns, j.read_bytes, j.read_rows, j.read_at is not null as read_done
from file_jobs j join files f on f.id = j.file_id where j.run_id = :run_id and j.tenant_id = :tenant_id
""")
# A file that could not be read to its end brings no more rows either.
OPEN_ROWS = sa.text("""
select j.read_at is not null
       or not exists (select from lane l where l.run_id = j.run_id and l.key = 'ingest' and l.status = 'active') as read_done,
       (select extract(epoch from i.due_at - now())::double precision from job_items i
        where i.run_id = j.run_id and i.slot = cast(:slot as smallint) and i.status in ('PENDING', 'PROCESSING')
          and (j.process_upto is null or i.row_no <= j.process_upto)
        order by i.due_at, i.row_no limit 1) as next_due_s,
       j.process_upto is not null and exists (
           select from job_items i where i.run_id = j.run_id and i.slot = cast(:slot as smallint)
             and i.status in ('PENDING', 'PROCESSING') and i.row_no > j.process_upto) as held_back,
       exists (select from lane o where o.run_id = j.run_id and o.status = 'active' and o.key like 'work:' || cast(:slot as text) || ':%'
                 and split_part(o.key, ':', 3)::integer < cast(:gen as integer)) as elder
from file_jobs j where j.run_id = :run_id and j.tenant_id = :tenant_id
""")


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
            row = line.one(OPEN_ROWS, params)
        if row is None:
            return OpenRows(read_done=True, next_due_s=None, held_back=False, elder=False)
        return OpenRows(**row)


COUNTED_AT_ONCE = 20_000  # rows that are counted whenever somebody asks; of more, the last count is told with its age
# What the API asks. The tenant's walls hold it, and those of somebody who sees only his own.
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
# By the row's number, which never changes: no row comes twice and none is passed over while lanes work.
ITEMS = sa.text("""
select i.row_no, i.status, i.attempts, i.last_error, i.permanent, i.result_json as result, i.price::text as price,
       i.locked_at, i.updated_at, i.normalized_json ->> 'title' as title, i.normalized_json ->> 'brand' as brand,
       i.normalized_json ->> 'sku' as sku
from job_items i join file_jobs j on j.run_id = i.run_id and j.deleted_at is null
where i.run_id = :run_id and i.tenant_id = :tenant_id and i.row_no > cast(:after as bigint)
  and (cast(:statuses as text[]) is null or i.status = any(cast(:statuses as text[])))
order by i.row_no limit :most
""")
DECISIONS = sa.text("""
select d.domain, d.at, d.rate_before, d.rate_after, d.reason, d.seen from pace_decision d
where d.tenant_id = :tenant_id and d.account = :account order by d.at desc, d.window_no desc limit :most
""")
ACCOUNT = sa.text("""
select r.params from run r join file_jobs j on j.run_id = r.id and j.deleted_at is null
where r.id = :run_id and r.tenant_id = :tenant_id
""")
