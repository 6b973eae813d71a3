"""`baton rows`: upload a CSV file, watch its rows being worked on, and work on some of them again."""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3

from infra.client import show
from infra.client.command import Commands, client_of, command, group, pair, tell, watched, with_id, with_limit
from infra.client.http import Client, Refusal

CHUNK = 1 << 20
ARRIVES_WITHIN = 60  # looks


def add_commands(commands: Commands) -> None:
    below = group(commands, "rows", "work on every row of a file")
    made = command(below, "upload", upload, "upload a CSV file and work on its rows")
    made.add_argument("file", type=Path, help="the file")
    made.add_argument("--connection", help="the product search account to use: a connection's name or ID")
    made.add_argument("--map", dest="mapping", metavar="FIELD=COLUMN", type=pair, action="append", default=[],
                      help="which column holds the title, brand or sku")  # fmt: skip
    made.add_argument("--retailer", dest="retailers", action="append", default=[], help="where to look first")
    made.add_argument("--canary", type=int, help="work on so many rows and wait to be promoted")
    made.add_argument("--preview", action="store_true", help="only show how the file is read")
    made.add_argument("--watch", action="store_true", help="show progress until it ends")
    looked = command(below, "scan", scan, "look where files wait, and take those that are whole")
    looked.add_argument("source", choices=["s3", "ftp", "folder"], help="where to look")
    looked.add_argument("--server", help="the FTP server: a connection's name or ID")
    looked.add_argument("--connection", help="the product search account for the jobs")
    looked.add_argument("--watch", action="store_true", help="show progress until it ends")
    with_id(command(below, "show", summary, "show a row job"))
    listed = with_limit(with_id(command(below, "items", items, "list the rows of a job")))
    listed.add_argument("--status", dest="statuses", action="append", help="only rows in this state")
    with_id(command(below, "watch", watch, "show the progress of a row job until it ends"))
    for name in ("pause", "resume", "promote"):
        acted = with_id(command(below, name, act, f"{name} a row job"))
        acted.set_defaults(action=name)
    again = with_id(command(below, "reprocess", reprocess, "work on rows again that failed"))
    again.add_argument("--row", dest="rows", type=int, action="append", help="this row, whatever became of it")
    again.add_argument("--reset-attempts", action="store_true", help="also rows that have no attempts left")
    again.add_argument("--dry-run", action="store_true", help="only count them")
    with_id(command(below, "delete", delete, "delete a row job that has ended"))


def upload(options: argparse.Namespace) -> int:
    client, file = client_of(options), Path(options.file)
    if not file.is_file():
        raise Refusal(f"{file} is not a file")
    chosen = {"connection": options.connection, "canary": options.canary, "mapping": dict(options.mapping) or None}
    asked = {"name": file.name[:200], "size": file.stat().st_size, "retailers": options.retailers, "hold": True}
    place = client.post("/row-jobs/uploads", {**asked, **{name: value for name, value in chosen.items() if value}})
    _send(place, file)
    if options.preview:
        tell(options, _arrived(client, place["file_id"]), _preview)
        return 0
    _arrived(client, place["file_id"])
    params = {"file_id": place["file_id"], "retailers": options.retailers}
    made = client.post("/row-jobs", {**params, **{name: value for name, value in chosen.items() if value}})
    if options.watch:
        return watched(client, made["id"])
    print(json.dumps(made) if options.json else made["id"])
    return 0


def scan(options: argparse.Namespace) -> int:
    client = client_of(options)
    asked = {"source": options.source, "server": options.server, "connection": options.connection}
    made = client.post("/ingestion/scan", {name: value for name, value in asked.items() if value})
    if options.watch:
        return watched(client, made["id"])
    print(json.dumps(made) if options.json else made["id"])
    return 0


