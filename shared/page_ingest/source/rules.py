"""What must hold between the keys of a source file. Each rule answers the faults it finds, as (path, message). Pure.

The rules see only files whose every value has its shape, and claims are worked out only if the rules before them hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shared.page_ingest.source import placeholders, shapes
from shared.page_ingest.source.claim import best_claim
from shared.page_ingest.source.lines import Path
from shared.page_ingest.source.model import Claim, Request, Resource, Source
from shared.page_ingest.source.read import REQUESTS

Found = Iterator[tuple[Path, str]]

MOST_GENERATIONS = 3
LONGEST_TABLE = 63  # the longest name Postgres keeps
# Columns that every table of a source has.
OWN_COLUMNS = frozenset(
    {"tenant_id", "connection", "source_key", "rest", "hash", "run_id", "partition", "page", "said_by", "said_at", "missed_by", "gone_at"}
)  # fmt: skip
# Statuses that say nothing about the rows: who asks, too fast, too slow, or a failure of the server.
NO_ANSWER = frozenset({401, 403, 407, 408, 425, 429, *range(500, 600)})


# --- the source -------------------------------------------------------------------------------------------------------


def requests_go_to_listed_hosts(source: Source) -> Found:
    """Every request carries the account's secret, so no key of the file may send one elsewhere."""
    for path, target in _targets(source):
        if target.startswith("https://"):
            asked = target.removeprefix("https://").partition("/")[0]
            if asked not in source.hosts:
                yield path, f"{shapes.shown(asked)} is not one of hosts{shapes.nearest(asked, source.hosts)}"


def _targets(source: Source) -> Iterator[tuple[Path, str]]:
    yield ("auth", "url"), source.auth.url
    yield ("graphql",), source.graphql or ""
    for resource in source.resources.values():
        if resource.request.verb != "graphql":
            yield (*resource.path, resource.request.verb), resource.request.target
        if resource.count and resource.count.request and resource.count.request.verb != "graphql":
            yield (*resource.path, "count", resource.count.request.verb), resource.count.request.target
        yield (*resource.path, "gone", "look"), resource.gone.look


def settings_are_needed(source: Source) -> Found:
    for name in source.settings:
        if name in placeholders.RESERVED:
            yield ("settings", name), f"{{{name}}} is filled in by Baton. Choose another name."
        elif name not in _settings_used(source):
            yield ("settings", name), f"is never used. Put {{{name}}} into a host or a request, or leave it out."


def _settings_used(source: Source) -> set[str]:
    used = {word for host in source.hosts for word in placeholders.words(host)}
    used |= {word for _, target in _targets(source) for word in placeholders.words(target)}
    for resource in source.resources.values():
        used |= placeholders.used(resource.request)
    return used


def hosts_are_filled_in_by_labels(source: Source) -> Found:
    for index, host in enumerate(source.hosts):
        for word in placeholders.words(host):
            if word not in source.settings:
                yield ("hosts", index), f"{{{word}}} is not a setting{shapes.nearest(word, source.settings)}"
            elif source.settings[word] != "label":
                yield ("settings", word), 'is part of a host, so its shape must be "label".'
    fixed = [("auth", "url", source.auth.url), ("graphql", source.graphql or "")]
    for *path, target in fixed:
        for word in placeholders.words(target):
            if word not in source.settings:
                yield tuple(path), f"{{{word}}} is not a setting{shapes.nearest(word, source.settings)}"


def a_reserve_can_be_kept(source: Source) -> Found:
    rate = source.rate
    if rate.reserve and rate.left is None:
        yield ("rate", "reserve"), "needs left: the header that says how many requests are left."
    if rate.left is not None and rate.resets is None:
        yield ("rate", "left"), "needs resets: the header that says when there are more."
    if rate.resets is not None and rate.left is None:
        yield ("rate", "resets"), "needs left: the header that says how many requests are left."


