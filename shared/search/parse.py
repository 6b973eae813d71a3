"""Records of each client as offers, read strictly. A record that is no offer is one problem in words, never an exception."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, ValidationError

from shared.kernel.answers import Shape, in_words, storable
from shared.kernel.errors import Transient
from shared.search.model import Bad, Offer, plain

LONGEST = 2_000
EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)


def _time(value: Any) -> Any:
    """As text with a zone; `+0000` is one too."""
    if not isinstance(value, str):
        raise ValueError("a time must be text")  # noqa: TRY004 - pydantic's shape
    return datetime.fromisoformat(value)


def _sensible(value: datetime) -> datetime:
    if not value >= EARLIEST:
        raise ValueError("a time before 1990")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time after the year 9999") from None


At = Annotated[AwareDatetime, BeforeValidator(_time), AfterValidator(_sensible)]
Id = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]
Words = Annotated[str, Field(min_length=1, max_length=LONGEST)]


class _Valued(Shape):
    value: str | None = None


class _Author(Shape):
    id: Id
    name: Words
    uri: str | None = None


class _InfoJobs(Shape):
    id: Id
    title: Words
    updated: At
    published: At | None = None
    author: _Author | None = None
    province: _Valued | None = None
    city: str | None = None
    link: str | None = None
    salaryDescription: str | None = None  # noqa: N815 - the client's own name


class _Company(Shape):
    display_name: str | None = None


class _Location(Shape):
    display_name: str | None = None


class _Adzuna(Shape):
    id: Id
    title: Words
    created: At
    company: _Company | None = None
    location: _Location | None = None
    redirect_url: str | None = None
    salary_min: float | None = None
    salary_max: float | None = None


def _infojobs(record: Any) -> Offer:
    told = _InfoJobs.model_validate(record)
    province = None if told.province is None else told.province.value
    place = ", ".join(each for each in (told.city, province) if each) or None
    author = told.author
    return Offer(
        external_id=told.id, title=told.title, at=told.updated, published_at=told.published,
        company=None if author is None else author.id, company_name=None if author is None else author.name,
        company_link=None if author is None else author.uri, location=place, link=told.link,
        salary=told.salaryDescription, payload=record,
    )  # fmt: skip


def _adzuna(record: Any) -> Offer:
    """It knows companies by name alone, so the name is the id."""
    told = _Adzuna.model_validate(record)
    name = (told.company and told.company.display_name) or None
    salary = "-".join(f"{each:g}" for each in (told.salary_min, told.salary_max) if each is not None) or None
    return Offer(
        external_id=told.id, title=told.title, at=told.created, published_at=told.created,
        company=None if name is None else plain(name)[:200] or None, company_name=name,
        location=None if told.location is None else told.location.display_name, link=told.redirect_url, salary=salary, payload=record,
    )  # fmt: skip


PARSERS: Mapping[str, Callable[[Any], Offer]] = {"infojobs": _infojobs, "adzuna": _adzuna}


def offer_of(client: str, record: Any) -> tuple[Offer | None, str | None]:
    """The offer, or what is wrong with the record."""
    try:
        storable(record)
        return PARSERS[client](record), None
    except ValidationError as error:
        return None, in_words(error)
    except Transient as error:
        return None, error.message


def sorted_out(client: str, records: Sequence[Any]) -> tuple[list[Offer], list[Bad]]:
    """Offers, and records that are none."""
    offers, bad = [], []
    for record in records:
        offer, problem = offer_of(client, record)
        if offer is not None:
            offers.append(offer)
        else:
            bad.append(Bad(key=_key(record), problem=problem or "", payload=_kept(record)))
    return offers, bad


def _key(record: Any) -> str:
    named = record.get("id") if isinstance(record, dict) else None
    if isinstance(named, str) and 0 < len(named) <= 200 and "\x00" not in named and named.isprintable():
        return named
    return "sha256:" + hashlib.sha256(repr(record).encode("utf-8", "replace")).hexdigest()


def _kept(record: Any) -> Any:
    """The record as jsonb takes it; what is nested too deep, as text."""
    try:
        storable(record)
    except Transient:
        return {"as_text": repr(record)[:10_000]}
    return record
