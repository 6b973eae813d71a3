"""`baton source`: write, check and try a source file on this machine; run what is deployed, and see what it claims."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.client import show
from infra.client.command import Commands, client_of, command, group, pair, started, starting, tell, with_id
from infra.client.http import Refusal

if TYPE_CHECKING:
    from shared.page_ingest.source.compile import Compiled


def add_commands(commands: Commands) -> None:
    below = group(commands, "source", "read paginated APIs, each described by a file")
    made = command(below, "check", check, "check a source file, and show how much a run of it could prove", api=False)
    made.add_argument("file", metavar="FILE", help="a TOML file, or - for standard input")
    made.add_argument("--tighten", action="append", default=[], metavar="KEY=VALUE",
                      help="as for a tenant that has pace, RESOURCE.size or RESOURCE.window made tighter; may be repeated")  # fmt: skip
    made = command(below, "new", new, "write a first source file from a few questions", api=False)
    made.add_argument("file", metavar="FILE", help="the file to create; an existing one is left alone")
    made = command(
        below, "migration", migration, "write the migration that makes a source's tables, to be reviewed", api=False
    )
    made.add_argument("file", metavar="FILE")
    made.add_argument("--again", action="store_true", help="the tables are there; only add the columns that they lack")
    made.add_argument(
        "--versions",
        default="infra/migrations/versions",
        metavar="FOLDER",
        help="where migrations are (default: %(default)s)",
    )
    _trying(command(below, "try", try_out, "read three pages as a run would; nothing is written", api=False))
    _trying(
        command(
            below, "estimate", estimate, "say how many partitions, requests and minutes a run would take", api=False
        )
    )
    command(below, "list", listed, "list the deployed sources with what they can prove")
    made = command(below, "run", run, "start a run of a deployed source")
    made.add_argument("source", metavar="SOURCE")
    made.add_argument(
        "--resource", action="append", metavar="NAME", help="only this list, and its parents; may be repeated"
    )
    made.add_argument("--connection", help="the account to use: a connection's name or ID")
    made.add_argument(
        "--from", dest="begin", metavar="TIME", help="the first day or time of lists that are read in windows"
    )
    made.add_argument("--to", metavar="TIME", help="where they end (default: now)")
    made.add_argument("--full", action="store_true", help="every row, not only what changed since the last run")
    made.add_argument("--replay", action="store_true", help="try the rows of the quarantine again; nothing is asked")
    made.add_argument(
        "--tighten", action="append", default=[], metavar="KEY=VALUE", help="pace, RESOURCE.size or RESOURCE.window"
    )
    starting(made)
    with_id(command(below, "show", shown, "show what a run of a source has read and claims"))
    made = command(below, "quarantine", quarantine, "list rows that do not fit their columns")
    made.add_argument("source", metavar="SOURCE")


def _trying(made: argparse.ArgumentParser) -> None:
    made.add_argument("file", metavar="FILE")
    made.add_argument("--resource", metavar="NAME", help="default: the first; for an estimate: all")
    made.add_argument(
        "--from", dest="begin", metavar="TIME", help="the first day or time of lists that are read in windows"
    )
    made.add_argument("--to", metavar="TIME", help="where they end (default: now)")
    made.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE", help="a setting of the file; may be repeated"
    )
    made.add_argument(
        "--secret", metavar="FILE", help="a JSON file with the fields of the secret; - for standard input"
    )
    made.add_argument("--standin", metavar="URL", help="a server on this machine that plays the hosts of the file")


# --- check ------------------------------------------------------------------------------------------------------------


def check(options: argparse.Namespace) -> int:
    """0: the file is a source; 1: it is not, and each line says where and why."""
    file = "stdin" if options.file == "-" else options.file
    return _judge(options, file, _read(options.file))


def _judge(options: argparse.Namespace, file: str, data: bytes) -> int:
    from shared.page_ingest.source import compile as compiler  # noqa: PLC0415 - only these commands need it
    from shared.page_ingest.source import model, tighten  # noqa: PLC0415 - as above

    try:
        known = compiler.compile_source(file, data)
        wishes = {name: _value(text) for name, text in map(pair, getattr(options, "tighten", []))}
        if wishes:
            known = compiler.compiled(tighten.tightened(known.source, wishes), known.digest)
    except tighten.Widened as error:
        raise Refusal(f"--tighten: {error}") from None
    except model.Refused as refused:
        if options.json:
            faults = [{"file": f.file, "line": f.line, "key": f.key, "message": f.message} for f in refused.faults]
            print(json.dumps({"file": file, "faults": faults}))
        else:
            print(refused)
        return 1
    print(json.dumps({"file": file, "faults": [], **known.to_json()})) if options.json else _show(file, known)
    return 0


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise Refusal(f"{file} cannot be read: {error.strerror}") from None


def _value(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _show(file: str, known: Compiled) -> None:
    print(f"{file}: source {known.source.name}, {known.digest}")
    for each in known.resources:
        print(f"\n{each.resource.name} (table {each.table})")
        print(f"  best claim   {each.best.claim}: {each.best.reason}.")
        if each.best.better:
            print(f"               {each.best.better}")
        for phase in each.phases:
            print(f"  {phase.name:<12} {phase.does}.")


# --- new --------------------------------------------------------------------------------------------------------------


def new(options: argparse.Namespace) -> int:
    from shared.page_ingest.source import draft  # noqa: PLC0415 - only this command needs it

    file = Path(options.file)
    if file.exists():
        raise Refusal(f"{file} exists. Choose another name, or delete it first")
    answers: dict[str, str] = {}
    while (question := next(draft.questions(answers, file.stem.replace("-", "_")), None)) is not None:
        answers[question.name] = _ask(question)
    text = draft.draft(answers)
    if not options.json:
        print(f"\n{text}", flush=True)
    judged = _judge(options, str(file), text.encode())
    if judged != 0:
        raise Refusal("these answers do not make a source together, so no file was written")
    try:
        with file.open("x", encoding="utf-8") as made:
            made.write(text)
    except OSError as error:
        raise Refusal(f"{file} cannot be written: {error.strerror}") from None
    return 0


def _ask(question: Any) -> str:
    """Again until the answer can be used. Questions go to standard error, so that --json stays JSON."""
    while True:
        hint = f" [{question.default}]" if question.default else ""
        print(f"{question.text}{hint}: ", end="", file=sys.stderr, flush=True)
        said = sys.stdin.readline()
        if not said:
            raise Refusal("the questions were not answered to the end, so no file was written")
        try:
            return str(question.read(said))
        except ValueError as wrong:
            print(f"  This {wrong}", file=sys.stderr)


# --- the migration ----------------------------------------------------------------------------------------------------


def migration(options: argparse.Namespace) -> int:
    from shared.page_ingest.source import migration as writer  # noqa: PLC0415 - only this command needs it

    known = _compiled(options)
    versions = Path(options.versions)
    names = sorted(path.stem for path in versions.glob("[0-9][0-9][0-9][0-9]_*.py"))
    if not names:
        raise Refusal(f"{versions} has no migrations. Run this in the repository, or name the folder with --versions")
    before = names[-1][:4]
    number = f"{int(before) + 1:04d}"
    file = versions / f"{number}_source_{known.source.name}{'_columns' if options.again else ''}.py"
    text = writer.migration(known, number, before, again=options.again)
    if any(name[5:] == file.stem[5:] for name in names) and not options.again:
        raise Refusal(f"the tables of {known.source.name} have a migration. Use --again to add columns")
    file.write_text(text, encoding="utf-8")
    told = f"{file}\nReview it, set Head of Schema in template.yaml to '{number}', and deploy."
    print(json.dumps({"file": str(file), "revision": number}) if options.json else told)
    return 0


# --- try and estimate -------------------------------------------------------------------------------------------------


def try_out(options: argparse.Namespace) -> int:
    from shared.kernel.clock import process_time  # noqa: PLC0415 - only these commands need it
    from shared.page_ingest.reader import tryout  # noqa: PLC0415 - as above

    known = _compiled(options)
    found = _asking(
        options, known,
        lambda client: tryout.try_out(client, known, options.resource, options.begin, options.to, process_time()),
    )  # fmt: skip
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{found['resource']}: {found['claim']} at best, because {found['reason']}.")
    if found["partition"]:
        print(f"Partition: {show.cell(found['partition'])}")
    pages = ", ".join(str(page["rows"]) for page in found["pages"])
    ended = "The list ended there." if found["ended"] else "There is more."
    counted = "" if found["counted"] is None else f" The upstream counts {found['counted']:,}."
    print(f"{show.plural(found['requests'], 'request')}; rows on each page: {pages}. {ended}{counted}")
    for why in found["unfit"]:
        print(f"  does not fit: {show.plain(str(why))}")
    for row in found["rows"]:
        columns = "  ".join(f"{name}={value}" for name, value in row["columns"].items())
        print(f"  {show.plain(str(row['key']) + '  ' + columns)}")  # an upstream said all of it
    print("Nothing was written.")
    return 0


def estimate(options: argparse.Namespace) -> int:
    from shared.kernel.clock import process_time  # noqa: PLC0415 - as above
    from shared.page_ingest.reader import tryout  # noqa: PLC0415 - as above

    known = _compiled(options)
    found = _asking(
        options,
        known,
        lambda client: tryout.estimate(client, known, options.begin, options.to, process_time(), options.resource),
    )
    if options.json:
        print(json.dumps(found))
        return 0
    for each in found["resources"]:
        rows = (
            "an unknown number of rows"
            if each["rows"] is None
            else f"{'' if each['exact'] else 'about '}{each['rows']:,} rows"
        )
        parts = (
            "a partition for each row of its parent"
            if each["partitions"] is None
            else show.plural(each["partitions"], "partition")
        )
        asks = "" if each["requests"] is None else f", about {show.plural(each['requests'], 'request')}"
        print(f"{each['resource']}: {parts}, {rows}{asks}")
    if found["minutes"] is not None:
        minutes = found["minutes"]
        print(f"All together about {minutes:g} minutes." if minutes >= 1 else "All together less than a minute.")
    return 0


def _compiled(options: argparse.Namespace) -> Compiled:
    from shared.page_ingest.source import compile as compiler  # noqa: PLC0415 - as above
    from shared.page_ingest.source import model  # noqa: PLC0415 - as above

    try:
        return compiler.compile_source(options.file, _read(options.file))
    except model.Refused as refused:
        raise Refusal(str(refused)) from None


def _asking(options: argparse.Namespace, known: Compiled, ask: Any) -> Any:
    """With the account that stands here; secrets come from a file or a pipe, never from the command line."""
    from shared.kernel.errors import StepError  # noqa: PLC0415 - as above
    from shared.page_ingest.reader import build, providers  # noqa: PLC0415 - as above

    given = dict(map(pair, options.setting))
    settings = {
        name: int(value) if known.source.settings.get(name) == "int" and value.isdigit() else value
        for name, value in given.items()
    }
    try:
        secret = json.loads(_read(options.secret)) if options.secret else {}
        if not isinstance(secret, dict):
            raise Refusal("the secret must be a JSON object, with a field for each that the file names")
        account = providers.provider(known).account(settings, secret)
        client = build.client_of(
            known, account.settings.model_dump(), build.revealed(account.secret), gate=known.source.name,
            time_left_s=lambda: 60.0, standin=options.standin,
        )  # fmt: skip
        return ask(client)
    except StepError as error:
        raise Refusal(str(error)) from None
    except ValueError as error:
        said = str(error).removesuffix(".")
        raise Refusal(f"{said}. Settings are given with --setting NAME=VALUE, the secret with --secret FILE") from None


# --- what is deployed -------------------------------------------------------------------------------------------------


def listed(options: argparse.Namespace) -> None:
    def table(found: Any) -> None:
        rows = [{"source": each["name"], **resource} for each in found["sources"] for resource in each["resources"]]
        show.table(rows, "source", "name", "claim", "reason", "table")

    tell(options, client_of(options).get("/sources"), table)


def run(options: argparse.Namespace) -> int:
    wanted = {
        "source": options.source,
        "resources": options.resource,
        "connection": options.connection,
        "from": options.begin,
        "to": options.to,
    }
    params: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    params |= {name: True for name in ("full", "replay") if getattr(options, name)}
    if options.tighten:
        params["tighten"] = {name: _value(text) for name, text in map(pair, options.tighten)}
    return started(options, "/runs", {"kind": "page_ingest", "params": params})


def shown(options: argparse.Namespace) -> None:
    def table(found: Any) -> None:
        print(f"{found['source']}: {found['status']}, {found['outcome'] or 'no claim yet'}")
        rows = [{**each, "done": f"{each['done']} of {each['partitions']}"} for each in found["resources"]]
        show.table(rows, "resource", "done", "received", "counted", "quarantined", "claim", "reason", "fuse")

    tell(options, client_of(options).get(f"/source-runs/{options.id}"), table)


def quarantine(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/source-quarantine", "rows", 200, source=options.source)
    tell(options, found, lambda told: show.table(told["rows"], "resource", "key", "why", "run_id", "at"))