def errors_say_when(source: Source) -> Found:
    for index, error in enumerate(source.errors):
        path: Path = ("errors", index)
        if not error.status and error.has is None and error.where is None:
            yield path, "needs a status, has, or where with equals: otherwise every answer is an error."
        if (error.where is None) != (error.equals is None):
            given, missing = ("where", "equals") if error.equals is None else ("equals", "where")
            yield (*path, given), f"needs {missing}."
        told = error.has is not None or error.where is not None
        if not told and any(200 <= status < 300 for status in error.status):
            yield (*path, "status"), "is a success. Add has or where to say what makes it an error."


def no_refusal_is_an_empty_list(source: Source) -> Found:
    for index, error in enumerate(source.errors):
        refusals = sorted(NO_ANSWER.intersection(error.status))
        if error.means == "empty" and (refusals or not error.status):
            which = f"{refusals[0]} says nothing about the rows" if refusals else "without a status anything could"
            yield ("errors", index, "is"), f'"empty" would hide missing rows: {which}.'


def headers_leave_auth_alone(source: Source) -> Found:
    for name in source.headers:
        if source.auth.way == "header" and name.lower() == source.auth.name.lower():
            yield ("headers", name), "is the header of auth. A secret never stands in the file."
    for resource in source.resources.values():
        if (
            source.auth.way == "query"
            and resource.request.verb == "get"
            and source.auth.name in resource.request.entries
        ):
            yield (
                (*resource.path, "query", source.auth.name),
                "is the parameter of auth. A secret never stands in the file.",
            )
    if source.auth.way == "header" and source.auth.name.lower() in shapes.RESERVED_HEADERS - {"authorization"}:
        yield ("auth", "header"), f"{source.auth.name} is set by Baton. Use another header."


def graphql_asks_somewhere(source: Source) -> Found:
    asks = [each for each in source.resources.values() if each.request.verb == "graphql"]
    for each in asks:
        queries = [((*each.path, "graphql"), each.request.target)]
        if each.count is not None and each.count.request is not None:
            queries.append(((*each.path, "count", "graphql"), each.count.request.target))
        for path, query in queries:
            if not re.match(r"\s*(query\b|\{)", query):
                yield path, 'must start with "query": a source only reads.'
    if asks and source.graphql is None:
        yield (*asks[0].path, "graphql"), 'needs an address: add graphql = "/graphql" at the top of the file.'
    if source.graphql is not None and not asks:
        yield ("graphql",), "is never used: no resource has a graphql query."


def parents_are_there(source: Source) -> Found:
    for resource in source.resources.values():
        path = (*resource.path, "split", "parent")
        line, each = [resource.name], resource
        while each.split is not None and each.split.way == "parent":
            parent = each.split.parent
            if parent not in source.resources:
                yield path, f"{shapes.shown(parent)} is not a resource{shapes.nearest(parent, source.resources)}"
                break
            if parent in line:
                yield path, f"goes round in a circle: {' of '.join([*line, parent])}."
                break
            line, each = [*line, parent], source.resources[parent]
            if len(line) > MOST_GENERATIONS:
                yield path, f"is nested too deeply: at most {MOST_GENERATIONS} generations, this one included."
                break


def parents_are_read_whole(source: Source) -> Found:
    """Who asks for what changed sees only parents that changed; the children of the others may have changed too."""
    for resource in source.resources.values():
        parent = resource.split.parent if resource.split is not None else ""
        if parent in source.resources and source.resources[parent].since is not None:
            yield (
                ("resources", parent, "since"),
                f"cannot be used: {resource.name} needs all rows of {parent}, not only those that changed.",
            )


# --- a resource: what is asked ----------------------------------------------------------------------------------------


def placeholders_are_known(source: Source, resource: Resource) -> Found:
    known = placeholders.known(resource, source.settings)
    for path, text in _filled_in(resource):
        if placeholders.has_stray_brace(text):
            yield path, "has a brace without its other half."
        for word in placeholders.words(text):
            if word not in known:
                yield path, f"{{{word[:40]}}} is unknown{shapes.nearest(word, known)}"


def _filled_in(resource: Resource) -> Found:
    for path, text in placeholders.texts(resource.request, REQUESTS[resource.request.verb]):
        yield (*resource.path, *path), text
    count = resource.count.request if resource.count else None
    if count is not None:
        for path, text in placeholders.texts(count, REQUESTS[count.verb]):
            yield (*resource.path, "count", *path), text


