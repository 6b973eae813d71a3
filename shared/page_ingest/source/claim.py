"""How much a run of a resource can prove, at best. Pure.

Only two things prove that nothing is missing: a count of the same list that is exact, taken before and after; or a time up
to which every change was read. Without either, a run can say that it walked to the end, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.page_ingest.source import placeholders
from shared.page_ingest.source.model import Claim, Resource

RANK = {Claim.COMPLETE: 2, Claim.THROUGH: 1, Claim.WALKED: 0}
# Words in the name of a time that changes with its row. A guess, so it only ever lowers a claim.
CHANGING = ("updat", "modif", "changed", "edited", "last_activity", "lastactivity")
ENDS = {
    "number": "two pages in a row brought nothing new",
    "offset": "two pages in a row brought nothing new",
    "link": "the upstream named the end",
    "next": "the upstream named the end",
    "token": "the upstream named the end, and no token came twice",
    "after": "the list was in order up to its end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The most that a run can say, why, and what would let it say more ("" if nothing in the file would)."""

    claim: Claim
    reason: str
    short: str  # the reason as the beginning of a sentence about the claim
    better: str = ""

    @property
    def endings(self) -> tuple[Claim, ...]:
        """What a run that succeeds may say. Never more than the first."""
        return self.claim, Claim.DRIFTED, Claim.PARTIAL


def best_claim(resource: Resource, resources: Mapping[str, Resource]) -> Best:
    """Never more than its parent's: the children of a row that was missed are missed too. Parents form no circle here."""
    own = _by_itself(resource)
    if resource.split is None or resource.split.way != "parent":
        return own
    parent = resource.split.parent
    above = best_claim(resources[parent], resources)
    if RANK[above.claim] >= RANK[own.claim]:
        return own if own.claim is not Claim.COMPLETE else _OF_A_PARENT
    return Best(
        claim=above.claim,
        short=f"because of its parent {parent}",
        reason=f"its parent {parent} is at best {above.claim}, and rows of a parent that was missed are missed too",
        better=above.better,
    )


def _by_itself(resource: Resource) -> Best:
    moving = resource.since is not None or window_moves(resource)
    if moving and resource.page.style == "number":
        return Best(
            claim=Claim.WALKED,
            short="with pages by number",
            reason="rows move as they change, and pages by number cannot overlap, so one that moved can be skipped",
            better="Turn pages by offset, link or token if the upstream can.",
        )
    if moving and resource.page.style == "after" and resource.key != (resource.page.at,):
        return Best(
            claim=Claim.WALKED,
            short=f"with pages after {resource.page.at}",
            reason=f"rows with the same {resource.page.at} can stand on both sides of a page's end, and the next page starts"
            " behind them all",
            better="Turn pages after the one field that is the key, or by link or token.",
        )
    if resource.since is not None:
        until = "its start" if resource.since.lag is None else f"its start less {resource.since.lag.text}"
        return Best(
            claim=Claim.THROUGH,
            short="with since",
            reason=f"rows move as {resource.since.field} changes, so a run has every change up to T, {until}",
        )
    if moving:
        return Best(
            claim=Claim.THROUGH,
            short="with windows of a time that changes",
            reason="the windows are cut by a time that changes, and a row that changes leaves its window",
            better="Split by a time that never changes, such as the creation; or say moves = false if this one never does.",
        )
    if resource.page.style == "number" and resource.count is not None:
        return Best(
            claim=Claim.WALKED,
            short="with pages by number",
            reason="pages by number cannot overlap: if a row leaves and another comes, one is skipped and no count shows it",
            better="Turn pages by offset, link or token if the upstream can.",
        )
    if resource.key is None:
        return Best(
            claim=Claim.WALKED,
            short="without a key",
            reason="rows without a key cannot be told apart, so different rows cannot be counted",
            better="Use fields that identify a row as key.",
        )
    if resource.count is None:
        return Best(
            claim=Claim.WALKED,
            short="without a count",
            reason=f"nothing says how many rows there are; a run knows that {ENDS[resource.page.style]}",
            better="Add count if the upstream can count this list.",
        )
    if resource.count.exact is False:
        return Best(
            claim=Claim.WALKED,
            short="with an approximate count",
            reason=f"an approximate count can plan and prove nothing; a run knows that {ENDS[resource.page.style]}",
            better="Use an exact count if the upstream has one.",
        )
    return Best(
        claim=Claim.COMPLETE,
        short="with an exact count",
        reason="each partition is counted before and after, and has exactly as many different rows",
    )


def window_moves(resource: Resource) -> bool:
    """Whether windows are cut by a time that changes: as the file says, or else as the words around `{from}` suggest."""
    split = resource.split
    if split is None or split.way != "window":
        return False
    if split.moves is not None:
        return split.moves
    near = [
        " ".join([name, *(text for _, text in placeholders.leaves(value))]).lower()
        for name, value in resource.request.entries.items()
        if any("from" in placeholders.words(text) for _, text in placeholders.leaves(value))
    ]
    return any(word in text for text in near for word in CHANGING)


_OF_A_PARENT = Best(
    claim=Claim.WALKED,
    short="for rows of a parent",
    reason="rows of a parent are not counted again at the end, so one that moved to another parent can be missed",
)
