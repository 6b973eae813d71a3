"""The Nivoda GraphQL API as an upstream: one call per question, every failure sorted by who tries again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

import orjson

from shared.kernel.errors import Permanent, StepError, Transient
from shared.kernel.http import Answer, AnswerTooLarge, Http, Pool, SlowUpstream
from shared.kernel.tokens import Token, TokenRefused
from shared.page_ingest.adapters.nivoda_answers import (
    AsksToWait,
    Quote,
    named_error,
    read_count,
    read_page,
    read_token,
    says_wrong_credentials,
)
from shared.page_ingest.model import Page, PriceRange
from shared.page_ingest.ports import PageTooBig

NAME: Final = "Nivoda"
PATH: Final = "/api/diamonds"
LARGEST_LIMIT: Final = 50  # the API's own
LARGEST_OFFSET: Final = 2**31 - 1

LOG_IN: Final = (
    "query($username:String!,$password:String!)"
    "{authenticate{username_and_password(username:$username,password:$password){token}}}"
)
COUNT: Final = "query($token:String!,$query:DiamondQuery!){as(token:$token){diamonds_by_query_count(query:$query)}}"
PAGE: Final = (
    "query($token:String!,$query:DiamondQuery!,$offset:Int,$limit:Int,$order:DiamondOrder){as(token:$token)"
    "{diamonds_by_query(query:$query,offset:$offset,limit:$limit,order:$order)"
    "{items{id price discount diamond{id availability supplierStockId image video certificate"
    "{id lab certNumber shape carats clarity cut color polish symmetry labgrown}}}}}}"
)
OLDEST_FIRST: Final = {"type": "createdAt", "direction": "ASC"}  # new stones come last: they do not move the offsets
HEADERS: Final = {"content-type": "application/json", "accept": "application/json"}
AnswerT = TypeVar("AnswerT")


class Question(Enum):
    LOG_IN = LOG_IN
    COUNT = COUNT
    PAGE = PAGE


class Nivoda:
    """An `Upstream`. It is cheap to build one per step."""

    def __init__(
        self,
        base_url: str,
        username: str,
        password: str,
        *,
        time_left_s: Callable[[], float],
        gate: str = "nivoda",
        pool: Pool | None = None,
    ) -> None:
        base_url = base_url.rstrip("/").removesuffix(PATH)
        self._http = Http(base_url, name=NAME, gate=gate, time_left_s=time_left_s, secrets=[password], pool=pool)
        self._username = username
        self._password = password

    def authenticate(self) -> Token:
        try:
            return self._ask(Question.LOG_IN, {"username": self._username, "password": self._password}, read_token)
        except (Transient, Permanent) as error:
            if isinstance(error, TokenRefused) or says_wrong_credentials(error.message):
                refused = (
                    f"Nivoda refuses this account. {error.message}"  # a colon after `password` would hide what follows
                )
                raise Permanent(refused, code="bad_credentials") from None
            raise

    def count(self, token: str, prices: PriceRange) -> int:
        return self._ask(Question.COUNT, {"token": token, "query": _between(prices)}, read_count)

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        if not 1 <= limit <= LARGEST_LIMIT:
            raise Permanent(f"A page of Nivoda has 1 to {LARGEST_LIMIT} items, not {limit}.", code="bad_limit")
        if not 0 <= offset <= LARGEST_OFFSET:
            raise Permanent(f"An offset is 0 to {LARGEST_OFFSET}, not {offset}.", code="bad_offset")
        variables = {
            "token": token,
            "query": _between(prices),
            "offset": offset,
            "limit": limit,
            "order": OLDEST_FIRST,
        }
        try:
            return self._ask(Question.PAGE, variables, lambda body, quote: read_page(body, prices, limit, quote))
        except (SlowUpstream, AnswerTooLarge) as error:
            raise PageTooBig(error.message) from None

    def _ask(
        self, question: Question, variables: Mapping[str, Any], read: Callable[[bytes, Quote], AnswerT]
    ) -> AnswerT:
        """What a 200 says; everything else raises."""
        body = orjson.dumps({"query": question.value, "variables": variables})
        answer = self._http.send("POST", PATH, body=body, headers=HEADERS)
        token = variables.get("token", "")

        def quote(text: str) -> str:
            return self._http.quote(text, token)

        if answer.status != 200:
            raise self._refusal(question, answer, named_error(answer.body, quote))
        try:
            return read(answer.body, quote)
        except AsksToWait as error:
            raise self._http.throttled(answer.headers, error.message) from None

    def _refusal(self, question: Question, answer: Answer, named: StepError | None) -> StepError:
        if answer.status in (413, 504) and question is Question.PAGE:
            return PageTooBig(f"Nivoda cannot answer so much ({answer.status}).")
        if answer.status not in (401, 403, 429):
            if isinstance(named, AsksToWait):
                return self._http.throttled(answer.headers, named.message)
            if isinstance(named, TokenRefused):
                return named
        return self._http.refusal(answer, str(named) if named else "")


def _between(prices: PriceRange) -> dict[str, Any]:
    # The API takes whole dollars, both ends included: up to high - 1 would lose the stone at high - 0.50.
    return {"dollar_value": {"from": prices.low, "to": prices.high}}
