"""What the Nivoda API answered, read strictly: an answer that is not understood is an error, never an empty page."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from shared.kernel.errors import Permanent, StepError, Throttled, Transient
from shared.kernel.redact import redact
from shared.page_ingest.ports import Item, Page, PriceRange, Token, TokenExpired

GATE: Final = "nivoda"
DEFAULT_WAIT_S: Final = 30
TOKEN_LIVES_S: Final = 3_600  # when the token does not say
LONGEST_TOKEN_LIFE_S: Final = 86_400
DEEPEST_PAYLOAD: Final = 32
FOREIGN_PRICES: Final = 5  # so many prices, all outside the asked range, are not chance but another unit

Quote = Callable[[str], str]  # how foreign text may be repeated in a message

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
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


def _an_id(value: str) -> str:
    # Mending an id could make two stones one, so an id that cannot be stored is refused.
    if not value.strip() or not value.isprintable():
        raise ValueError("an id must be printable text")
    return value


Id = Annotated[str, Field(max_length=200), AfterValidator(_an_id)]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)


class _Error(_Shape):
    message: str
    extensions: Any = None

    @property
    def code(self) -> str:
        code = self.extensions.get("code") if isinstance(self.extensions, dict) else None
        return code.upper() if isinstance(code, str) else ""


class _Envelope(_Shape):
    data: dict[str, Any] | None = None
    errors: list[_Error] | None = None


class _Diamond(_Shape):
    id: Id


class _Offer(_Shape):
    id: Id
    price: Annotated[int, Field(ge=0, le=10**13)]
    diamond: _Diamond


class _Offers(_Shape):
    items: list[_Offer]


class _AsPage(_Shape):
    diamonds_by_query: _Offers


class _PageData(_Shape):
    inner: _AsPage = Field(alias="as")


class _AsCount(_Shape):
    diamonds_by_query_count: Annotated[int, Field(ge=0, le=10**12)]


class _CountData(_Shape):
    inner: _AsCount = Field(alias="as")


class _Bearer(_Shape):
    token: Annotated[str, Field(min_length=1, max_length=8_192, pattern=r"^[\x21-\x7e]+$")]


class _Login(_Shape):
    username_and_password: _Bearer


class _LoginData(_Shape):
    authenticate: _Login


class _Claims(_Shape):
    iat: float
    exp: float


# --- reading ----------------------------------------------------------------------------------------------------------


def read_token(body: bytes, quote: Quote = redact) -> Token:
    token = _validated(_LoginData, _data(body, quote)).authenticate.username_and_password.token
    return Token(token, _life_s(token))


def read_count(body: bytes, quote: Quote = redact) -> int:
    return _validated(_CountData, _data(body, quote)).inner.diamonds_by_query_count


def read_page(body: bytes, prices: PriceRange, limit: int, quote: Quote = redact) -> Page:
    data = _data(body, quote)
    offers = _validated(_PageData, data).inner.diamonds_by_query.items
    if len(offers) > limit:
        raise bad_answer(f"the page has {len(offers)} items where at most {limit} were asked for")
    _check_unit(offers, prices)
    raw = data["as"]["diamonds_by_query"]["items"]
    items = tuple(
        Item(
            external_id=offer.diamond.id,
            offer_id=offer.id,
            price_cents=offer.price,
            payload=_storable(payload),
        )
        for offer, payload in zip(offers, raw, strict=True)
        if prices.holds(offer.price)
    )
    return Page(items=items, fetched=len(offers), ids=tuple(offer.diamond.id for offer in offers))


def named_error(body: bytes, quote: Quote = redact) -> StepError | None:
    """The failure that an answer names in its `errors`, if it does."""
    try:
        envelope = _validated(_Envelope, _loads(body))
    except Transient:
        return None
    return _sorted_error(envelope.errors, quote) if envelope.errors else None


def says_wrong_credentials(message: str) -> bool:
    return _CREDENTIAL_WORDS.search(message) is not None


def bad_answer(message: str) -> Transient:
    return Transient(message, code="bad_answer")


def _data(body: bytes, quote: Quote) -> dict[str, Any]:
    envelope = _validated(_Envelope, _loads(body))
    if envelope.errors:  # beside errors, data is only what was left of it
        raise _sorted_error(envelope.errors, quote)
    if envelope.data is None:
        raise bad_answer("the answer has neither data nor errors")
    return envelope.data


def _sorted_error(errors: list[_Error], quote: Quote) -> StepError:
    codes = {error.code for error in errors}
    text = "; ".join(error.message for error in errors[:3])
    said = quote(text)
    if codes & _RATE_CODES or _RATE_WORDS.search(text):
        return Throttled(gate=GATE, retry_after_s=DEFAULT_WAIT_S, message=f"the upstream asks to wait: {said}")
    if codes & _AUTH_CODES or _AUTH_WORDS.search(text):
        return TokenExpired(f"the upstream does not accept the token: {said}")
    if codes & _OUR_FAULT_CODES:
        return Permanent(f"the upstream does not understand the query: {said}", code="query_refused")
    return Transient(f"the upstream answered with an error: {said}", code="upstream_error")


ShapeT = TypeVar("ShapeT", bound=_Shape)


def _validated(shape: type[ShapeT], value: Any) -> ShapeT:
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise bad_answer(f"the answer has not the expected shape: {where}: {first['msg']}{more}") from None


def _loads(body: bytes) -> Any:
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_no_twins,
            parse_constant=_not_a_number,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError and a JSONDecodeError are ValueErrors
        looks = "an HTML page" if body.lstrip()[:1] == b"<" else f"{len(body)} bytes"
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise bad_answer(f"the answer is not JSON but {looks} ({reason})") from None


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return fields


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _check_unit(offers: list[_Offer], prices: PriceRange) -> None:
    # Dollars taken for cents would be filtered out in silence, page after page.
    near = range((prices.low - 1) * 100, (prices.high + 1) * 100)
    if len(offers) >= FOREIGN_PRICES and all(offer.price not in near for offer in offers):
        raise bad_answer(f"no price of the page is near the asked {prices.low} to {prices.high} dollars (in cents)")


# --- what Postgres can store ------------------------------------------------------------------------------------------


def _storable(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    if _is_plain(payload):
        return payload
    mended: Mapping[str, Any] = _mended(payload, DEEPEST_PAYLOAD)
    return mended


def _is_plain(payload: Mapping[str, Any]) -> bool:
    """Whether there is clearly nothing to mend. Nearly always; walking through every item cost more than its step."""
    try:
        body = orjson.dumps(payload, option=orjson.OPT_STRICT_INTEGER)  # refuses lone surrogates and long integers
    except orjson.JSONEncodeError:
        return False
    return b"\\u0000" not in body and body.count(b"{") + body.count(b"[") <= DEEPEST_PAYLOAD


def _mended(value: Any, depth: int) -> Any:
    """The same value where jsonb takes it: no NUL, no lone surrogate, no integer of more than 64 bits, no abyss."""
    if depth < 0:
        raise bad_answer(f"an item is nested more than {DEEPEST_PAYLOAD} deep")
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return _no_twins_left([(_mended(key, depth), _mended(inner, depth - 1)) for key, inner in value.items()])
    if isinstance(value, list):
        return [_mended(inner, depth - 1) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value


def _no_twins_left(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    try:
        return _no_twins(pairs)
    except ValueError as error:
        raise bad_answer(f"an item cannot be stored: {error}") from None


# --- the token's life -------------------------------------------------------------------------------------------------


def _life_s(token: str) -> int:
    """How long the token lives by its own claims; both come from the upstream's clock, so ours does not matter."""
    try:
        claims = _validated(_Claims, _loads(_claims(token)))
    except (Transient, ValueError):
        return TOKEN_LIVES_S
    return int(min(max(claims.exp - claims.iat, 1), LONGEST_TOKEN_LIFE_S))


def _claims(token: str) -> bytes:
    _, middle, _ = token.split(".")
    return base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))
