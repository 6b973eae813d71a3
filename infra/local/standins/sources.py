"""Stand-ins for the upstreams of sources: ten public APIs as their documentation has them, and one that can do anything.

One server plays all hosts: `https://api.github.com/…` is asked as `/api.github.com/…`. An API is its truth (`rows`) and its
wire protocol (`answer`). All of them agree on what a row is: an id, when it was made, when it changed.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar
from urllib.parse import urlencode

from infra.local.standins.server import Reply, Request, StandIn, run_by_hand

EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
SECRET = "stand-in-secret"  # noqa: S105 - it opens nothing
DAYS = 60


@dataclass(slots=True)
class Row:
    """The truth about one row. `made` never changes."""

    id: int
    made: datetime
    changed: datetime
    fields: dict[str, Any] = field(default_factory=dict)


def stock(rows: int, seed: int = 0, days: int = DAYS) -> list[Row]:
    """Rows made over some weeks, several at the same second now and then."""
    rng = Random(seed)  # noqa: S311 - no secret
    made = sorted(rng.randrange(days * 86_400) for _ in range(rows))
    times = [EPOCH + timedelta(seconds=second) for second in made]
    return [Row(n, at, at + timedelta(seconds=rng.randrange(86_400))) for n, at in enumerate(times, 1)]


def iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def refused(status: int, message: str, **more: Any) -> Reply:
    return Reply.json({"message": message, **more}, status)


@dataclass(slots=True)
class Api:
    """An upstream: its rows, and how it is asked for them. `now`: what it takes for the time."""

    rows: list[Row] = field(default_factory=lambda: stock(300))
    now: Callable[[], datetime] = lambda: EPOCH + timedelta(days=400)
    asked: list[tuple[str, str, dict[str, list[str]]]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    hosts: ClassVar[str]

    def answer(self, request: Request, path: str) -> Reply:
        raise NotImplementedError

    def body(self, row: Row) -> dict[str, Any]:
        return {"id": row.id, **row.fields}

    # What changes.

    def insert(self, at: datetime | None = None) -> Row:
        when = at or self.now()
        row = Row(max((each.id for each in self.rows), default=0) + 1, when, when)
        self.rows.append(row)
        return row

    def delete(self, row: Row) -> None:
        self.rows.remove(row)
        self.gone.add(row.id)

    def touch(self, row: Row) -> None:
        row.changed = self.now()


def keyset(rows: list[Row], after: str | None, size: int, order: Callable[[Row], Any]) -> tuple[list[Row], str | None]:
    """A page of an ordered list, and a token that names the place behind its last row."""
    ordered = sorted(rows, key=order)
    if after is not None:
        place = json.loads(base64.urlsafe_b64decode(after))
        ordered = [row for row in ordered if [*order(row)] > place]
    page = ordered[:size]
    more = len(ordered) > size
    return page, base64.urlsafe_b64encode(json.dumps([*order(page[-1])]).encode()).decode() if more else None


def by_change(row: Row) -> tuple[str, int]:
    return iso(row.changed), row.id


def by_making(row: Row) -> tuple[str, int]:
    return iso(row.made), row.id


def one(request: Request, name: str, default: str | None = None) -> str | None:
    return request.query[name][0] if name in request.query else default


class GitHub(Api):
    hosts = "api.github.com"

    def answer(self, request: Request, path: str) -> Reply:
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return refused(401, "Bad credentials")
        if number := re.fullmatch(r"/repos/acme/shop/issues/(\d+)", path):
            found = next((row for row in self.rows if row.id == int(number[1])), None)
            return refused(404, "Not Found") if found is None else Reply.json(self.body(found))
        if path not in ("/repos/acme/shop/issues", "/repositories/7/issues"):
            return refused(404, "Not Found")
        if "page" in request.query:
            return refused(422, "Pagination with the page parameter is not supported for large datasets")
        size = min(int(one(request, "per_page") or 30), 100)
        since = one(request, "since")
        rows = [row for row in self.rows if since is None or row.changed >= parsed(since)]
        page, token = keyset(rows, one(request, "after"), size, by_change)
        headers = {"X-RateLimit-Remaining": "4000", "X-RateLimit-Reset": str(int(self.now().timestamp()) + 60)}
        if token is not None:
            query = {name: values[0] for name, values in request.query.items()} | {"after": token}
            link = f"https://api.github.com/repositories/7/issues?{urlencode(query)}"
            headers["Link"] = (
                f'<{link}>; rel="next", <https://api.github.com/repositories/7/issues?before=x>; rel="prev"'
            )
        reply = Reply.json([self.body(row) for row in page])
        return Reply(body=reply.body, headers=headers)

    def body(self, row: Row) -> dict[str, Any]:
        pull = {"pull_request": {"url": "x"}} if row.id % 7 == 0 else {}
        changed = iso(row.changed)
        return {
            "id": 10_000 + row.id,
            "number": row.id,
            "state": "open",
            "title": f"issue {row.id}",
            "updated_at": changed,
            **pull,
        }


class Stripe(Api):
    hosts = "api.stripe.com"

    def answer(self, request: Request, path: str) -> Reply:
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return Reply.json({"error": {"message": "Invalid API Key"}}, 401)
        if path != "/v1/charges":
            return refused(404, "no such path")
        size, low, high = (
            int(one(request, "limit") or 10),
            int(one(request, "created[gte]") or 0),
            one(request, "created[lt]"),
        )
        rows = [row for row in self.rows if low <= row.made.timestamp() < int(high or 10**12)]
        rows.sort(key=lambda row: (-int(row.made.timestamp()), -row.id))
        after = one(request, "starting_after")
        if after is not None:
            names = [f"ch_{row.id}" for row in rows]
            if after not in names:
                return Reply.json({"error": {"code": "resource_missing", "message": f"No such charge: {after}"}}, 400)
            rows = rows[names.index(after) + 1 :]
        return Reply.json({"data": [self.body(row) for row in rows[:size]], "has_more": len(rows) > size})

    def body(self, row: Row) -> dict[str, Any]:
        return {
            "id": f"ch_{row.id}",
            "amount": row.id,
            "currency": "eur",
            "status": "paid",
            "created": int(row.made.timestamp()),
        }


class Shopify(Api):
    hosts = "acme.myshopify.com"
    exactly = 10_000

    def answer(self, request: Request, path: str) -> Reply:
        if request.headers.get("x-shopify-access-token") != SECRET:
            return Reply.json({"errors": "Invalid API key"}, 401)
        if path != "/admin/api/2025-07/graphql.json":
            return refused(404, "no such path")
        asked = json.loads(request.body)
        variables = asked["variables"]
        low, high = re.fullmatch(r"created_at:>='(.+)' created_at:<'(.+)'", variables["q"]).groups()  # type: ignore[union-attr]
        rows = [row for row in self.rows if parsed(low) <= row.made < parsed(high)]
        if "ordersCount" in asked["query"]:
            precise = "EXACT" if len(rows) <= self.exactly else "AT_LEAST"
            return Reply.json({"data": {"ordersCount": {"count": min(len(rows), self.exactly), "precision": precise}}})
        page, token = keyset(rows, variables.get("c"), variables["n"], by_making)
        info = {"hasNextPage": token is not None, "endCursor": token or ("end" if page else None)}
        return Reply.json({"data": {"orders": {"nodes": [self.body(row) for row in page], "pageInfo": info}}})

    def body(self, row: Row) -> dict[str, Any]:
        return {
            "id": f"gid://shopify/Order/{row.id}",
            "name": f"#{row.id}",
            "createdAt": iso(row.made),
            "updatedAt": iso(row.changed),
            "displayFinancialStatus": "PAID",
        }


@dataclass(slots=True)
class Salesforce(Api):
    hosts: ClassVar[str] = "acme.my.salesforce.com"
    batch: int = 50
    token: str = "sf-token-1"  # noqa: S105 - as above
    logins: int = 0
    results: dict[str, list[Row]] = field(default_factory=dict)

    def answer(self, request: Request, path: str) -> Reply:
        if path == "/services/oauth2/token":
            form = request.body.decode()
            if f"client_secret={SECRET}" not in form:
                return Reply.json({"error": "invalid_client", "error_description": "bad secret"}, 400)
            self.logins += 1
            return Reply.json({"access_token": self.token, "token_type": "Bearer"})
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return Reply.json([{"errorCode": "INVALID_SESSION_ID", "message": "Session expired"}], 401)
        if found := re.fullmatch(r"/services/data/v62.0/query/(q\d+)-(\d+)", path):
            if found[1] not in self.results:
                return Reply.json([{"errorCode": "INVALID_QUERY_LOCATOR", "message": "invalid query locator"}], 400)
            return self._page(found[1], int(found[2]))
        said = one(request, "q") or ""
        low, high = re.search(r"CreatedDate >= (\S+) AND CreatedDate < (\S+) ORDER BY Id", said).groups()  # type: ignore[union-attr]
        name = f"q{len(self.results) + 1}"
        self.results[name] = [row for row in self.rows if parsed(low) <= row.made < parsed(high)]
        return self._page(name, 0)

    def _page(self, name: str, at: int) -> Reply:
        rows = self.results[name]
        page, done = rows[at : at + self.batch], at + self.batch >= len(rows)
        more = {} if done else {"nextRecordsUrl": f"/services/data/v62.0/query/{name}-{at + self.batch}"}
        return Reply.json({"totalSize": len(rows), "done": done, "records": [self.body(row) for row in page], **more})

    def body(self, row: Row) -> dict[str, Any]:
        return {
            "attributes": {"type": "Account"},
            "Id": f"001{row.id:015d}",
            "Name": f"Account {row.id}",
            "Industry": None,
            "CreatedDate": row.made.strftime("%Y-%m-%dT%H:%M:%S.000+0000"),
        }


class HubSpot(Api):
    hosts = "api.hubapi.com"
    cap = 10_000

    def answer(self, request: Request, path: str) -> Reply:
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return refused(401, "expired")
        if path != "/crm/v3/objects/contacts/search" or request.method != "POST":
            return refused(404, "no such path")
        asked = json.loads(request.body)
        bounds = {each["operator"]: int(each["value"]) for each in asked["filterGroups"][0]["filters"]}
        rows = [row for row in self.rows if bounds["GTE"] <= row.made.timestamp() * 1000 < bounds["LT"]]
        rows.sort(key=by_making)
        at = int(asked.get("after", 0))
        if at + asked["limit"] > self.cap:
            return refused(400, "the search ends at 10,000 rows")
        more = {"paging": {"next": {"after": str(at + asked["limit"])}}} if at + asked["limit"] < len(rows) else {}
        page = rows[at : at + asked["limit"]]
        return Reply.json({"total": len(rows), "results": [self.body(row) for row in page], **more})

    def body(self, row: Row) -> dict[str, Any]:
        return {"id": str(row.id), "properties": {"email": f"{row.id}@example.com"}, "createdAt": iso(row.made)}


class Jira(Api):
    hosts = "acme.atlassian.net"

    def answer(self, request: Request, path: str) -> Reply:
        wanted = base64.b64encode(f"me@example.com:{SECRET}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {wanted}":
            return refused(401, "no")
        if found := re.fullmatch(r"/rest/api/3/issue/SHOP-(\d+)", path):
            there = any(row.id == int(found[1]) for row in self.rows)
            return Reply.json({"id": found[1]}) if there else refused(404, "Issue does not exist")
        asked = json.loads(request.body)
        since = parsed(re.search(r"updated >= '([0-9-]+)'", asked["jql"])[1])  # type: ignore[index]
        rows = [row for row in self.rows if row.changed >= since]
        if path == "/rest/api/3/search/approximate-count":
            return Reply.json({"count": len(rows) + 3})
        if path != "/rest/api/3/search/jql":
            return refused(404, "no such path")
        page, token = keyset(rows, asked.get("nextPageToken"), asked["maxResults"], by_change)
        more = {} if token is None else {"nextPageToken": token}
        return Reply.json({"issues": [self.body(row) for row in page], "isLast": token is None, **more})

    def body(self, row: Row) -> dict[str, Any]:
        fields = {"summary": f"s{row.id}", "status": {"name": "Done"}, "updated": iso(row.changed)}
        return {"id": str(row.id), "key": f"SHOP-{row.id}", "fields": fields}


class Zendesk(Api):
    hosts = "acme.zendesk.com"

    def answer(self, request: Request, path: str) -> Reply:
        wanted = base64.b64encode(f"me@example.com/token:{SECRET}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {wanted}":
            return refused(401, "no")
        if path != "/api/v2/incremental/tickets/cursor.json":
            return refused(404, "no such path")
        start, size = int(one(request, "start_time") or 0), int(one(request, "per_page") or 1000)
        last = self.now() - timedelta(minutes=1)
        rows = [row for row in self.rows if start <= row.changed.timestamp() and row.changed < last]
        page, token = keyset(rows, one(request, "cursor"), size, by_change)
        at_end = token is None
        told = token or (keyset(page, None, len(page) - 1, by_change)[1] if len(page) > 1 else one(request, "cursor"))
        return Reply.json({"tickets": [self.body(row) for row in page], "after_cursor": told, "end_of_stream": at_end})

    def body(self, row: Row) -> dict[str, Any]:
        return {
            "id": row.id,
            "subject": f"t{row.id}",
            "status": row.fields.get("status", "open"),
            "updated_at": iso(row.changed),
        }


class Socrata(Api):
    hosts = "data.cityofnewyork.us"

    def answer(self, request: Request, path: str) -> Reply:
        if request.headers.get("x-app-token") != SECRET:
            return refused(403, "bad token")
        if path != "/resource/erm2-nwe9.json":
            return refused(404, "no such dataset")
        low, high = re.fullmatch(
            r"created_date >= '(.+)' AND created_date < '(.+)'", one(request, "$where") or ""
        ).groups()  # type: ignore[union-attr]
        rows = [row for row in self.rows if parsed(low) <= row.made < parsed(high)]
        if one(request, "$select") == "count(*)":
            return Reply.json([{"count": str(len(rows))}])
        if one(request, "$order") != ":id":
            Random(len(self.asked)).shuffle(rows)  # noqa: S311 - no secret
        at, size = int(one(request, "$offset") or 0), int(one(request, "$limit") or 1000)
        return Reply.json([self.body(row) for row in rows[at : at + size]])

    def body(self, row: Row) -> dict[str, Any]:
        return {
            "unique_key": str(row.id),
            "created_date": row.made.strftime("%Y-%m-%dT%H:%M:%S.000"),
            "agency": "DOT",
            "status": "Open",
        }


class OpenAlex(Api):
    hosts = "api.openalex.org"

    def answer(self, request: Request, path: str) -> Reply:
        if path != "/works":
            return refused(404, "no such path")
        said = re.fullmatch(r"from_publication_date:(\S+),to_publication_date:(\S+)", one(request, "filter") or "")
        low, high = parsed(said[1]), parsed(said[2]) + timedelta(days=1)  # type: ignore[index]
        rows = [row for row in self.rows if low <= row.made < high]
        cursor, size = one(request, "cursor"), int(one(request, "per_page") or 25)
        page, token = keyset(rows, None if cursor in (None, "*") else cursor, size, by_making)
        meta = {"count": len(rows), "per_page": size, "next_cursor": token}
        return Reply.json({"meta": meta, "results": [self.body(row) for row in page]})

    def body(self, row: Row) -> dict[str, Any]:
        day = row.made.date().isoformat()
        return {
            "id": f"https://openalex.org/W{row.id}",
            "title": f"Work {row.id}",
            "publication_date": day,
            "cited_by_count": row.id % 50,
        }


class Notion(Api):
    hosts = "api.notion.com"

    def answer(self, request: Request, path: str) -> Reply:
        if request.headers.get("authorization") != f"Bearer {SECRET}" or not request.headers.get("notion-version"):
            return refused(401, "API token is invalid.")
        if path != "/v1/databases/d1/query" or request.method != "POST":
            return refused(404, "no such path")
        asked = json.loads(request.body)
        page, token = keyset(self.rows, asked.get("start_cursor"), asked["page_size"], by_making)
        return Reply.json(
            {"results": [self.body(row) for row in page], "has_more": token is not None, "next_cursor": token}
        )

    def body(self, row: Row) -> dict[str, Any]:
        archived = bool(row.fields.get("archived"))
        return {
            "id": f"page-{row.id}",
            "created_time": iso(row.made),
            "last_edited_time": iso(row.changed),
            "archived": archived,
        }


@dataclass(slots=True)
class Anything(Api):
    """An API that a test shapes: `respond` is asked first, and what it leaves is 404."""

    hosts: ClassVar[str] = "api.example.com"
    respond: Callable[[Request, str], Reply | None] = lambda _, __: None

    def answer(self, request: Request, path: str) -> Reply:
        return self.respond(request, path) or refused(404, "no such path")


APIS: Mapping[str, type[Api]] = {
    "github": GitHub, "stripe": Stripe, "shopify": Shopify, "salesforce": Salesforce, "hubspot": HubSpot, "jira": Jira,
    "zendesk": Zendesk, "socrata": Socrata, "openalex": OpenAlex, "notion": Notion,
}  # fmt: skip
# What a connection to each of them needs: settings and secret.
ACCOUNTS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "github": ({"repo": "acme/shop"}, {"token": SECRET}),
    "stripe": ({}, {"key": SECRET}),
    "shopify": ({"shop": "acme"}, {"access_token": SECRET}),
    "salesforce": ({"domain": "acme"}, {"client_id": "id", "client_secret": SECRET}),
    "hubspot": ({}, {"token": SECRET}),
    "jira": ({"site": "acme", "project": "SHOP"}, {"email": "me@example.com", "api_token": SECRET}),
    "zendesk": ({"subdomain": "acme"}, {"user": "me@example.com/token", "token": SECRET}),
    "socrata": ({"dataset": "erm2-nwe9"}, {"app_token": SECRET}),
    "openalex": ({}, {}),
    "notion": ({"database": "d1"}, {"token": SECRET}),
}


class SourcesStandIn(StandIn):
    """Plays the hosts of `apis`. Anything else does not exist."""

    name = "sources"

    def __init__(
        self, seed: int = 0, *, rows: int = 300, apis: Mapping[str, Api] | None = None, **options: Any
    ) -> None:
        super().__init__(seed, **options)
        made = {name: kind(rows=stock(rows, seed)) for name, kind in APIS.items()} if apis is None else dict(apis)
        self.apis = made
        self.heard: list[str] = []  # every header and body, for who looks for secrets where they do not belong

    def serve(self, request: Request) -> Reply:
        _, host, *rest = request.path.split("/", 2)
        api = next((each for each in self.apis.values() if each.hosts == host), None)
        if api is None:
            return refused(421, "no such host")
        path = "/" + (rest[0] if rest else "")
        faults = self.struck_by(host, path=path)
        with self.lock:
            api.asked.append((request.method, path, dict(request.query)))
            reply = api.answer(request, path)
        return self.spoil(reply, faults)

    def figures(self) -> Mapping[str, Any]:
        return {"rows": {name: len(api.rows) for name, api in self.apis.items()}}


if __name__ == "__main__":
    run_by_hand(argparse.ArgumentParser(), lambda options: SourcesStandIn(options.seed), f"secret {SECRET}")