def pages_are_turned(_: Source, resource: Resource) -> Found:
    """What moves the list on must be sent; a token or key must be sent alone, because the first page has none."""
    used, page, verb = placeholders.used(resource.request), resource.page, resource.request.verb
    for word in (*placeholders.of_page(page), *(("size",) if page.size else ())):
        if word not in used:
            path = (*resource.path, "page", "size" if word == "size" else page.style)
            yield path, f"is never sent. Put {{{word}}} into {REQUESTS[verb]}."
    if page.style in {"token", "after"}:
        for path, text in _filled_in(resource):
            if page.style in placeholders.words(text) and (text != f"{{{page.style}}}" or path[2:] == (verb,)):
                yield path, f"{{{page.style}}} must be a value of its own: the first page is asked without it."
    if page.size is not None and page.size < smallest_page(page.style):
        least = smallest_page(page.style)
        yield (*resource.path, "page", "size"), f"must be at least {least}: a page starts with rows of the one before."
    if page.more is not None and page.end is not None:
        yield (*resource.path, "page", "end"), "cannot stand beside more. Use the one that the upstream sends."
    if page.sorted_by not in {None, "upstream", *resource.request.entries}:
        known = ["upstream", *resource.request.entries]
        hint = shapes.nearest(page.sorted_by, known)
        yield (*resource.path, "page", "sorted_by"), f"{shapes.shown(page.sorted_by)} is not sent{hint}"
    elif any(
        placeholders.words(text) for _, text in placeholders.leaves(resource.request.entries.get(page.sorted_by or ""))
    ):
        yield (
            (*resource.path, "page", "sorted_by"),
            "chooses rows, because it is filled in. Name the parameter that sorts.",
        )


def smallest_page(style: str) -> int:
    """Pages by offset overlap; a page that is all overlap would never move on."""
    return 4 if style == "offset" else 1


def variables_are_declared(_: Source, resource: Resource) -> Found:
    if resource.request.verb == "graphql":
        for name in resource.request.entries:
            if not _uses_variable(resource.request.target, name):
                yield (*resource.path, "variables", name), f"${name} is not declared and used in the graphql query."


def _uses_variable(query: str, name: str) -> bool:
    declared = re.findall(rf"\${re.escape(name)}\b(\s*:)?", query)
    return any(declared) and not all(declared)


def key_sets_do_not_move(_: Source, resource: Resource) -> Found:
    """Who continues after a value that changes, or runs towards newer rows that jump ahead of him, misses rows."""
    page, moving = resource.page, resource.since.field if resource.since else None
    if page.style != "after" or page.order is None:
        return
    if page.at not in (resource.key or ()) and page.at != moving:
        yield (*resource.path, "page", "after"), "must be a field of key: only what identifies a row never changes."
    if page.order == ("desc", moving):
        yield (*resource.path, "page", "order"), 'must be "asc": a row that changes would jump to where you have been.'


# --- a resource: partitions, time and counts --------------------------------------------------------------------------


def partitions_are_asked_for(_: Source, resource: Resource) -> Found:
    used = placeholders.used(resource.request)
    for word in placeholders.of_split(resource.split):
        if word not in used:
            yield (
                (*resource.path, "split"),
                f"is never asked for: put {{{word}}} into the request, or each partition reads all.",
            )


def partitions_fit(_: Source, resource: Resource) -> Found:
    split = resource.split
    if split is None:
        return
    path = (*resource.path, "split")
    if split.window is not None and split.format == "date" and not split.window.whole_days:
        yield (*path, "window"), 'must be whole days, because as = "date" sends days.'
    if split.to_included and split.format == "time":
        yield (*path, "to"), 'cannot be "included" with times: what happens at that very instant would be read twice.'
    inner = split.then
    yield from _what_is_left_is_divided(resource, path)
    for each, where in ((split, path), (inner, (*path, "then"))):
        if each is None or resource.count is not None:
            continue
        if each.way == "numbers":
            yield (*where, "numbers"), "needs count: numbers are divided by how many rows they hold."
        elif each.most is not None:
            yield (*where, "most"), "needs count: without one nobody knows how many rows a partition has."
    if inner is not None and inner.way == "numbers" and inner.most is None and split.most is None:
        yield (*path, "then", "numbers"), "needs most: how many rows are too many for one partition."
    if split.way == "numbers" and split.most is None:
        yield (*path, "numbers"), "needs most: how many rows are too many for one partition."


