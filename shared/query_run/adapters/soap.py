"""The SOAP of Marketing Cloud Engagement: envelopes with every value escaped, answers read strictly.

Six requests are all there is, so they are written by hand; answers are parsed with defusedxml, which refuses entities.
What is not understood is a `bad_answer`: unknown, never a status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from shared.kernel.errors import bad_answer
from shared.query_run.model import LONGEST_TEXT, ActivityStatus, Column

ENVELOPE: Final = "http://schemas.xmlsoap.org/soap/envelope/"
PARTNER: Final = "http://exacttarget.com/wsdl/partnerAPI"
XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_E, _P = f"{{{ENVELOPE}}}", f"{{{PARTNER}}}"
MISSING_OBJECT: Final = "310002"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A refusal of the whole request."""

    code: str
    text: str
    api_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one object."""

    ok: bool
    message: str
    error_code: str
    element: Element


# --- requests


def envelope(token: str, body: str) -> bytes:
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?><Envelope xmlns="{ENVELOPE}" xmlns:xsi="{XSI}"><Header>'
        f'<fueloauth xmlns="http://exacttarget.com">{escape(token)}</fueloauth></Header><Body>{body}</Body></Envelope>'
    )
    return text.encode()


def create_target(key: str, name: str, columns: Sequence[Column], kept_days: int) -> str:
    fields = "".join(f"<Field>{_field(column)}</Field>" for column in columns)
    # Retention is a backstop: whatever happens to us, the data leaves by itself.
    kept = _tags(
        IsSendable="false", DataRetentionPeriodLength=str(kept_days), DataRetentionPeriod="Days", RowBasedRetention="false",
        ResetRetentionPeriodOnImport="false", DeleteAtEndOfRetentionPeriod="true",
    )  # fmt: skip
    return _create("DataExtension", f"{_tags(Name=name, CustomerKey=key)}{kept}<Fields>{fields}</Fields>")


def _field(column: Column) -> str:
    # No key and nothing required: either would have to be in every select list.
    shape = {"Name": column.name, "FieldType": column.type}
    if column.type == "Text":
        shape["MaxLength"] = str(column.max_length or LONGEST_TEXT)
    elif column.type == "Decimal":
        shape |= {"Precision": "18", "Scale": "4"}
    elif column.max_length is not None and column.type in ("EmailAddress", "Phone", "Locale"):
        shape["MaxLength"] = str(column.max_length)
    return _tags(**shape, IsPrimaryKey="false", IsRequired="false")


def create_query(key: str, name: str, sql: str, target_key: str, target_id: str) -> str:
    target = _tags(ObjectID=target_id, CustomerKey=target_key, Name=target_key)
    return _create(
        "QueryDefinition",
        _tags(Name=name, CustomerKey=key, Description="Temporary, made by Baton", QueryText=sql, TargetType="DE")
        + f"<DataExtensionTarget>{target}</DataExtensionTarget>"
        + _tags(TargetUpdateType="Overwrite"),
    )


def _create(type_: str, body: str) -> str:
    return f'<CreateRequest xmlns="{PARTNER}"><Objects xsi:type="{type_}">{body}</Objects></CreateRequest>'


def perform(object_id: str) -> str:
    definition = f'<Definition xsi:type="QueryDefinition">{_tags(ObjectID=object_id)}</Definition>'
    return (
        f'<PerformRequestMsg xmlns="{PARTNER}"><Action>Start</Action>'
        f"<Definitions>{definition}</Definitions></PerformRequestMsg>"
    )


def retrieve(type_: str, properties: Sequence[str], where: tuple[str, str, str]) -> str:
    asked = "".join(_tags(Properties=name) for name in properties)
    name, operator, value = where
    part = _tags(Property=name, SimpleOperator=operator, Value=value)
    return (
        f'<RetrieveRequestMsg xmlns="{PARTNER}"><RetrieveRequest>{_tags(ObjectType=type_)}{asked}'
        f'<Filter xsi:type="SimpleFilterPart">{part}</Filter></RetrieveRequest></RetrieveRequestMsg>'
    )


def continued(type_: str, request_id: str) -> str:
    return (
        f'<RetrieveRequestMsg xmlns="{PARTNER}"><RetrieveRequest>{_tags(ContinueRequest=request_id, ObjectType=type_)}'
        "</RetrieveRequest></RetrieveRequestMsg>"
    )


def delete(type_: str, **named: str) -> str:
    return f'<DeleteRequest xmlns="{PARTNER}"><Objects xsi:type="{type_}">{_tags(**named)}</Objects></DeleteRequest>'


def _tags(**values: str) -> str:
    """A carriage return as itself would arrive as a line feed."""
    escaped = {name: escape(value, {"\r": "&#13;"}) for name, value in values.items()}
    return "".join(f"<{name}>{value}</{name}>" for name, value in escaped.items())


# --- answers


def read_body(body: bytes) -> Element:
    """The one element of the answer's body: a fault or a response."""
    try:
        root = fromstring(body)
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise bad_answer(f"The answer is not proper XML ({type(error).__name__}).") from None
    if root.tag != f"{_E}Envelope":
        raise bad_answer("The answer is XML, but no SOAP envelope.")
    inside = root.find(f"{_E}Body")
    if inside is None or len(inside) != 1:
        raise bad_answer("The answer's SOAP body has not exactly one element.")
    element: Element = inside[0]
    return element