def _send(place: Mapping[str, Any], file: Path) -> None:
    """A form as a browser sends it, the file last and never whole in memory."""
    line = f"----baton{uuid.uuid1().hex}"
    fields = "".join(
        f'--{line}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in place["fields"].items()
    )
    head = f'{fields}--{line}\r\nContent-Disposition: form-data; name="file"; filename="rows.csv"\r\n\r\n'.encode()
    tail = f"\r\n--{line}--\r\n".encode()

    def body() -> Iterator[bytes]:
        yield head
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK):
                yield chunk
        yield tail

    size = len(head) + file.stat().st_size + len(tail)
    headers = {"content-type": f"multipart/form-data; boundary={line}", "content-length": str(size)}
    answer = urllib3.PoolManager(retries=False).request("POST", place["url"], body=body(), headers=headers)
    if answer.status >= 300:
        raise Refusal(f"{urlsplit(place['url']).hostname} didn't take the file ({answer.status})")


def _arrived(client: Client, file_id: str) -> Any:
    """The preview of a file, once its arrival is known."""
    for _ in range(ARRIVES_WITHIN):
        try:
            return client.get(f"/row-jobs/uploads/{file_id}/preview")
        except Refusal as error:
            if error.problem.get("code") != "not_uploaded":
                raise
        show.pause()
    raise Refusal("the file was uploaded, but its arrival isn't known yet; try again in a minute")


def _preview(found: Mapping[str, Any]) -> None:
    print(f"{found['encoding']}, delimiter {found['delimiter']!r}, {len(found['columns'])} columns")
    for field, column in found["mapping"].items():
        print(f"  {field}: {column}")
    rows = [
        {**(row["normalized"] or {}), "row": row["row_no"], "problem": row["problem"]} for row in found["rows"][:20]
    ]
    show.table(
        [{"title": "", "brand": "", "sku": "", **row} for row in rows], "row", "title", "brand", "sku", "problem"
    )


def summary(options: argparse.Namespace) -> None:
    tell(options, client_of(options).get(f"/row-jobs/{options.id}"), show.facts)


def items(options: argparse.Namespace) -> None:
    query = {"statuses": options.statuses} if options.statuses else {}
    rows = list(client_of(options).pages(f"/row-jobs/{options.id}/items", "items", options.limit, **query))
    tell(options, rows, lambda found: show.table(found, "row_no", "status", "attempts", "title", "price", "last_error"))


def watch(options: argparse.Namespace) -> int:
    return watched(client_of(options), options.id)


def act(options: argparse.Namespace) -> None:
    done = client_of(options).post(f"/row-jobs/{options.id}/{options.action}", {})
    tell(
        options,
        done,
        lambda _: print({"pause": "Paused.", "resume": "Resumed.", "promote": "Promoted."}[options.action]),
    )


def reprocess(options: argparse.Namespace) -> None:
    named = {"scope": "items", "itemIds": options.rows} if options.rows else {"scope": "job"}
    body = {**named, "reset_attempts": options.reset_attempts, "dry_run": options.dry_run}
    done = client_of(options).post(f"/row-jobs/{options.id}/reprocess", body)
    what = "would be worked on again" if options.dry_run else "will be worked on again"
    tell(options, done, lambda told: print(f"{told['rows']:,} rows {what}."))


def delete(options: argparse.Namespace) -> None:
    tell(options, client_of(options).delete(f"/row-jobs/{options.id}"), lambda _: print("Deleted."))


def progress(client: Client, run: Mapping[str, Any]) -> show.Bars:
    """What `baton watch` shows below the run's own bar."""
    if "scan" in run.get("params", {}):
        return show.Bars([], "")
    job = client.get(f"/row-jobs/{run['id']}")
    state = "done" if job["read_done"] else "active"
    read = show.Bar("File read", job["read_bytes"], job["size"], state)
    ended = "done" if job["queue_state"] == "DONE" else "active"
    worked = show.Bar("Rows", job["processed_items"], job["total_items"] or None, ended)
    return show.Bars([read, worked], f"{job['done']:,} found, {job['not_found']:,} not found, {job['errors']:,} failed")
