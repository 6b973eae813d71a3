"""`make kind NAME=water_meter`: a new kind of work from docs/example-kind, registered wherever a kind is named.

Everything is worked out before anything is written: a name that cannot be used, or a file that no longer looks as expected,
is refused and changes nothing. What each file is for: docs/kinds.md.
"""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from infra.sam import roles

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = Path("docs/example-kind")
FUNCTION = EXAMPLE / "function.yaml"
VERSIONS = Path("infra/migrations/versions")
LONGEST = 40  # it is part of the names of queues, functions and roles, which AWS limits
FOR_THE_SUPERUSER = 3
DEAD_LETTERS_AT_ONCE = 2  # of each queue; AWS takes no less


class Refused(Exception):
    """Nothing was changed; says why."""


class Name:
    """One name in every spelling that the files need."""

    def __init__(self, name: str) -> None:
        words = name.split("_")
        self.snake, self.kebab, self.camel = name, "-".join(words), "".join(word.capitalize() for word in words)
        self.title = " ".join(words).capitalize()

    def instead_of_the_example(self, text: str) -> str:
        for example, own in (
            ("example_kind", self.snake),
            ("example-kind", self.kebab),
            ("ExampleKind", self.camel),
            ("Example kind", self.title),
        ):
            text = text.replace(example, own)
        return text


def main(arguments: list[str]) -> int:
    try:
        changes = new_kind("".join(arguments), ROOT)
    except Refused as error:
        print(f"{error}", file=sys.stderr)  # noqa: T201 - a command speaks
        return 1
    write(changes, ROOT)
    print("\n".join(["Created or changed:", *(f"  {path}" for path in sorted(changes))]))  # noqa: T201
    print("Next: docs/kinds.md; `make test ARGS=tests/template`; `make up`.")  # noqa: T201
    return 0


def new_kind(name: str, root: Path) -> dict[Path, str]:
    """Every file that is made or changed, with its new text."""
    _check(name, root)
    names = Name(name)
    newest = max(path.name.partition("_")[0] for path in (root / VERSIONS).glob("[0-9]*_*.py"))
    revision = f"{int(newest) + 1:04}"
    changes = _own_files(names, root, revision, newest)
    for path, change in {
        "functions/catalogue.py": lambda text: _once(text, r"^\)  # fmt: skip$", f'    "{name}",\n\\g<0>'),
        "README.md": lambda text: _once(
            text, r"^\| `forward` \|", f"| `{name}` | its FIFO queue | takes one step of {name} |\n\\g<0>"
        ),
        "infra/local/localstack/queues.sh": lambda text: _once(
            text,
            r"^awslocal sqs create-queue --queue-name baton-local-delay ",
            f"fifo baton-local-{names.kebab}.fifo\nfifo baton-local-{names.kebab}-dead.fifo\n\\g<0>",
        ),
        "template.yaml": lambda text: _template(text, names, revision, root),
    }.items():
        changes[Path(path)] = _changed(root, path, change)
    changes[Path("docs/roles.md")] = roles.page(roles.parse(changes[Path("template.yaml")]))
    return changes


def write(changes: dict[Path, str], root: Path) -> None:
    for path, text in changes.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    # Another name sorts its imports and wraps its lines elsewhere.
    ours = [str(path) for path in changes if path.suffix == ".py"]
    for command in (["check", "--fix-only", "--quiet", "--select", "I"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *ours], cwd=root, check=False)  # noqa: S603 - our own words


def _check(name: str, root: Path) -> None:
    if not name:
        raise Refused("Name the kind: make kind NAME=water_meter")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > LONGEST or keyword.iskeyword(name):
        raise Refused(
            f"{name!r} cannot be the name of a kind. Use lower-case words with underscores, "
            f"{LONGEST} characters at most, for example water_meter."
        )
    if name.endswith("_dead"):
        raise Refused(
            f"{name!r} cannot be the name of a kind: queues for dead letters end in -dead. Choose another one."
        )
    places = (f"shared/{name}", f"functions/{name}", f"tests/kinds/{name}", f"infra/client/kinds/{name}.py")
    taken = [place for place in places if (root / place).exists()]
    ids = re.findall(
        rf"^  {Name(name).camel}(?:Queue|DeadQueue|Function|Role|Logs):", _read(root, "template.yaml"), re.MULTILINE
    )
    if taken or ids:
        where = taken[0] if taken else f"{ids[0].strip(' :')} in template.yaml"
        raise Refused(f"The name {name} is taken: {where} exists. Choose another one.")


def _own_files(names: Name, root: Path, revision: str, newest: str) -> dict[Path, str]:
    made = {}
    for path in sorted((root / EXAMPLE).rglob("*")):
        inside = path.relative_to(root / EXAMPLE)
        if not path.is_file() or inside.name == FUNCTION.name or path.suffix == ".pyc":
            continue
        text = names.instead_of_the_example(path.read_text())
        if inside.is_relative_to(VERSIONS):
            inside = inside.with_name(inside.name.replace("0002", revision))
            text = text.replace('"0002"', f'"{revision}"').replace('"0001"', f'"{newest}"')
        made[Path(names.instead_of_the_example(str(inside)))] = text
    return made