def read_fault(element: Element) -> Fault | None:
    if element.tag != f"{_E}Fault":
        return None
    number = next((each.text for each in element.iter() if each.tag.rpartition("}")[2] == "Code"), None)
    return Fault(
        code=(element.findtext("faultcode") or "").strip(),
        text=(element.findtext("faultstring") or "").strip(),
        api_code=int(number) if number is not None and re.fullmatch(r"\s*[0-9]{1,6}\s*", number) else None,
    )


def expect(element: Element, name: str) -> Element:
    if element.tag != f"{_P}{name}":
        raise bad_answer(f"The answer is not a {name}.")
    return element


def overall(element: Element) -> str:
    status = element.findtext(f"{_P}OverallStatus")
    if status is None or not status.strip():
        raise bad_answer("The answer has no OverallStatus.")
    return status.strip()


def one_result(element: Element, *, inside: str | None = None) -> Result:
    """The result of the one object that was asked for."""
    found = element.findall(f"{_P}Results")
    if inside is not None:
        found = [each for results in found for each in results.findall(f"{_P}{inside}")]
    if len(found) != 1:
        raise bad_answer(f"The answer has {len(found)} results where one was asked for.")
    (result,) = found
    status = (result.findtext(f"{_P}StatusCode") or "").strip()
    if status not in ("OK", "Error"):
        raise bad_answer("A result is neither OK nor an error.")
    return Result(
        ok=status == "OK",
        message=(result.findtext(f"{_P}StatusMessage") or "").strip(),
        error_code=(result.findtext(f"{_P}ErrorCode") or "").strip(),
        element=result,
    )


def new_object_id(result: Result) -> str:
    """`NewObjectID`; `NewID` is 0 for data extensions and queries."""
    return guid(result.element.findtext(f"{_P}NewObjectID"))


def task_id(result: Result) -> str:
    task = result.element.find(f"{_P}Task")
    number = None if task is None else (task.findtext(f"{_P}ID") or "").strip()
    if not number or not re.fullmatch(r"[0-9]{1,19}", number) or not int(number):
        raise bad_answer("The query was started, but the answer names no task.")
    return number


def task_refusal(result: Result) -> str | None:
    """Why the task was not started, if it was not."""
    task = result.element.find(f"{_P}Task")
    if task is None or (task.findtext(f"{_P}StatusCode") or "").strip() != "Error":
        return None
    return (task.findtext(f"{_P}StatusMessage") or "").strip() or "the task was not started"


def guid(text: str | None) -> str:
    """An id that is one: it becomes part of an address."""
    try:
        if text is not None and len(text.strip()) == 36:
            return str(UUID(text.strip()))
    except ValueError:
        pass
    raise bad_answer("The answer names an object without a proper id.")


def retrieved(element: Element) -> list[Element]:
    return element.findall(f"{_P}Results")


def request_id(element: Element) -> str:
    return (element.findtext(f"{_P}RequestID") or "").strip()


def field(result: Element, name: str) -> str | None:
    return result.findtext(f"{_P}{name}")


def properties(result: Element) -> Mapping[str, str | None]:
    """Name and value pairs, in any order, by their names in lower case; those that are absent are absent."""
    found: dict[str, str | None] = {}
    for pair in result.findall(f"{_P}Properties/{_P}Property"):
        name = (pair.findtext(f"{_P}Name") or "").strip().lower()
        if not name or name in found:
            raise bad_answer("A property of the answer has no name, or is there twice.")
        found[name] = pair.findtext(f"{_P}Value")
    return found


def activity_status(element: Element) -> ActivityStatus | None:
    """None: it knows of no such task (yet)."""
    found = retrieved(element)
    if not found:
        return None
    if len(found) > 1:
        raise bad_answer(f"The answer has {len(found)} results for one task.")
    values: Mapping[str, Any] = properties(found[0])
    return ActivityStatus.read(values.get("status"), values.get("errormsg"), values.get("completeddate"))