def _what_is_left_is_divided(resource: Resource, path: Path) -> Found:
    """`then` is for partitions that are still too large: the others are asked without its words."""
    split = resource.split
    if split is None or split.then is None:
        return
    if split.way in {split.then.way, "parent"}:
        by = (
            "values, and so does split itself"
            if split.way == "values"
            else "something, and rows of a parent are not divided"
        )
        yield (*path, "then"), f"divides by {by}. Leave it out."
    elif split.most is None:
        yield (*path, "then"), "is never used: add most, which says how many rows are too many for one partition."
    for where, text in _filled_in(resource):
        named = set(placeholders.words(text)) & set(placeholders.OF_SPLITS[split.then.way])
        if named and (text != f"{{{min(named)}}}" or len(where) == 3):
            yield (
                where,
                f"{{{min(named)}}} must be a value of its own: a partition that is small enough is asked without it.",
            )


def caps_are_kept(_: Source, resource: Resource) -> Found:
    """A list that ends before its rows do is not read to its end, however politely it ends."""
    page, split = resource.page, resource.split
    if page.most is None:
        return
    path = (*resource.path, "page", "most")
    if page.size is not None and page.size > page.most:
        yield path, f"is less than one page of {page.size:,}."
    if split is None:
        yield path, f"means that this list ends at {page.most:,} rows. Add split, so that each part is smaller."
    elif split.most is not None and split.most > page.most:
        where = (*resource.path, "split", "most")
        yield where, f"is too many: this list ends at {page.most:,} rows, and the rest would be lost."


def changes_are_asked_for(_: Source, resource: Resource) -> Found:
    if resource.since is None:
        return
    path = (*resource.path, "since")
    if "since" not in placeholders.used(resource.request):
        yield path, "is never asked for: put {since} into the request."
    for where, text in placeholders.texts(resource.request, REQUESTS[resource.request.verb]):
        partly = "since" in placeholders.words(text) and (text != "{since}" or len(where) == 1)
        if partly and resource.since.first is None:
            yield path, 'needs first: the first run has no earlier one, for example first = "2015-01-01".'
    if resource.since.format == "date" and resource.since.lookback.usual_seconds < 86_400:
        yield (*path, "lookback"), 'must be a day at least (P1D), because as = "date" sends days.'


def counts_count_the_list(_: Source, resource: Resource) -> Found:
    """A count of another list proves nothing. The list's filter is the count's, and cannot be changed there."""
    count = resource.count
    if count is None or count.request is None:
        return
    verb, path = count.request.verb, (*resource.path, "count")
    filters = {
        name: value
        for name, value in resource.request.entries.items()
        if placeholders.is_filter(value) and name != resource.page.sorted_by
    }
    if verb == "graphql":
        for name in filters:
            if not _uses_variable(count.request.target, name):
                yield (*path, "graphql"), f"does not use ${name}, so it counts another list."
        if count.request.entries:
            yield (*path, "variables"), "are those of the list. Leave them out."
        return
    for word in placeholders.words(resource.request.target):
        if word not in placeholders.words(count.request.target):
            yield (*path, verb), f"must have {{{word}}}, as the list has it, or it counts another list."
    for name, value in count.request.entries.items():
        if verb == "get" and name in filters:
            yield (*path, "query", name), "is already sent as the list sends it. A count cannot ask for other rows."
        elif placeholders.PAGING & {
            word for _, text in placeholders.leaves(value) for word in placeholders.words(text)
        }:
            yield (*path, REQUESTS[verb], name), "turns pages; a count has none."
    if verb == "post" and count.exact is not False:
        for name in _different(filters, count.request):
            yield (*path, "body"), f"must have {name} as the list has it, or it counts another list."
    if verb == "post" and count.exact is False:
        asked = placeholders.used(count.request)
        for word in placeholders.of_split(resource.split):
            if word not in asked:
                yield (*path, "body"), f"must ask for the partition: {{{word}}} is missing."


