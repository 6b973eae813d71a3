"""InfoJobs and Adzuna over HTTP: one page per call, each answer read strictly."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import Field

from shared.kernel.answers import Shape, read_json, shaped
from shared.kernel.errors import StepError, Throttled, Transient, bad_answer
from shared.kernel.http import Answer, Http, Pool, retry_after_s
from shared.kernel.model import Json
from shared.search.model import PAGE_SIZE, Page
from shared.search.parse import sorted_out

SINCE: Final = {1: "_24_HOURS", 7: "_7_DAYS", 15: "_15_DAYS", 0: "ANY"}
MOST_SHOWN = 100_000_000
Count = Annotated[int, Field(ge=0, le=MOST_SHOWN)]


class _InfoJobsPage(Shape):
    currentPage: Count  # noqa: N815 - the client's own names
    pageSize: Annotated[int, Field(ge=1, le=1_000)]  # noqa: N815
    totalResults: Count  # noqa: N815
    totalPages: Count  # noqa: N815
    items: list[Any] | None = None
    offers: list[Any] | None = None


class _AdzunaPage(Shape):
    count: Count
    results: list[Any]


class InfoJobs:
    """`GET /api/9/offer`, with the application's own id and secret. Newest first; pages from 1."""

    def __init__(
        self, base_url: str, client_id: str, client_secret: str, *, time_left_s: Callable[[], float], gate: str,
        pool: Pool | None = None,
    ) -> None:  # fmt: skip
        basic = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        self._headers = {"authorization": f"Basic {basic}", "accept": "application/json"}
        self._http = Http(
            base_url, name="InfoJobs", gate=gate, time_left_s=time_left_s, secrets=(client_secret, basic), pool=pool
        )

    def page(self, params: Json, bucket: int, number: int) -> Page:
        query: dict[str, Any] = {
            "order": "updated-desc", "sinceDate": SINCE[bucket], "page": str(number), "maxResults": str(PAGE_SIZE),
            **{_INFOJOBS_NAMES.get(name, name): _text(value) for name, value in params.items()},
        }  # fmt: skip
        answer = self._http.send("GET", "/api/9/offer", query=query, headers=self._headers)
        if answer.status != 200:
            raise _refusal(self._http, answer, "error_description")
        told = shaped(_InfoJobsPage, read_json(answer.body))
        records = told.items if told.items is not None else told.offers
        if records is None:
            raise bad_answer("The answer has neither items nor offers.")
        if told.items is not None and told.offers is not None and _ids(told.items) != _ids(told.offers):
            raise bad_answer("The answer's two lists of offers differ.")
        if told.currentPage != number:
            raise bad_answer(f"Page {told.currentPage} came where page {number} was asked for.")
        if told.totalPages != math.ceil(told.totalResults / told.pageSize) or len(records) > told.pageSize:
            raise bad_answer(
                f"The answer's figures contradict each other: {told.totalResults} offers on {told.totalPages} pages "
                f"of {told.pageSize}, {len(records)} on this one."
            )
        offers, bad = sorted_out("infojobs", records)
        return Page(
            offers=offers, bad=bad, total=told.totalResults, size=told.pageSize, is_last=number >= told.totalPages
        )


_INFOJOBS_NAMES = {"salary_min": "salaryMin"}


class Adzuna:
    """`GET /v1/api/jobs/{country}/search/{page}`: the keys travel in the query, so no message may repeat it."""

    def __init__(
        self, base_url: str, app_id: str, app_key: str, *, time_left_s: Callable[[], float], gate: str,
        pool: Pool | None = None,
    ) -> None:  # fmt: skip
        self._keys = {"app_id": app_id, "app_key": app_key}
        self._http = Http(base_url, name="Adzuna", gate=gate, time_left_s=time_left_s, secrets=(app_key,), pool=pool)

    def page(self, params: Json, bucket: int, number: int) -> Page:
        country = str(params.get("country", "es"))
        query = {
            **self._keys, "results_per_page": str(PAGE_SIZE), "sort_by": "date", "content-type": "application/json",
            **({"max_days_old": str(bucket)} if bucket else {}),
            **{name: _text(value) for name, value in params.items() if name != "country"},
        }  # fmt: skip
        answer = self._http.send("GET", f"/v1/api/jobs/{country}/search/{number}", query=query)
        if answer.status != 200:
            raise _refusal(self._http, answer, "display")
        told = shaped(_AdzunaPage, read_json(answer.body))
        if len(told.results) > PAGE_SIZE:
            raise bad_answer(f"{len(told.results)} offers came where {PAGE_SIZE} were asked for.")
        offers, bad = sorted_out("adzuna", told.results)
        return Page(offers=offers, bad=bad, total=told.count, size=PAGE_SIZE, is_last=number * PAGE_SIZE >= told.count)


def _text(value: Any) -> str | list[str]:
    return [str(each) for each in value] if isinstance(value, list) else str(value)


def _ids(records: list[Any]) -> list[Any]:
    return [record.get("id") if isinstance(record, dict) else record for record in records]


def _refusal(http: Http, answer: Answer, field: str) -> StepError:
    """Why it said no. A 429 passes on what it asks for in full: how long we wait is decided elsewhere."""
    refusal = http.refusal(answer, _said(http, answer, field))
    if isinstance(refusal, Throttled):
        return Throttled(refusal.gate, retry_after_s(answer.headers) or 0.0, refusal.message)
    return refusal


def _said(http: Http, answer: Answer, field: str) -> str:
    try:
        told = read_json(answer.body)
    except Transient:
        return ""
    said = told.get(field) if isinstance(told, dict) else None
    return http.quote(said) if isinstance(said, str) else ""
