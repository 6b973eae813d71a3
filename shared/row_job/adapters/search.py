"""The product search provider over HTTP. What it says is an answer; only a bug raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from shared.kernel.answers import read_json, shaped, storable
from shared.kernel.clock import stopwatch
from shared.kernel.errors import StepError, Throttled
from shared.kernel.http import Answer, Http, SlowUpstream, retry_after_s
from shared.row_job.decide import Answered
from shared.row_job.model import UPSTREAM, Found, Item, Strategy

LONGEST_RETRY_AFTER_S = 3600.0
OFFERS = 5  # that are asked for, and kept: a slice is written at once, however much a provider says


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Answer(_Shape):
    status: Literal["FOUND", "NOT_FOUND"]
    results: Annotated[list[Found], Field(max_length=100)] = []


class _Error(_Shape):
    code: Annotated[str, Field(max_length=100)]
    message: Annotated[str, Field(max_length=2_000)] = ""
    retry_after_ms: Annotated[float, Field(ge=0)] | None = None


class _Refusal(_Shape):
    error: _Error


class HttpSearch:
    def __init__(
        self, base_url: str, api_key: str, *, locale: str, currency: str, time_left_s: Callable[[], float], **kept: Any
    ) -> None:
        self._http = Http(
            base_url, name="the product search", gate=UPSTREAM, time_left_s=time_left_s, secrets=[api_key], **kept
        )
        self._key, self._locale, self._currency = api_key, locale, currency

    def find(self, item: Item, strategy: Strategy, retailers: Sequence[str], idempotency_key: str) -> Answered:
        asked = {
            **{name: item.normalized.get(name) for name in ("title", "brand", "sku")}, "strategy": strategy,
            "retailers": list(retailers), "locale": self._locale, "currency": self._currency, "limit": OFFERS,
        }  # fmt: skip
        headers = {"content-type": "application/json", "x-api-key": self._key, "idempotency-key": idempotency_key}
        elapsed = stopwatch()

        def answered(what: str, **more: Any) -> Answered:
            return Answered(what=what, ms=max(1, int(elapsed() * 1000)), **more)

        try:
            answer = self._http.send("POST", "/v1/search", body=orjson.dumps(asked), headers=headers)
            return _read(answer, answered)
        except Throttled as error:
            return answered("throttled", retry_after_s=error.retry_after_s)
        except StepError as error:
            late = isinstance(error, SlowUpstream) or getattr(error, "code", "") == "no_time"
            return answered("slow" if late else "failed", message=str(error)[:500])


def _read(answer: Answer, answered: Callable[..., Answered]) -> Answered:
    if answer.status == 404:
        return answered("not_found")
    if answer.status in (401, 403):
        said = (
            f"The product search doesn't accept the connection's key (status {answer.status}). Change the connection."
        )
        return answered("refused", message=said)
    if answer.status == 422:
        refusal = shaped(_Refusal, _told(answer)).error
        return answered(
            "invalid", message=f"The product search refuses this row: {refusal.message or refusal.code}"[:500]
        )
    if answer.status == 429:
        return answered("throttled", retry_after_s=_retry_after_s(answer))
    if answer.status != 200:
        return answered("failed", message=f"The product search answered with status {answer.status}.")
    found = shaped(_Answer, _told(answer))
    if found.status == "FOUND" and not found.results:
        return answered("failed", message="The product search says that it found something, and shows nothing.")
    return answered("found", offers=found.results[:OFFERS]) if found.status == "FOUND" else answered("not_found")


def _told(answer: Answer) -> Any:
    """What it says, as it can be kept: one NUL in one offer must not cost a slice all that it brought."""
    return orjson.loads(storable(read_json(answer.body)))


def _retry_after_s(answer: Answer) -> float:
    """As long as it says, in either place and in whatever form."""
    try:
        said = shaped(_Refusal, _told(answer)).error.retry_after_ms
    except StepError:
        said = None
    seconds = max((said or 0.0) / 1000, retry_after_s(answer.headers) or 0.0)
    return min(seconds, LONGEST_RETRY_AFTER_S)