def _template(text: str, names: Name, revision: str, root: Path) -> str:
    id_ = names.camel
    text = _connections(text, id_, root)
    for pattern, change in (
        (r"^  Kinds:\n(?:    .+\n)+", rf"\g<0>    {id_}: {{queue: {names.kebab}}}\n"),
        (r"^    Forward: \{folder: forward\}$", rf"    {id_}: {{folder: {names.snake}}}\n\g<0>"),
        (r"^  Fn::ForEach::KindQueues:\n    - Kind\n    - \[[^\]]+", rf"\g<0>, {id_}"),
        (r"^      Queues: \[.*(?=!Ref DelayQueue, )", rf"\g<0>!Ref {id_}Queue, !Ref {id_}DeadQueue, "),
        (r"^  ForwardFunction:$", _read(root, FUNCTION).replace("\\", r"\\") + r"\g<0>"),
        (r"^        Delay:\n          Type: SQS\n", _dead_letters(id_) + r"\g<0>"),
        (r"^                Resource: \[.*(?=!GetAtt DelayDeadQueue\.Arn\])", rf"\g<0>!GetAtt {id_}DeadQueue.Arn, "),
        (r"^            Resource: \[!GetAtt DelayQueue\.Arn, [^\]]+", rf"\g<0>, !GetAtt {id_}Queue.Arn"),
        (r"^  Fn::ForEach::FunctionLogs:\n    - Each\n    - \[.*(?=Forward, )", rf"\g<0>{id_}, "),
        (r"^  Fn::ForEach::FunctionAlarms:\n    - Each\n    - \[.*(?=Forward, )", rf"\g<0>{id_}, "),
        (r'^ *(?=\["AWS/SQS", "ApproximateNumberOfMessagesDelayed")', _metrics(id_) + r"\g<0>"),
        (
            r"^  DelayQueueUrl: ",
            rf"  {id_}QueueUrl: {{Value: !Ref {id_}Queue}}\n  {id_}DeadQueueUrl: {{Value: !Ref {id_}DeadQueue}}\n\g<0>",
        ),
        (r"^  ForwardFunctionName: ", rf"  {id_}FunctionName: {{Value: !Ref {id_}Function}}\n\g<0>"),
        (r"^      Head: '\d+'$", f"      Head: '{revision}'"),
    ):
        text = _once(text, pattern, names.instead_of_the_example(change))
    return text


def _dead_letters(id_: str) -> str:
    return f"""        {id_}:
          Type: SQS
          Properties:
            Queue: !GetAtt {id_}DeadQueue.Arn
            BatchSize: 10
            FunctionResponseTypes: [ReportBatchItemFailures]
            ScalingConfig: {{MaximumConcurrency: {DEAD_LETTERS_AT_ONCE}}}
"""


def _metrics(id_: str) -> str:
    shown = (("Visible", "Queue"), ("NotVisible", "Queue"), ("Visible", "DeadQueue"))
    return "".join(
        f'{" " * 24}["AWS/SQS", "ApproximateNumberOfMessages{what}", "QueueName", "${{{id_}{queue}.QueueName}}"],\n'
        for what, queue in shown
    )


def _connections(text: str, id_: str, root: Path) -> str:
    """The kind's share of the database's connections: weight 1, and every row split anew (tests/template/rules.py)."""
    weight, always = _row(text, "weight") | {id_: 1}, _row(text, "always")
    always["DeadLetter"] += DEAD_LETTERS_AT_ONCE
    text = _once(text, r"^    weight: \{.*\}$", f"    weight: {_shown(weight)}")
    text = _once(text, r"^    always: \{.*\}$", f"    always: {_shown(always)}")
    for size in re.findall(r"^    '(\d+)': \{.*\}$", text, re.MULTILINE):
        left = int(size) - sum(always.values()) - FOR_THE_SUPERUSER
        shares = {name: left * share // sum(weight.values()) for name, share in weight.items()}
        if min(shares.values()) >= 2:  # AWS takes no less
            text = _once(text, rf"^    '{size}': .*$", f"    '{size}': {_shown(shares)}")
            continue
        if re.search(rf"DatabaseConnections={size}\b", _read(root, "samconfig.toml")):
            raise Refused(
                f"{size} database connections are too few for one more kind. Give the stage in samconfig.toml that has "
                f"DatabaseConnections={size} the next larger size, then run this again."
            )
        text = _once(text, rf"^    '{size}': .*\n", "")
        text = _once(text, rf"(?<=AllowedValues: \[)'{size}', ", "")
    return text


def _row(text: str, name: str) -> dict[str, int]:
    found = re.search(rf"^    {name}: \{{(.*)\}}$", text, re.MULTILINE)
    if found is None:
        raise Refused(f"template.yaml has no row {name} in its mapping Connections any more. See docs/kinds.md.")
    return {key: int(value) for key, value in re.findall(r"(\w+): (\d+)", found[1])}


def _shown(row: dict[str, int]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in row.items()) + "}"


def _once(text: str, pattern: str, change: str) -> str:
    changed, times = re.subn(pattern, change, text, flags=re.MULTILINE)
    if times != 1:
        raise Refused(
            f"Expected one place that matches {pattern!r} and found {times}. Add the kind by hand: docs/kinds.md."
        )
    return changed


def _changed(root: Path, path: str, change: Callable[[str], str]) -> str:
    try:
        return change(_read(root, path))
    except Refused as error:
        raise Refused(f"{path}: {error}") from None


def _read(root: Path, path: str | Path) -> str:
    return (root / path).read_text()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
