"""How a spreadsheet shows a number: the decimals, leading zeros, percents and words of its format, as plain text.

What is only decoration goes: thousands separators, currency signs, colors and padding. A negative number has its sign, however its
format shows that it is one. Formats that show less than a number is (fractions, scientific, in thousands) are not followed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

LONGEST_CODE: Final = 255  # as spreadsheet programs have it
LARGEST: Final = 1e15  # what is beyond has no digit left to be rounded
# What a file names by a number alone. 37 to 44 are those of accountants.
BUILT_IN: Final = {
    **dict.fromkeys((1, 3, 5, 6, 37, 38, 41, 42), "0"), **dict.fromkeys((2, 4, 7, 8, 39, 40, 43, 44), "0.00"), 9: "0%", 10: "0.00%",
}  # fmt: skip

_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|[_*].|\[(?P<bracket>[^\]]*)\]|(?P<digit>[0#?])|(?P<sign>[.,%;])|(?P<other>.)', re.DOTALL
)  # fmt: skip
_NOT_FOLLOWED = re.compile(r"[Ee][+-]|/|@|general", re.IGNORECASE)
_ENOUGH = Context(prec=2 * LONGEST_CODE)


@dataclass(frozen=True, slots=True)
class Section:
    """`whole`: the digits before the point, and what stands between them. `least`, `most`: decimals."""

    before: str
    whole: tuple[str, ...]
    least: int
    most: int
    is_percent: bool
    after: str

    @property
    def has_digits(self) -> bool:
        """A `?` alone only leaves room: accountants' zero is `"-"??`."""
        return "0" in self.whole or "#" in self.whole or self.most > 0

    def show(self, value: Decimal) -> str:
        scaled = value.scaleb(2) if self.is_percent else value
        text = format(scaled.quantize(Decimal(1).scaleb(-self.most), ROUND_HALF_UP, _ENOUGH), "f")
        number, _, decimals = text.partition(".")
        decimals = decimals[: self.least] + decimals[self.least :].rstrip("0")
        return f"{self.before}{self._filled(number)}{'.' if decimals else ''}{decimals}{'%' * self.is_percent}{self.after}".strip()

    def _filled(self, number: str) -> str:
        places = [sign for sign in self.whole if sign in "0#?"]
        digits = list(number.zfill(len(places) - places.index("0") if "0" in places else 1))
        shown = [sign if sign not in "0#?" else digits.pop() if digits else "" for sign in reversed(self.whole)]
        return "".join([*digits, *reversed(shown)])


@dataclass(frozen=True, slots=True)
class Look:
    """A format of up to three sections: for what is above zero, below, and zero itself."""

    sections: tuple[Section, ...]

    def show(self, value: float) -> str | None:
        """None: the format says nothing about this one."""
        if abs(value) >= LARGEST:
            return None
        exact, first = Decimal(format(value, ".15g")), self.sections[0]
        at = 1 if value < 0 else 2 if value == 0 else 0
        section = self.sections[at] if at < len(self.sections) else first
        if not section.has_digits:
            if words := f"{section.before}{section.after}".strip():
                return words
            section = first
        shown = section.show(abs(exact))
        return f"-{shown}" if value < 0 and any(sign in "123456789" for sign in shown) else shown


def look(code: str) -> Look | None:
    """None: the format shows numbers as they are, or in a way that is not followed."""
    if len(code) > LONGEST_CODE:
        return None
    sections = _sections(code)
    found = [_section(each) for each in sections[:3]]
    if any(each is None for each in found) or not found[0] or not found[0].has_digits:
        return None
    return Look(tuple(each for each in found if each is not None))


def _sections(code: str) -> list[list[re.Match[str]]]:
    sections: list[list[re.Match[str]]] = [[]]
    for token in _TOKEN.finditer(code):
        if token["sign"] == ";":
            sections.append([])
        else:
            sections[-1].append(token)
    return sections


def _section(tokens: Sequence[re.Match[str]]) -> Section | None:
    bare = "".join(token["other"] or token["sign"] or "" for token in tokens)
    if _NOT_FOLLOWED.search(bare) or any((token["bracket"] or "").startswith(("<", ">", "=")) for token in tokens):
        return None
    places = [at for at, token in enumerate(tokens) if token["digit"]]
    point = next((at for at, token in enumerate(tokens) if token["sign"] == "."), None)
    first, last = (places[0], places[-1]) if places else (len(tokens), len(tokens))
    whole = tokens[first : min(last + 1, last + 1 if point is None else point)]
    decimals = [] if point is None else tokens[point + 1 : last + 1]
    if whole and any(token["sign"] == "," for token in tokens[first + len(whole) - 1 : first + len(whole) + 1]):
        return None  # it shows thousands
    if any(not token["digit"] for token in decimals):
        return None
    between = tuple(token["digit"] or _text(token) for token in whole if token["digit"] or _text(token))
    is_spelled = any(sign not in "0#?" for sign in between)
    wanted = [token["digit"] for token in decimals]
    return Section(
        before=_words(tokens[:first], is_spelled=is_spelled),
        whole=between,
        least=len(wanted) - wanted[::-1].index("0") if "0" in wanted else 0,
        most=len(wanted),
        is_percent=any(token["sign"] == "%" for token in tokens),
        after=_words(tokens[last + 1 :], is_spelled=is_spelled),
    )


def _text(token: re.Match[str]) -> str:
    text = next((token[name] for name in ("quoted", "escaped", "other") if token[name]), "")
    return "".join(sign for sign in text if unicodedata.category(sign) != "Sc")


def _words(tokens: Sequence[re.Match[str]], *, is_spelled: bool) -> str:
    """What stands beside a number. Brackets and signs are part of how a number is spelled (a phone's), or say that it is negative."""
    text = "".join(map(_text, tokens))
    return text if is_spelled or any(sign.isalnum() for sign in text) else ""
