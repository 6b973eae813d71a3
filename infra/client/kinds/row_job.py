"""`baton rows`: upload a table, watch its rows being worked on, take them home, and work on some of them again."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3

from infra.client import show
from infra.client.command import (
    Commands,
    client_of,
    command,
    created,
    group,
    pair,
    short,
    tell,
    watched,
    with_id,
    with_limit,
)  # fmt: skip
from infra.client.http import SECONDS, Client, Refusal
from infra.client.ids import an_id

CHUNK = 1 << 20
ARRIVES_WITHIN = 60  # looks


def add_commands(commands: Commands) -> None:
    below = group(commands, "rows", "work on every row of a file")
    made = command(below, "upload", upload, "upload a CSV or XLSX file or images, and work on every row or image")
    made.add_argument("file", type=Path, help="the file")
    made.add_argument("--connection", help="the product search account to use: a connection's name or ID")
    made.add_argument("--map", dest="mapping", metavar="FIELD=COLUMN", type=pair, action="append", default=[],
                      help="which column holds the title, brand or sku")  # fmt: skip
    made.add_argument(
        "--retailer",
        dest="retailers",
        metavar="DOMAIN",
        action="append",
        default=[],
        help="the shop to look in first; may be repeated",
    )
    made.add_argument(
        "--canary", type=int, metavar="ROWS", help="process this many rows, then wait until you promote the job"
    )
    made.add_argument("--preview", action="store_true", help="only show how the file is read")
    made.add_argument("--watch", action="store_true", help="show progress until it ends")
    looked = command(below, "scan", scan, "look for new files in S3, FTP or a folder, and start their jobs")
    looked.add_argument("source", choices=["s3", "ftp", "folder"], help="where to look")
    looked.add_argument("--server", help="the FTP server: a connection's name or ID")
    looked.add_argument("--connection", help="the product search account for the jobs")
    looked.add_argument("--watch", action="store_true", help="show progress until it ends")
    with_id(command(below, "show", summary, "show a row job"))
    listed = with_limit(with_id(command(below, "items", items, "list the rows of a job")))
    listed.add_argument("--status", dest="statuses", action="append", help="only rows in this state")
    listed.add_argument(
        "--sort",
        choices=["row_no", "updated_at", "-updated_at"],
        help="the order; row_no can't be combined with --status",
    )
    waiting = with_limit(
        command(below, "pending", pending, "list the rows of all jobs that wait or are being worked on")
    )
    waiting.add_argument("--status", dest="statuses", action="append", help="PENDING or PROCESSING")
    waiting.add_argument("--job", dest="id", type=an_id, help="only rows of this job: its ID, or its first characters")
    waiting.set_defaults(id_of="run")
    waiting.add_argument(
        "--type", dest="job_type", choices=["csv", "image"], help="only rows of CSV jobs or of image jobs"
    )
    waiting.add_argument("--all", action="store_true", help="rows of everyone in the tenant (admins)")
    taken = with_id(command(below, "export", export, "write the rows of a job to a file and download it"))
    taken.add_argument("--format", choices=["csv", "xlsx"], default="csv", help="what kind of file")
    taken.add_argument("--failed", action="store_true", help="only rows that failed, with what was wrong, to be fixed")
    taken.add_argument("--out", type=Path, default=Path(), help="the folder to put it in")
    back = with_id(command(below, "resubmit", resubmit, "upload failed rows that you have fixed"))
    back.add_argument("file", type=Path, help="the downloaded file of failed rows, changed: CSV or XLSX")
    back.add_argument("--watch", action="store_true", help="show progress until it ends")
    mended = with_id(command(below, "fix", fix, "change cells of a row that failed, and work on it again"))
    mended.add_argument("row", type=int, help="the row's number in the file")
    mended.add_argument("--set", dest="cells", metavar="COLUMN=VALUE", type=pair, action="append", required=True,
                        help="a column and its new value; may be repeated")  # fmt: skip
    with_id(command(below, "watch", watch, "show the progress of a row job until it ends"))
    for name, text in (
        ("pause", "pause a row job"),
        ("resume", "resume a row job"),
        ("promote", "process all rows after a canary"),
    ):
        acted = with_id(command(below, name, act, text))
        acted.set_defaults(action=name)
    again = with_id(command(below, "reprocess", reprocess, "process failed rows again"))
    again.add_argument("--row", dest="rows", type=int, action="append", help="this row, whatever became of it")
    again.add_argument("--permanent", action="store_true", help="also rows that were refused for what is in them")
    again.add_argument("--dry-run", action="store_true", help="only count them")
    with_id(command(below, "delete", delete, "delete a row job that has ended"))


def _file(options: argparse.Namespace) -> Path:
    file = Path(options.file)
    if not file.is_file():
        raise Refusal(f"{file} is not a file")
    if file.stat().st_size == 0:
        raise Refusal(f"{file} is empty")
    return file


def upload(options: argparse.Namespace) -> int:
    client, file = client_of(options), _file(options)
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
        return watched(client, made["id"], as_json=options.json)
    created(options, made, f"Started. Follow it with `baton watch {short(made['id'])}`.")
    return 0


def scan(options: argparse.Namespace) -> int:
    client = client_of(options)
    asked = {"source": options.source, "server": options.server, "connection": options.connection}
    made = client.post("/ingestion/scan", {name: value for name, value in asked.items() if value})
    if options.watch:
        return watched(client, made["id"], as_json=options.json)
    created(options, made, f"Started. Follow it with `baton watch {short(made['id'])}`.")
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
    host = urlsplit(place["url"]).hostname
    try:
        answer = urllib3.PoolManager(retries=False).request(
            "POST", place["url"], body=body(), headers=headers, timeout=SECONDS, redirect=False
        )
    except urllib3.exceptions.HTTPError as error:
        raise Refusal(f"{host} didn't take the file ({type(error).__name__})") from None
    except OSError as error:
        raise Refusal(f"{file} can't be read: {error.strerror}") from None
    if answer.status >= 300:
        raise Refusal(f"{host} didn't take the file ({answer.status})")


def _arrived(client: Client, file_id: str) -> Any:
    """The preview of a file, once its arrival is known."""
    _wait_for(client, file_id)
    return client.get(f"/row-jobs/uploads/{file_id}/preview")


def _wait_for(client: Client, file_id: str) -> None:
    for _ in range(ARRIVES_WITHIN):
        if client.get(f"/row-jobs/uploads/{file_id}")["arrived"]:
            return
        show.pause()
    raise Refusal("the file was uploaded, but its arrival isn't known yet; try again in a minute")


def _preview(found: Mapping[str, Any]) -> None:
    how = "first sheet" if found["encoding"] == "xlsx" else f"{found['encoding']}, delimiter {found['delimiter']!r}"
    print(f"{how}, {len(found['columns'])} columns")
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
    query = {"statuses": ",".join(options.statuses)} if options.statuses else {}
    query["sort"] = options.sort or ("updated_at" if options.statuses else "row_no")
    found = client_of(options).listing(f"/row-jobs/{options.id}/items", "items", options.limit, **query)
    columns = ("row_no", "status", "attempts", "title", "last_error")
    tell(options, found, lambda told: show.table(_flat(told["items"]), *columns))


def pending(options: argparse.Namespace) -> None:
    client = client_of(options)
    asked = {"job_id": options.id, "job_type": options.job_type, "user_id": "all" if options.all else "me"}
    asked["statuses"] = ",".join(options.statuses) if options.statuses else None
    query = {name: value for name, value in asked.items() if value}
    found = client.listing("/pending", "items", options.limit, **query)
    columns = ("job_name", "row_no", "status", "attempts", "title", "updated_at")
    tell(options, found, lambda told: show.table(_flat(told["items"]), *columns))


def _flat(found: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, **row["input_summary"]} for row in found]


def export(options: argparse.Namespace) -> None:
    client, which = client_of(options), "failed" if options.failed else "all"
    if not options.out.is_dir():  # before anybody waits for it
        raise Refusal(f"--out: {options.out} is not a folder")
    made = client.post(f"/row-jobs/{options.id}/export?format={options.format}&rows={which}", {})
    while (told := client.get(f"/row-jobs/{options.id}/exports/{made['id']}"))["status"] == "preparing":
        show.pause()
    if told["status"] != "ready":
        raise Refusal((told["error"] or {}).get("message") or f"the export is {told['status']}")
    kept = [
        {"file": str(_download(each["url"], options.out / each["name"])), "rows": each["rows"]}
        for each in told["files"]
    ]
    tell(options, kept, lambda found: show.table(found, "file", "rows"))


def _download(url: str, file: Path) -> Path:
    """To a name that was free: nothing is written over. It has that name when it is whole."""
    stem, number = file.stem, 1
    while file.exists():
        number += 1
        file = file.with_name(f"{stem}-{number}{file.suffix}")
    part, host = file.with_name(f"{file.name}.part"), urlsplit(url).hostname
    try:
        with part.open("wb") as opened:
            answer = urllib3.PoolManager(retries=False).request(
                "GET", url, preload_content=False, timeout=SECONDS, redirect=False
            )
            if answer.status != 200:
                raise Refusal(f"{host} didn't give the file ({answer.status})")
            for chunk in answer.stream(CHUNK):
                opened.write(chunk)
        part.rename(file)
    except urllib3.exceptions.HTTPError as error:
        raise Refusal(f"{host} didn't give the file ({type(error).__name__})") from None
    except OSError as error:
        raise Refusal(f"{file} can't be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return file


def resubmit(options: argparse.Namespace) -> int:
    client, file = client_of(options), _file(options)
    asked = {"name": file.name[:200], "size": file.stat().st_size, "hold": True, "job_type": "csv"}
    place = client.post("/row-jobs/uploads", asked)
    _send(place, file)
    _wait_for(client, place["file_id"])
    client.post(f"/row-jobs/{options.id}/resubmit", {"file_id": place["file_id"]})
    while True:
        # Asked before the look: by the job's end the file is read.
        has_ended = client.get(f"/runs/{options.id}")["status"] in show.ENDED
        (told,) = [
            each for each in client.get(f"/row-jobs/{options.id}/fixes")["fixes"] if each["file_id"] == place["file_id"]
        ]
        if told["finished_at"] is not None:
            break
        if has_ended:
            raise Refusal("the job ended before the file was read. Retry it, or resubmit the file")
        show.pause()
    if options.watch and options.json:  # one answer, not two
        return watched(client, options.id, as_json=True)
    tell(options, told, _fixed)
    return watched(client, options.id) if options.watch else 0


def _fixed(told: Mapping[str, Any]) -> None:
    print(
        f"{_rows(told['fixed'])} will be worked on again, {told['unchanged']:,} weren't changed, {told['unmatched']:,} didn't match."
    )
    for each in told["examples"][:20]:
        print(f"  row {each['row']}: {each['message']}")


def fix(options: argparse.Namespace) -> None:
    client, at = client_of(options), f"/row-jobs/{options.id}"
    held = client.get(f"{at}/items/{options.row}")
    changed = {"row_no": options.row, "hash": held["hash"], "input": dict(options.cells)}
    told = client.post(f"{at}/fix", {"rows": [changed]})
    if told["unmatched"]:
        raise Refusal(f"row {options.row}: {told['unmatched'][0]['message']}")
    words = "The row will be worked on again." if told["fixed"] else "Nothing was changed."
    tell(options, told, lambda _: print(words))


def watch(options: argparse.Namespace) -> int:
    return watched(client_of(options), options.id, as_json=options.json)


def act(options: argparse.Namespace) -> None:
    done = client_of(options).post(f"/row-jobs/{options.id}/{options.action}", {})
    tell(
        options,
        done,
        lambda _: print({"pause": "Paused.", "resume": "Resumed.", "promote": "Promoted."}[options.action]),
    )


def reprocess(options: argparse.Namespace) -> None:
    named = {"scope": "items", "item_ids": options.rows} if options.rows else {"scope": "job"}
    permanent = {"permanent": True} if options.permanent else {}
    body = {**named, **permanent, "dry_run": options.dry_run}
    done = client_of(options).post(f"/row-jobs/{options.id}/reprocess", body)
    what = "would be worked on again" if options.dry_run else "will be worked on again"
    tell(options, done, lambda told: print(f"{_rows(told['rows'])} {what}."))


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def delete(options: argparse.Namespace) -> None:
    tell(options, client_of(options).delete(f"/row-jobs/{options.id}"), lambda _: print("Deleted."))


def progress(client: Client, run: Mapping[str, Any]) -> show.Bars:
    """What `baton watch` shows below the run's own bar."""
    if {"scan", "export"} & set(run.get("params", {})):
        return show.Bars([], "")
    job = client.get(f"/row-jobs/{run['id']}")
    state = "done" if job["read_done"] else "active"
    read = show.Bar("File read", job["read_bytes"], job["size"], state)
    ended = "done" if job["queue_state"] == "DONE" else "active"
    worked = show.Bar("Rows", job["processed_items"], job["total_items"] or None, ended)
    return show.Bars([read, worked], f"{job['done']:,} found, {job['not_found']:,} not found, {job['errors']:,} failed")
