"""The steps that a run of a resource would take, in words: what a reviewer reads beside the claim. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.page_ingest.source.claim import Best
from shared.page_ingest.source.model import Claim, Page, Resource, Source, Split

TURNS = {
    "number": "the next page by its number",
    "offset": "the next page by its offset, starting with the last rows of the one before",
    "link": "the next page by the Link header",
    "next": "the next page by the URL in {at}",
    "token": "the next page by the token in {at}",
    "after": "the next page after the last {at}",
}
ENDS = {
    "number": "ends where nothing new comes twice; a short page is not the end",
    "offset": "ends where nothing new comes twice; a short page is not the end",
    "link": "ends at a page without a next link",
    "next": "ends at a page without a next URL",
    "token": "ends at a page without a token",
    "after": "ends at a page without rows; a short page is not the end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    name: str
    does: str


def phases(source: Source, resource: Resource, best: Best) -> Sequence[Phase]:
    """Plan, part, audit, consolidate. Only what can be complete is audited: elsewhere a second count would prove nothing."""
    audit = Phase(name="audit", does="counts every partition again; one whose count has changed is read again")
    return (
        Phase(name="plan", does=_plan(resource.split)),
        Phase(name="part", does=f"{_asks(source, resource)}; {_turns(resource.page)}; {_ends(resource.page)}"),
        *([audit] if best.claim is Claim.COMPLETE else []),
        Phase(name="consolidate", does=f"{_keeps(source, resource)}; {_gone(resource)}"),
    )


def in_order(resources: Mapping[str, Resource]) -> Sequence[Resource]:
    """Parents before their children, otherwise as the file has them."""
    done: dict[str, Resource] = {}
    waiting = list(resources.values())
    while waiting:
        ready = [each for each in waiting if _parent(each) is None or _parent(each) in done]
        done |= {each.name: each for each in ready}
        waiting = [each for each in waiting if each.name not in done]
    return tuple(done.values())


def table(source: Source, resource: Resource) -> str:
    return f"{source.name}_{resource.name}"


def _parent(resource: Resource) -> str | None:
    return resource.split.parent if resource.split is not None and resource.split.way == "parent" else None


def _plan(split: Split | None) -> str:
    if split is None:
        return "makes one partition, the whole list"
    too_many = f" with more than {split.most:,} rows" if split.most else ""
    ways = {
        "window": f"cuts the time asked for into windows of {split.window.text if split.window else ''}"
        + (f", and halves those{too_many}" if too_many else ""),
        "numbers": f"halves the numbers{too_many}",
        "values": f"makes a partition for each of {len(split.values):,} values",
        "parent": f"takes {split.parent_key} of the rows of {split.parent}, many to a lane",
    }
    again = f"; what is still too large is divided by {split.then.way}" if split.then else ""
    return ways[split.way] + again


def _asks(source: Source, resource: Resource) -> str:
    request = resource.request
    if request.verb == "graphql":
        asked = f"POST {source.graphql} with the graphql query"
    else:
        asked = f"{request.verb.upper()} {request.target}"
    return asked + (f", {resource.page.size:,} rows a page" if resource.page.size else "")


def _turns(page: Page) -> str:
    return TURNS[page.style].replace("{at}", page.at)


def _ends(page: Page) -> str:
    if page.more is not None:
        ends = f"ends where {page.more} is false"
    elif page.end is not None:
        ends = f"ends where {page.end} is true"
    else:
        ends = ENDS[page.style]
    return ends + (f"; {page.most:,} rows are an error, not the end" if page.most else "")


def _keeps(source: Source, resource: Resource) -> str:
    if resource.key is None:
        return f"adds rows to {table(source, resource)} by their hash"
    return f"upserts into {table(source, resource)} by {', '.join(resource.key)}"


def _gone(resource: Resource) -> str:
    gone = resource.gone
    fuse = f"stops if it is more than {gone.most:g} % of the table"
    return {
        "never": "no row is ever judged gone",
        "unseen": f"what two complete runs did not see is gone; {fuse}",
        "look": f"what a full walk did not see is looked up, and gone at {' or '.join(map(str, gone.status))}; {fuse}",
        "flag": f"a row is gone when {gone.flag} is {str(gone.equals).lower()}",
    }[gone.way]
