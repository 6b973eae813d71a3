"""The SQL of folder sync. What a step writes selects from `turn`: a step that lost its turn writes nothing. What it writes of a page
selects from KEEP, which is the first effect of its commit: a run that lost its folder writes nothing either."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from shared.folder_sync.model import Entry, FolderCursor
from shared.kernel.model import Effect, Statement

# One run of a folder at a time: nothing comes back if another has it.
TAKE = Statement(
    "folder.take",
    """insert into folder as f (tenant_id, connection, path, run_id) values (:tenant_id, cast(:connection as uuid), :path, :run_id)
       on conflict (tenant_id, connection, path) do update set run_id = excluded.run_id where f.run_id is null""",
)
FIND = Statement(
    "folder.find",
    """select run_id, cursor, generation, listing from folder
       where tenant_id = :tenant_id and connection = cast(:connection as uuid) and path = :path""",
)
# A run of the folder that has not asked the provider yet: it will see all that has happened by now.
UNREAD = Statement(
    "folder.unread",
    """select r.id as run_id from run r join lane l on l.run_id = r.id
       where r.tenant_id = :tenant_id and r.kind = :kind and r.status in ('queued', 'running')
         and r.params ->> 'connection' = cast(:connection as text) and r.params ->> 'path' = :path
         and l.status = 'active' and l.steps = 0 and l.claim_token is null and l.cancel_at is null
       order by r.created_at, r.id limit 1""",
)
# A run that is retried, or follows another, takes its folder if no other has it, and goes on where that one has come to. One that
# has ended has it no more, also if its `on_end` never succeeded. (Only a step can tell: whoever starts a run may not see the others.)
RETAKE = Statement(
    "folder.retake",
    """update folder f set run_id = turn.run_id from turn
       where f.tenant_id = turn.tenant_id and f.connection = cast(:connection as uuid) and f.path = :path
         and (f.run_id is null or f.run_id = turn.run_id
              or not exists (select from run r where r.id = f.run_id and r.status in ('queued', 'running')))
       returning f.cursor, f.generation, f.listing""",
    returns=True,
)
# Two runs may take a folder at the same moment, if one of them is retried just then: the other still sees it ended. The last one has it.
HOLDS = Statement(
    "folder.holds",
    """select f.run_id from turn join folder f
       on f.tenant_id = turn.tenant_id and f.connection = cast(:connection as uuid) and f.path = :path and f.run_id = turn.run_id""",
    returns=True,
)
# By its run alone: beside it, an index that begins with the tenant would be read for all of the tenant's folders.
LEAVE = Statement(
    "folder.leave", "update folder set run_id = null where run_id = :run_id and (tenant_id = :tenant_id) is true"
)

KEEP = Statement(
    "folder.keep",
    """update folder f set cursor = cast(:at as text), generation = cast(:generation as integer), listing = cast(:listing as boolean),
              synced_at = case when cast(:done as boolean) then now() else f.synced_at end
       from turn
       where f.tenant_id = turn.tenant_id and f.connection = cast(:connection as uuid) and f.path = :path and f.run_id = turn.run_id
       returning f.tenant_id""",
)
_THIS = "tenant_id = kept.tenant_id and {0}.connection = cast(:connection as uuid) and {0}.path = :path"
REMOVE = Statement(
    "folder.remove",
    f"""delete from folder_entry e using effect_0 kept, jsonb_array_elements_text(cast(:gone as jsonb)) as g (name)
       where e.{_THIS.format("e")} and (e.name = g.name or starts_with(e.name, g.name || '/'))
         and e.name <> all(array(select i ->> 0 from jsonb_array_elements(cast(:there as jsonb)) i))""",  # noqa: S608 - our own words
)
# A file where a folder was: all that was in the folder is gone, and nothing else says so.
REMOVE_BELOW = Statement(
    "folder.remove_below",
    f"""delete from folder_entry e using effect_0 kept, folder_entry o, jsonb_array_elements(cast(:there as jsonb)) as i
       where e.{_THIS.format("e")} and o.{_THIS.format("o")} and o.is_folder and o.name = i ->> 0
         and not (i ->> 1)::boolean and starts_with(e.name, o.name || '/')
         and e.name <> all(array(select j ->> 0 from jsonb_array_elements(cast(:there as jsonb)) j))""",  # noqa: S608 - our own words
)
PUT = Statement(
    "folder.put",
    """insert into folder_entry (tenant_id, connection, path, name, is_folder, file_id, rev, size, hash, generation, seen_at)
       select kept.tenant_id, cast(:connection as uuid), :path, i ->> 0, (i ->> 1)::boolean, i ->> 2, i ->> 3, (i ->> 4)::bigint,
              i ->> 5, cast(:generation as integer), now()
       from effect_0 kept, jsonb_array_elements(cast(:there as jsonb)) as i
       order by 4
       on conflict (tenant_id, connection, path, name) do update
       set is_folder = excluded.is_folder, file_id = excluded.file_id, rev = excluded.rev, size = excluded.size,
           hash = excluded.hash, generation = excluded.generation, seen_at = excluded.seen_at""",
)
# Everything was listed: what an older listing knew, and this one did not find, is not there any more.
FORGET_OLD = Statement(
    "folder.forget_old",
    f"""delete from folder_entry e using effect_0 kept
       where e.{_THIS.format("e")} and e.generation < cast(:generation as integer)
         and e.name <> all(array(select i ->> 0 from jsonb_array_elements(cast(:there as jsonb)) i))""",  # noqa: S608 - our own words
)


def kept(before: FolderCursor, after: FolderCursor, entries: Sequence[Entry], *, done: bool) -> list[Effect]:
    """A page and its place, in one commit."""
    there = [
        [each.path, each.tag == "folder", each.id, each.rev, each.size, each.hash]
        for each in entries if each.tag != "deleted"
    ]  # fmt: skip
    told = {
        "connection": after.connection, "path": after.path, "at": after.at, "generation": after.generation,
        "listing": after.listing, "done": done, "there": orjson.dumps(there).decode(),
        "gone": orjson.dumps([each.path for each in entries if each.tag == "deleted"]).decode(),
    }  # fmt: skip
    effects = [Effect(KEEP, told), Effect(PUT), Effect(REMOVE), Effect(REMOVE_BELOW)]
    return [*effects, Effect(FORGET_OLD)] if before.listing and not after.listing else effects


def restarted(cursor: FolderCursor) -> list[Effect]:
    told = {
        "connection": cursor.connection, "path": cursor.path, "at": None, "generation": cursor.generation, "listing": True,
        "done": False,
    }  # fmt: skip
    return [Effect(KEEP, told)]
