"""What the Nivoda API answered, read strictly: an answer that is not understood is an error, never an empty page."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from shared.kernel.answers import Shape, read_json, shaped, storable
from shared.kernel.errors import Permanent, StepError, Transient, bad_answer
from shared.kernel.redact import redact
from shared.kernel.tokens import Token, TokenRefused
from shared.page_ingest.model import Item, Page, PriceRange

TOKEN_LIVES_S: Final = 3_600  # when the token does not say
LONGEST_TOKEN_LIFE_S: Final = 86_400
FOREIGN_PRICES: Final = 5  # so many prices, all outside the asked range, are not chance but another unit

Quote = Callable[[str], str]  # how foreign text may be repeated in a message

_AUTH_CODES = {"UNAUTHENTICATED", "UNAUTHORIZED", "FORBIDDEN"}
_RATE_CODES = {"RATE_LIMITED", "TOO_MANY_REQUESTS", "THROTTLED"}
_OUR_FAULT_CODES = {"GRAPHQL_PARSE_FAILED", "GRAPHQL_VALIDATION_FAILED", "BAD_USER_INPUT"}
_AUTH_WORDS = re.compile(
    r"(?i)\bjwt\b|unauthori[sz]ed|unauthenticated|forbidden|access denied|permission|credentials"
    r"|not (?:authori[sz]ed|authenticated|logged in|permitted)|must (?:be logged|log|sign) ?in"
    r"|(?:invalid|expired|bad|missing|malformed|revoked) (?:access |auth |bearer )?token"
    r"|token (?:is |has |was |not |been )*(?:valid|invalid|expired|malformed|revoked|missing)"
    r"|(?:authentication|authori[sz]ation|log ?in) (?:is |has |was )?(?:required|failed)|session (?:has )?expired"
)
_RATE_WORDS = re.compile(r"(?i)too many requests|rate.?limit|throttl|quota exceeded")
_CREDENTIAL_WORDS = re.compile(
    r"(?i)(?:invalid|incorrect|wrong|unknown|bad) (?:e-?mail|user ?name|user|pass ?word|login)"
    r"|(?:pass ?word|user ?name|user|e-?mail|account) (?:is |was |does |not |or )*(?:incorrect|wrong|invalid|found|exist|match)"
)


# --- the shapes -------------------------------------------------------------------------------------------------------


# Printable text with more than spaces in it. Repairing an id could make two stones one, so any other is refused.
Id = Annotated[str, Field(max_length=200, pattern=r"^ *[^\p{C}\p{Z}](?: |[^\p{C}\p{Z}])*$")]


@dataclass(eq=False)
class AsksToWait(Transient):
    """An answer of 200 that says what a 429 says."""


class _Error(Shape):
    message: str
    extensions: Any = None

    @property
    def code(self) -> str:
        code = self.extensions.get("code") if isinstance(self.extensions, dict) else None
        return code.upper() if isinstance(code, str) else ""


class _Envelope(Shape):
    data: dict[str, Any] | None = None
    errors: list[_Error] | None = None


class _Diamond(Shape):
    id: Id


class _Offer(Shape):
    id: Id
    price: Annotated[int, Field(ge=0, le=10**13)]
    diamond: _Diamond


class _Offers(Shape):
    items: list[_Offer]


class _AsPage(Shape):
    diamonds_by_query: _Offers


class _PageData(Shape):
    inner: _AsPage = Field(alias="as")


class _AsCount(Shape):
    diamonds_by_query_count: Annotated[int, Field(ge=0, le=10**12)]


class _CountData(Shape):
    inner: _AsCount = Field(alias="as")


class _Bearer(Shape):
    token: Annotated[str, Field(min_length=1, max_length=8_192, pattern=r"^[\x21-\x7e]+$")]


class _Login(Shape):
    username_and_password: _Bearer


class _LoginData(Shape):
    authenticate: _Login


class _Claims(Shape):
    iat: float
    exp: float


# --- reading ----------------------------------------------------------------------------------------------------------


def read_token(body: bytes, quote: Quote = redact) -> Token:
    token = shaped(_LoginData, _data(body, quote)).authenticate.username_and_password.token
    return Token(token, _life_s(token))


def read_count(body: bytes, quote: Quote = redact) -> int:
    return shaped(_CountData, _data(body, quote)).inner.diamonds_by_query_count


def read_page(body: bytes, prices: PriceRange, limit: int, quote: Quote = redact) -> Page:
    data = _data(body, quote)
    offers = shaped(_PageData, data).inner.diamonds_by_query.items
    if len(offers) > limit:
        raise bad_answer(f"The page has {len(offers)} items; at most {limit} were asked for.")
    foreign = _foreign(offers, prices)
    raw = data["as"]["diamonds_by_query"]["items"]
    items = tuple(
        Item(external_id=offer.diamond.id, offer_id=offer.id, price_cents=offer.price, body=storable(payload))
        for offer, payload in zip(offers, raw, strict=True)
        if prices.holds(offer.price)
    )
    return Page(items=items, fetched=len(offers), ids=tuple(offer.diamond.id for offer in offers), foreign=foreign)


def named_error(body: bytes, quote: Quote = redact) -> StepError | None:
    """The failure that an answer names in its `errors`, if it does."""
    try:
        envelope = shaped(_Envelope, read_json(body))
    except Transient:
        return None
    return _sorted_error(envelope.errors, quote) if envelope.errors else None


def says_wrong_credentials(message: str) -> bool:
    return _CREDENTIAL_WORDS.search(message) is not None


def _data(body: bytes, quote: Quote) -> dict[str, Any]:
    envelope = shaped(_Envelope, read_json(body))
    if envelope.errors:  # beside errors, data is only what was left of it
        raise _sorted_error(envelope.errors, quote)
    if envelope.data is None:
        raise bad_answer("The answer has neither data nor errors.")
    return envelope.data


def _sorted_error(errors: list[_Error], quote: Quote) -> StepError:
    codes = {error.code for error in errors}
    text = "; ".join(error.message for error in errors[:3])
    said = quote(text)
    if codes & _RATE_CODES or _RATE_WORDS.search(text):
        return AsksToWait(said)
    if codes & _AUTH_CODES or _AUTH_WORDS.search(text):
        return TokenRefused(f"Nivoda does not accept the token: {said}")
    if codes & _OUR_FAULT_CODES:
        return Permanent(f"Nivoda does not understand the query: {said}", code="request_refused")
    return Transient(f"Nivoda answered with an error: {said}", code="upstream_error")


def _foreign(offers: list[_Offer], prices: PriceRange) -> frozenset[str]:
    """The stones that were not asked for. One within a dollar of the range may be rounded into it, and is a neighbour's."""
    near = range((prices.low - 1) * 100, (prices.high + 1) * 100)
    strange = [offer.diamond.id for offer in offers if offer.price not in near]
    # Dollars taken for cents would be filtered out in silence, page after page.
    if len(strange) >= FOREIGN_PRICES and len(strange) == len(offers):
        raise bad_answer(f"No price on the page is near the {prices.low} to {prices.high} dollars that were asked for.")
    return frozenset(strange)


# --- the token's life -------------------------------------------------------------------------------------------------


def _life_s(token: str) -> int:
    """How long the token lives by its own claims; both come from the upstream's clock, so ours does not matter."""
    try:
        claims = shaped(_Claims, read_json(_claims(token)))
    except (Transient, ValueError):
        return TOKEN_LIVES_S
    return int(min(max(claims.exp - claims.iat, 1), LONGEST_TOKEN_LIFE_S))


def _claims(token: str) -> bytes:
    _, middle, _ = token.split(".")
    return base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))