def _different(filters: Mapping[str, Any], request: Request) -> list[str]:
    return [name for name, value in filters.items() if name not in request.entries or request.entries[name] != value]


# --- a resource: what is kept -----------------------------------------------------------------------------------------


def tables_can_be_made(source: Source, resource: Resource) -> Found:
    if len(f"{source.name}_{resource.name}") > LONGEST_TABLE:
        yield resource.path, f"makes a table name of more than {LONGEST_TABLE} characters with {source.name}."
    for column in resource.columns:
        if column.name in OWN_COLUMNS:
            yield (*resource.path, "columns", column.name), "is a column that every table has. Choose another name."
    if resource.contract != "evolve" and not resource.columns:
        yield (*resource.path, "columns"), f'is missing: contract = "{resource.contract}" has nothing to hold rows to.'


def gone_has_a_witness(source: Source, resource: Resource) -> Found:
    """Absence proves something only in a list that is proven complete."""
    gone, path = resource.gone, (*resource.path, "gone")
    if gone.way == "never":
        return
    if resource.key is None:
        yield path, 'must be "never": with key = "hash" rows are only added.'
        return
    if gone.way == "unseen":
        best = best_claim(resource, source.resources)
        if best.claim is not Claim.COMPLETE:
            yield (
                path,
                f'"unseen" needs complete runs, and {best.short} the best claim is "{best.claim}". {_instead(resource)}',
            )
    if gone.way == "look":
        yield from _looks_can_be_made(source, resource)


def _instead(resource: Resource) -> str:
    if resource.since is None and resource.count is None:
        return "Add count, use look, or drop gone."
    return "Use look, or drop gone."


def _looks_can_be_made(source: Source, resource: Resource) -> Found:
    path = (*resource.path, "gone")
    columns = {column.name for column in resource.columns}
    words = placeholders.words(resource.gone.look)
    unknown = [word for word in words if word not in columns and word not in source.settings]
    for word in words:
        if word in columns and word in source.settings:
            yield (*path, "look"), f"{{{word}}} is a column and a setting. Rename the column."
    for word in unknown:
        hint = shapes.nearest(word, {*columns, *source.settings})
        yield (*path, "look"), f"{{{word[:40]}}} is neither a column nor a setting{hint}"
    if not unknown and (placeholders.has_stray_brace(resource.gone.look) or not columns.intersection(words)):
        yield (*path, "look"), "must name a row by one of its columns, for example {number}."
    refusals = sorted(NO_ANSWER.intersection(resource.gone.status))
    if refusals:
        yield (*path, "status"), f"{refusals[0]} says nothing about the row. Use 404 or 410."


OF_THE_SOURCE: tuple[Callable[[Source], Found], ...] = (
    requests_go_to_listed_hosts,
    settings_are_needed,
    hosts_are_filled_in_by_labels,
    a_reserve_can_be_kept,
    errors_say_when,
    no_refusal_is_an_empty_list,
    headers_leave_auth_alone,
    graphql_asks_somewhere,
    parents_are_there,
    parents_are_read_whole,
)
OF_A_RESOURCE: tuple[Callable[[Source, Resource], Found], ...] = (
    placeholders_are_known,
    pages_are_turned,
    variables_are_declared,
    key_sets_do_not_move,
    partitions_are_asked_for,
    partitions_fit,
    caps_are_kept,
    changes_are_asked_for,
    counts_count_the_list,
    tables_can_be_made,
)


def faults_of(source: Source) -> list[tuple[Path, str]]:
    found = [each for rule in OF_THE_SOURCE for each in rule(source)]
    found += [
        each for rule in OF_A_RESOURCE for resource in source.resources.values() for each in rule(source, resource)
    ]
    if not found:  # what is claimed follows from a file that makes sense
        found = [each for resource in source.resources.values() for each in gone_has_a_witness(source, resource)]
    return found
