"""A first source file from a few answers. Pure: the questions are asked elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.page_ingest.source import shapes
from shared.page_ingest.source.read import FORMATS, STYLES

Answers = Mapping[str, str]
HINTS = {"link": "next", "next": "/next", "token": "/next_cursor", "after": "/id", "number": "1", "offset": "0"}
SENT_AS = {"token": "cursor", "after": "after", "number": "page", "offset": "offset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`shape` judges an answer; an empty one is the default, or nothing if it `may_skip`."""

    name: str
    text: str
    shape: Callable[[str], Any]
    default: str = ""
    may_skip: bool = False

    def read(self, said: str) -> str:
        """The answer, or `shapes.Wrong`."""
        answer = said.strip() or self.default
        if answer or not self.may_skip:
            self.shape(answer)
        return answer


def questions(answers: Answers, name: str) -> Iterator[Question]:
    """The next questions, given the answers so far: the caller asks one and comes again."""
    asked = [
        Question(name="source", text="Name of the source", shape=shapes.identifier, default=name),
        Question(name="host", text="Host of the API, for example api.example.com", shape=shapes.host),
        Question(
            name="auth",
            text="How requests are authorized: bearer, header, basic or none",
            shape=shapes.word("bearer", "header", "basic", "none"),
            default="bearer",
        ),
        *_if(answers, "auth", "header", Question(
            name="header", text="Name of the header", shape=shapes.header_name, default="X-Api-Key")),
        Question(name="resource", text="Name of the list", shape=shapes.identifier, default="items"),
        Question(name="get", text="Path of the list, for example /v1/items", shape=_path),
        Question(
            name="page", text=f"How to get the next page: {', '.join(STYLES)}", shape=shapes.word(*STYLES), default="token"
        ),
        *_of_paging(answers),
        Question(name="rows", text="Where the rows are in the answer, as a JSON Pointer; empty if it is all rows",
                 shape=shapes.pointer, may_skip=True),
        Question(name="key", text="Field that identifies a row", shape=shapes.field, default="/id"),
        Question(name="count", text="Where the answer says how many rows the whole list has, exactly; empty if nowhere",
                 shape=shapes.field, may_skip=True),
        Question(name="since", text="Field with the time of a row's last change, if the API can list what changed since a"
                 " time; empty if not", shape=shapes.field, may_skip=True),
        *(_of_changes(answers) if answers.get("since") else ()),
    ]  # fmt: skip
    return (each for each in asked if each.name not in answers)


def _if(answers: Answers, name: str, value: str, question: Question) -> list[Question]:
    return [question] if answers.get(name) == value else []


def _path(value: str) -> str:
    found = shapes.target(value)
    if not found.startswith("/") or "{" in found or "}" in found:
        raise shapes.Wrong('must be a plain path that starts with /, for example "/v1/items".')
    return found


def _of_paging(answers: Answers) -> Iterator[Question]:
    style, parameter = answers.get("page", ""), _unused(answers)
    if style in {"next", "token"}:
        text = "Where the answer has the next " + ("URL" if style == "next" else "token")
        yield Question(name="at", text=text, shape=shapes.field, default=HINTS[style])
    if style == "after":
        yield Question(name="order", text="How the list is sorted", shape=shapes.order, default="asc /id")
    if style in SENT_AS:
        yield Question(name="sent_as", text=f"Parameter that the {_sent(style)} is sent as", shape=parameter, default=SENT_AS[style])  # fmt: skip
    if style in {"number", "offset"}:
        yield Question(name="sort", text="Parameter and value that sort the list, for example sort=id; empty if the API"
                       " promises an order", shape=lambda said: parameter(_sorting(said)[0]), may_skip=True)  # fmt: skip
    if style:
        yield Question(name="size", text="Rows per page", shape=_size, default="100")
        yield Question(name="size_as", text="Parameter that this is sent as", shape=parameter, default="limit")


def _sent(style: str) -> str:
    return {"token": "token", "after": "last key", "number": "page's number", "offset": "offset"}[style]


def _of_changes(answers: Answers) -> Iterator[Question]:
    yield Question(name="since_as", text="Parameter that the time is sent as", shape=_unused(answers), default="since")
    yield Question(name="format", text=f"Format of the time: {', '.join(FORMATS)}", shape=shapes.word(*FORMATS), default="time")  # fmt: skip


def _parameter(value: str) -> str:
    found = shapes.line(value)
    if "{" in found or "}" in found:
        raise shapes.Wrong("must be the name of a parameter.")
    return found


def _unused(answers: Answers) -> Callable[[str], str]:
    """A parameter that is not sent yet: one of two with the same name would be lost."""
    taken = [answers[each] for each in ("sent_as", "size_as", "since_as") if each in answers]
    taken += [_sorting(answers["sort"])[0]] if answers.get("sort") else []

    def shape(value: str) -> str:
        if _parameter(value) in taken:
            raise shapes.Wrong("is already sent as something else. Use another parameter.")
        return value

    return shape


def _sorting(value: str) -> tuple[str, str]:
    name, equals, how = value.partition("=")
    if not equals or not how.strip():
        raise shapes.Wrong("must be a parameter and its value, for example sort=id.")
    return _parameter(name.strip()), _parameter(how.strip())


def _size(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", value):
        raise shapes.Wrong("must be a whole number.")
    return shapes.number(4, 10_000)(int(value))


def draft(answers: Answers) -> str:
    """The file. Whatever the answers, it passes the check: each was of its shape, and the rest is written here."""
    auth = {
        "bearer": {"bearer": "token"}, "basic": {"basic": ["user", "password"]}, "none": "none",
        "header": {"header": answers.get("header", ""), "key": "key"},
    }[answers["auth"]]  # fmt: skip
    lines = [
        f"source = {_toml(answers['source'])}",
        f"hosts = {_toml([answers['host']])}",
        f"auth = {_toml(auth)}",
        "",
        f"[resources.{answers['resource']}]",
        f"get = {_toml(answers['get'])}",
        f"query = {_toml(_query(answers))}",
        f"page = {_toml(_page(answers))}",
        f"rows = {_toml(answers['rows'])}",
        f"key = {_toml([answers['key']])}",
    ]
    if answers["count"]:
        lines.append(f"count = {_toml({'at': answers['count']})}")
    if answers["since"]:
        date = {"lookback": "P1D"} if answers["format"] == "date" else {"lookback": "PT10M"}
        lines.append(f"since = {_toml({'field': answers['since'], 'as': answers['format'], **date})}")
    return "\n".join([*lines, ""])


def _query(answers: Answers) -> dict[str, str]:
    query = {answers["size_as"]: "{size}"}
    if answers["page"] in SENT_AS:
        query[answers["sent_as"]] = f"{{{answers['page']}}}"
    if answers.get("sort"):
        query.update([_sorting(answers["sort"])])
    if answers["since"]:
        query[answers["since_as"]] = "{since}"
    return query


def _page(answers: Answers) -> dict[str, Any]:
    style = answers["page"]
    at: Any = answers.get("at") or HINTS[style]
    if style == "after":
        at = answers["key"]
    page: dict[str, Any] = {style: int(at) if style in {"number", "offset"} else at}
    if style == "after":
        page["order"] = answers["order"]
    if style in {"number", "offset"}:
        page["sorted_by"] = _sorting(answers["sort"])[0] if answers["sort"] else "upstream"
    return {**page, "size": int(answers["size"])}


def _toml(value: Any) -> str:
    """Text of printable characters is written in TOML as it is in JSON."""
    if isinstance(value, dict):
        inner = ", ".join(f"{_name(name)} = {_toml(each)}" for name, each in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
