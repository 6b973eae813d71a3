"""One file for each thing that can be wrong with a source: the whole text of what is said about it."""

from __future__ import annotations

import inspect
from itertools import pairwise
from pathlib import Path

import pytest

from shared.page_ingest.source import rules
from shared.page_ingest.source.compile import MOST_BYTES, compile_source
from shared.page_ingest.source.model import Refused

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "example-sources"

# fmt: off
FAULTS = [
    pytest.param("github", "# Issues", "\udcff", ["github.toml:1 file: is not UTF-8. Save it as UTF-8."], id="not UTF-8"),
    pytest.param("github", "# Issues", "\ufeff# Issues", ["github.toml:1 file: starts with a byte order mark. Save it as UTF-8 without one."], id="a byte order mark"),
    pytest.param("github", 'source = "github"', "source = github", ["github.toml:2 source: is not valid TOML: invalid value."], id="not TOML"),
    pytest.param("stripe", 'key = ["/id"]', 'key = ["/id"', ["stripe.toml:16 columns: is not valid TOML: unclosed array."], id="a table that is cut off"),
    pytest.param("stripe", 'rows = "/data"', 'rows = "/data"\nrows = "/data"', ["stripe.toml:15 rows: is not valid TOML: cannot overwrite a value."], id="a key twice"),
    pytest.param("stripe", 'rows = "/data"', "rows = " + "[" * 40 + "]" * 40, ["stripe.toml:14 charges.rows: is nested deeper than 32 levels."], id="nested too deeply"),
    pytest.param("github", "hosts =", "hots =", ["github.toml:3 hots: unknown; did you mean hosts?"], id="an unknown key"),
    pytest.param("github", "rows =", "row =", ["github.toml:17 issues.row: unknown; did you mean rows?"], id="an unknown key of a resource"),
    pytest.param("github", 'lookback = "PT10M"', 'lookbak = "PT10M"', ["github.toml:20 issues.since.lookbak: unknown; did you mean lookback?"], id="an unknown key of a table"),
    pytest.param("github", "rows =", "zzzz = 1\nrows =", ["github.toml:17 issues.zzzz: unknown. Use one of: body, columns, contract, count, get, gone, graphql, keep, key, page, post, query, rows, since, split, variables."], id="an unknown key far from any other"),
    pytest.param("openalex", 'to = "included"', 'to = "include"', ['openalex.toml:10 works.split.to: "include" is unknown; did you mean included?'], id="an unknown word"),
    pytest.param("hubspot", 'is = "throttled"', 'is = "throtled"', ['hubspot.toml:6 errors[0].is: "throtled" is unknown; did you mean throttled?'], id="an unknown meaning"),
    pytest.param("github", 'key = ["/id"]', "", ['github.toml:13 issues.key: is missing. Say what identifies a row, for example ["/id"]; or "hash" if nothing does.'], id="a missing key"),
    pytest.param("github", 'source = "github"', "", ["github.toml:1 source: is missing. Give the source a name."], id="no name"),
    pytest.param("github", "[resources.issues]", "[resorces.issues]", ["github.toml:1 resources: must be 1 to 50 tables. Add one: [resources.items]", "github.toml:13 resorces: unknown; did you mean resources?"], id="no resource"),
    pytest.param("github", "[resources.issues]", '[resources."Issues!"]', ['github.toml:13 "Issues!": must start with a small letter and have only small letters, digits and _, at most 40.'], id="a bad name of a resource"),
    pytest.param("github", "size = 100", 'size = "100"', ["github.toml:16 issues.page.size: must be a whole number, not text."], id="a wrong type"),
    pytest.param("github", "size = 100", "size = true", ["github.toml:16 issues.page.size: must be a whole number, not true or false."], id="true is not a number"),
    pytest.param("github", "size = 100", "size = 1_000_000", ["github.toml:16 issues.page.size: must be between 1 and 10,000."], id="a number out of range"),
    pytest.param("zendesk", 'first = "2007-01-01"', "first = 2007-01-01", ["zendesk.toml:14 tickets.since.first: must be text, not a date or time."], id="a date"),
    pytest.param("github", '"api.github.com"', '"https://api.github.com"', ['github.toml:3 hosts: "https://api.github.com" must be a host alone, without https:// and without a path.'], id="a URL as a host"),
    pytest.param("github", '"api.github.com"', '"10.0.0.1"', ['github.toml:3 hosts: "10.0.0.1" is an address. Use the host\'s name.'], id="an address as a host"),
    pytest.param("github", '"api.github.com"', '"0x7f.1"', ['github.toml:3 hosts: "0x7f.1" is an address. Use the host\'s name.'], id="an odd address as a host"),
    pytest.param("github", '"api.github.com"', '"vault.internal"', ['github.toml:3 hosts: "vault.internal" is a private name. Only public hosts can be a source.'], id="a private host"),
    pytest.param("github", '"api.github.com"', '"localhost"', ['github.toml:3 hosts: "localhost" is a private name. Only public hosts can be a source.'], id="a host without a domain"),
    pytest.param("github", '"api.github.com"', '"api.github.com:8443"', ['github.toml:3 hosts: "api.github.com:8443" must have no port: requests go to 443.'], id="a port"),
    pytest.param("shopify", '"{shop}.myshopify.com"', '"api.{shop}.com"', ['shopify.toml:3 hosts: "api.{shop}.com" would let a tenant choose the domain. Only labels before the domain may be settings.'], id="a domain that the tenant chooses"),
    pytest.param("shopify", '"{shop}.myshopify.com"', '"{shop}.co.uk"', ['shopify.toml:3 hosts: "{shop}.co.uk" would let a tenant choose the domain. Only labels before the domain may be settings.'], id="a domain below co.uk that the tenant chooses"),
    pytest.param("shopify", 'shop = "label"', 'shop = "segment"', ['shopify.toml:5 settings.shop: is part of a host, so its shape must be "label".'], id="a host of a setting that is no label"),
    pytest.param("shopify", '"{shop}.myshopify.com"', '"{shp}.myshopify.com"', ["shopify.toml:3 hosts[0]: {shp} is not a setting; did you mean shop?", "shopify.toml:5 settings.shop: is never used. Put {shop} into a host or a request, or leave it out."], id="a host of an unknown setting"),
    pytest.param("github", '"/repos/{repo}/issues"\n', '"http://api.github.com/repos/{repo}/issues"\n', ["github.toml:14 issues.get: must use https: nothing is asked, and no secret is sent, over http."], id="http"),
    pytest.param("github", '"/repos/{repo}/issues"\n', '"https://api.githab.com/repos/{repo}/issues"\n', ['github.toml:14 issues.get: "api.githab.com" is not one of hosts; did you mean api.github.com?'], id="another host"),
    pytest.param("salesforce", 'url = "https://{domain}.my.salesforce.com/', 'url = "https://login.salesforce.com/', ['salesforce.toml:13 auth.url: "login.salesforce.com" is not one of hosts; did you mean {domain}.my.salesforce.com?'], id="a token from another host"),
    pytest.param("github", 'look = "/repos', 'look = "https://example.com/repos', ['github.toml:22 issues.gone.look: "example.com" is not one of hosts. Use one of: api.github.com.'], id="a look-up at another host"),
    pytest.param("github", '"/repos/{repo}/issues"\n', '"/repos/../issues"\n', ["github.toml:14 issues.get: must be a plain path: no //, no . or .. and no backslash."], id="a path that climbs"),
    pytest.param("github", '"/repos/{repo}/issues"\n', '"/repos/{repo}/issues?state=all"\n', ["github.toml:14 issues.get: must have no ? and no #. Put parameters into query."], id="a query in a path"),
    pytest.param("github", 'auth = { bearer = "token" }', "", ['github.toml:1 auth: is missing. Say how requests are authorized, or auth = "none".'], id="no auth"),
    pytest.param("github", 'bearer = "token"', 'bearer = "ghp_A1b2C3d4"', ["github.toml:4 auth.bearer: must be the name of a field of the secret, such as token; never the secret itself."], id="the secret itself"),
    pytest.param("github", 'bearer = "token"', 'bearer = "token", basic = ["a", "b"]', ["github.toml:4 auth.basic: cannot stand beside bearer. Use one of: bearer, basic, header, query, oauth."], id="two ways at once"),
    pytest.param("zendesk", '["user", "token"]', '["user"]', ["zendesk.toml:4 auth.basic: must name two fields of the secret: user and password."], id="one field for basic"),
    pytest.param("github", 'bearer = "token"', 'bearer = "token", scope = "all"', ["github.toml:4 auth.scope: has no meaning with bearer. Leave it out."], id="what has no meaning with it"),
    pytest.param("notion", "Notion-Version =", "Authorization =", ["notion.toml:6 headers.Authorization: Authorization is set by Baton. Credentials belong in auth."], id="a header that is auth's"),
    pytest.param("socrata", "settings =", 'headers = { x-app-token = "abc" }\nsettings =', ["socrata.toml:5 headers.x-app-token: is the header of auth. A secret never stands in the file."], id="a header that is set by auth"),
    pytest.param("openalex", 'auth = "none"', 'auth = { query = "cursor", key = "api_key" }', ["openalex.toml:9 works.query.cursor: is the parameter of auth. A secret never stands in the file."], id="a parameter that is auth's"),
    pytest.param("github", '"segment/segment"', '"facebook/react"', ['github.toml:5 settings.repo: "facebook/react" is not a shape. Use one of: date, int, label, segment, segment/segment.'], id="a setting without a shape"),
    pytest.param("notion", "database", "token", ["notion.toml:5 settings.token: {token} is filled in by Baton. Choose another name.", "notion.toml:10 pages.post: {token} must be a value of its own: the first page is asked without it."], id="a setting with a name of ours"),
    pytest.param("notion", 'database = "segment"', 'database = "segment", team = "segment"', ["notion.toml:5 settings.team: is never used. Put {team} into a host or a request, or leave it out."], id="a setting that is never used"),
    pytest.param("github", 'left = "header:x-ratelimit-remaining", ', "", ["github.toml:7 rate.reserve: needs left: the header that says how many requests are left.", "github.toml:7 rate.resets: needs left: the header that says how many requests are left."], id="a reserve of nothing"),
    pytest.param("zendesk", '"10/min"', '"10 per minute"', ['zendesk.toml:6 rate.pace: "10 per minute" is not a pace. Write 5/s, 100/min, 5000/h or 10000/day.'], id="a bad pace"),
    pytest.param("hubspot", "{ status = 429, is", "{ is", ["hubspot.toml:6 errors[0]: needs a status, has, or where with equals: otherwise every answer is an error."], id="an error that is always"),
    pytest.param("stripe", ', equals = "resource_missing"', "", ["stripe.toml:7 errors[0].where: needs equals."], id="where without equals"),
    pytest.param("hubspot", "status = 429, is", "status = 200, is", ["hubspot.toml:6 errors[0].status: is a success. Add has or where to say what makes it an error."], id="a success is an error"),
    pytest.param("hubspot", 'status = 429, is = "throttled"', 'status = [404, 429], is = "empty"', ['hubspot.toml:6 errors[0].is: "empty" would hide missing rows: 429 says nothing about the rows.'], id="a refusal is empty"),
    pytest.param("github", "[resources.issues]", '[resources.issues]\npost = "/issues"', ["github.toml:14 issues.post: cannot stand beside get. Use one of: get, post, graphql."], id="two requests"),
    pytest.param("github", "query =", "body =", ["github.toml:15 issues.body: belongs to post, and this is a get. Use query."], id="a body of a get"),
    pytest.param("github", '"{since}"', '"{sinse}"', ["github.toml:15 issues.query.since: {sinse} is unknown; did you mean since?", "github.toml:20 issues.since: is never asked for: put {since} into the request."], id="an unknown placeholder"),
    pytest.param("github", '"{since}"', '"{since"', ["github.toml:15 issues.query.since: has a brace without its other half.", "github.toml:20 issues.since: is never asked for: put {since} into the request."], id="a stray brace"),
    pytest.param("shopify", 'graphql = "/admin/api/2025-07/graphql.json"', "", ['shopify.toml:13 orders.graphql: needs an address: add graphql = "/graphql" at the top of the file.'], id="GraphQL without an address"),
    pytest.param("shopify", "$q: String) {\n", "$x: String) {\n", ["shopify.toml:20 orders.variables.q: $q is not declared and used in the graphql query."], id="a variable that is not in the query"),
    pytest.param("shopify", "\nquery($n", "\nmutation($n", ['shopify.toml:13 orders.graphql: must start with "query": a source only reads.'], id="GraphQL that changes something"),
    pytest.param("github", 'page = { link = "next", size = 100 }', "", ["github.toml:13 issues.page: is missing. Say how to get the next page: number, offset, link, next, token, after."], id="no paging"),
    pytest.param("github", 'link = "next"', 'link = "next", token = "/next"', ["github.toml:16 issues.page.token: cannot stand beside link. Use one of: number, offset, link, next, token, after."], id="two ways to turn pages"),
    pytest.param("openalex", 'cursor = "{token}", ', "", ["openalex.toml:11 works.page.token: is never sent. Put {token} into query."], id="a token that is never sent"),
    pytest.param("openalex", '"{token}"', '"c:{token}"', ["openalex.toml:9 works.query.cursor: {token} must be a value of its own: the first page is asked without it."], id="a token inside a value"),
    pytest.param("github", ', per_page = "{size}"', "", ["github.toml:16 issues.page.size: is never sent. Put {size} into query."], id="a size that is never sent"),
    pytest.param("socrata", 'sorted_by = "$order", ', "", ['socrata.toml:10 requests.page.sorted_by: is missing: without an order, rows can change places between pages. Name the parameter that sorts, or "upstream" if the API promises an order.'], id="an offset without an order"),
    pytest.param("socrata", 'sorted_by = "$order"', 'sorted_by = "$oder"', ['socrata.toml:10 requests.page.sorted_by: "$oder" is not sent; did you mean $order?'], id="an order that is not sent"),
    pytest.param("socrata", 'sorted_by = "$order"', 'sorted_by = "$where"', ["socrata.toml:10 requests.page.sorted_by: chooses rows, because it is filled in. Name the parameter that sorts."], id="a filter that is called an order"),
    pytest.param("socrata", "size = 1000", "size = 3", ["socrata.toml:10 requests.page.size: must be at least 4: a page starts with rows of the one before."], id="a page that is all overlap"),
    pytest.param("notion", 'more = "/has_more"', 'more = "/has_more", end = "/done"', ["notion.toml:12 pages.page.end: cannot stand beside more. Use the one that the upstream sends."], id="more and end"),
    pytest.param("stripe", 'after = "/id"', 'after = "/created"', ["stripe.toml:13 charges.page.after: must be a field of key: only what identifies a row never changes."], id="a key set by what changes"),
    pytest.param("stripe", 'key = ["/id"]', 'key = ["/id"]\nsince = { field = "/created" }', ['stripe.toml:13 charges.page.order: must be "asc": a row that changes would jump to where you have been.', "stripe.toml:16 charges.since: is never asked for: put {since} into the request."], id="newest changes first"),
    pytest.param("stripe", 'rows = "/data"', 'rows = "$.data"', ['stripe.toml:14 charges.rows: "$.data" is not a JSON Pointer: it starts with /, for example "/data".'], id="not a pointer"),
    pytest.param("stripe", 'rows = "/data"', 'rows = "/da~ta"', ["stripe.toml:14 charges.rows: in a JSON Pointer ~ is written as ~0 and / within a name as ~1."], id="a bad pointer"),
    pytest.param("hubspot", 'split = { window = "P7D", as = "unix_ms", most = 9_000 }', "", ["hubspot.toml:10 contacts.page.most: means that this list ends at 10,000 rows. Add split, so that each part is smaller.", "hubspot.toml:24 contacts.body.filterGroups[0].filters[0].value: {from} is unknown. Use one of: size, token.", "hubspot.toml:25 contacts.body.filterGroups[0].filters[1].value: {to} is unknown; did you mean token?"], id="a list that ends early"),
    pytest.param("hubspot", "most = 9_000", "most = 20_000", ["hubspot.toml:12 contacts.split.most: is too many: this list ends at 10,000 rows, and the rest would be lost."], id="a part larger than the list shows"),
    pytest.param("openalex", ",to_publication_date:{to}", "", ["openalex.toml:10 works.split: is never asked for: put {to} into the request, or each partition reads all."], id="a window that is never asked for"),
    pytest.param("openalex", 'window = "P1M"', 'window = "PT6H"', ['openalex.toml:10 works.split.window: must be whole days, because as = "date" sends days.'], id="hours in days"),
    pytest.param("shopify", 'window = "P1M"', 'window = "P1M", to = "included"', ['shopify.toml:22 orders.split.to: cannot be "included" with times: what happens at that very instant would be read twice.'], id="an instant in two windows"),
    pytest.param("stripe", 'as = "unix"', 'as = "unix", most = 1_000', ["stripe.toml:12 charges.split.most: needs count: without one nobody knows how many rows a partition has."], id="most without a count"),
    pytest.param("stripe", '"created[gte]" = "{from}", "created[lt]" = "{to}" }\nsplit = { window = "P7D", as = "unix"', 'low = "{low}", high = "{high}" }\nsplit = { numbers = [0, 100]', ["stripe.toml:12 charges.split.numbers: needs count: numbers are divided by how many rows they hold.", "stripe.toml:12 charges.split.numbers: needs most: how many rows are too many for one partition."], id="numbers without a count"),
    pytest.param("stripe", '"P7D"', '"7 days"', ['stripe.toml:12 charges.split.window: "7 days" is not a duration. Write P7D for 7 days, P1M for a month, PT10M for 10 minutes.'], id="not a duration"),
    pytest.param("stripe", '"created[gte]" = "{from}", "created[lt]" = "{to}" }\nsplit = { window = "P7D", as = "unix"', 'of = "{parent}" }\nsplit = { parent = "chargs", key = "/id"', ['stripe.toml:12 charges.split.parent: "chargs" is not a resource; did you mean charges?'], id="an unknown parent"),
    pytest.param("stripe", '"created[gte]" = "{from}", "created[lt]" = "{to}" }\nsplit = { window = "P7D", as = "unix"', 'of = "{parent}" }\nsplit = { parent = "charges", key = "/id"', ["stripe.toml:12 charges.split.parent: goes round in a circle: charges of charges."], id="a circle of parents"),
    pytest.param("github", 'since = "{since}", ', "", ["github.toml:20 issues.since: is never asked for: put {since} into the request."], id="changes that are never asked for"),
    pytest.param("jira", ', first = "2002-01-01"', "", ['jira.toml:14 issues.since: needs first: the first run has no earlier one, for example first = "2015-01-01".'], id="a first run without a time"),
    pytest.param("jira", 'lookback = "P2D"', 'lookback = "PT1H"', ['jira.toml:14 issues.since.lookback: must be a day at least (P1D), because as = "date" sends days.'], id="looking back less than a day"),
    pytest.param("socrata", '"$select" = "count(*)"', '"$select" = "count(*)", "$where" = "1 = 1"', ['socrata.toml:11 requests.count.query."$where": is already sent as the list sends it. A count cannot ask for other rows.'], id="a count of another list"),
    pytest.param("shopify", "ordersCount(query: $q, limit: null)", "ordersCount(limit: null)", ["shopify.toml:29 orders.count.graphql: does not use $q, so it counts another list."], id="a GraphQL count of another list"),
    pytest.param("jira", "exact = false", "exact = true", ["jira.toml:20 issues.count.body: must have fields as the list has it, or it counts another list.", "jira.toml:20 issues.count.body: must have jql as the list has it, or it counts another list."], id="a post count of another list"),
    pytest.param("socrata", "count = { query", 'count = { post = "/count", query', ["socrata.toml:11 requests.count.post: must be asked as the list is, with get."], id="a count by another verb"),
    pytest.param("stripe", 'amount = "int', 'rest = "int', ["stripe.toml:16 charges.columns.rest: is a column that every table has. Choose another name."], id="a column of ours"),
    pytest.param("stripe", '"int /amount"', '"integer /amount"', ['stripe.toml:16 charges.columns.amount: "integer" is not a type; did you mean int?'], id="a bad type of a column"),
    pytest.param("notion", 'columns = { created_at = "time /created_time", edited_at = "time /last_edited_time" }', 'contract = "stop"', ['notion.toml:9 pages.columns: is missing: contract = "stop" has nothing to hold rows to.'], id="a contract about nothing"),
    pytest.param("stripe", 'rows = "/data"', 'rows = "/data"\ngone = "unseen"', ['stripe.toml:15 charges.gone: "unseen" needs complete runs, and without a count the best claim is "walked". Add count, use look, or drop gone.'], id="gone after walked"),
    pytest.param("hubspot", 'rows = "/results"', 'rows = "/results"\ngone = "unseen"', ['hubspot.toml:14 contacts.gone: "unseen" needs complete runs, and with an approximate count the best claim is "walked". Use look, or drop gone.'], id="gone after an approximate count"),
    pytest.param("github", 'gone = { look = "/repos/{repo}/issues/{number}", status = [404, 410], most = "1%" }', 'gone = "unseen"', ['github.toml:22 issues.gone: "unseen" needs complete runs, and with since the best claim is "through T". Use look, or drop gone.'], id="gone after through T"),
    pytest.param("notion", 'key = ["/id"]', 'key = "hash"', ['notion.toml:16 pages.gone: must be "never": with key = "hash" rows are only added.'], id="gone without a key"),
    pytest.param("github", "issues/{number}", "issues/all", ["github.toml:22 issues.gone.look: must name a row by one of its columns, for example {number}."], id="a look-up of no row"),
    pytest.param("github", "issues/{number}", "issues/{numbr}", ["github.toml:22 issues.gone.look: {numbr} is neither a column nor a setting; did you mean number?"], id="a look-up by what is no column"),
    pytest.param("github", "status = [404, 410], most", "status = [403, 404], most", ["github.toml:22 issues.gone.status: 403 says nothing about the row. Use 404 or 410."], id="a refusal means gone"),
    pytest.param("github", 'most = "1%"', 'most = "100%"', ['github.toml:22 issues.gone.most: must be a share of the table, more than 0 and at most half of it, for example "1%".'], id="a fuse that never blows"),
]
# fmt: on


def said(file: str, data: bytes) -> list[str]:
    with pytest.raises(Refused) as refused:
        compile_source(file, data)
    return [str(fault) for fault in refused.value.faults]


@pytest.mark.parametrize(("example", "old", "new", "expected"), FAULTS)
def test_a_fault_is_named_with_its_line_its_key_and_what_to_do(
    example: str, old: str, new: str, expected: list[str]
) -> None:
    text = (EXAMPLES / f"{example}.toml").read_text()
    assert old in text

    assert said(f"{example}.toml", text.replace(old, new).encode("utf-8", "surrogateescape")) == expected


def test_a_file_that_is_too_long_is_not_read() -> None:
    assert said("long.toml", b"#" * (MOST_BYTES + 1)) == [
        "long.toml:1 file: has 262,145 bytes; at most 262,144 are read."
    ]


def test_a_number_with_thousands_of_digits_is_a_fault() -> None:
    text = (EXAMPLES / "github.toml").read_text().replace("reserve = 500", f"reserve = {'5' * 5_000}")

    assert said("github.toml", text.encode()) == ["github.toml:7 rate: has a number with too many digits."]


def test_brackets_without_end_are_a_fault() -> None:
    text = (EXAMPLES / "github.toml").read_text().replace("reserve = 500", f"reserve = {'[' * 5_000}")

    assert said("github.toml", text.encode()) == ["github.toml:7 toml: is nested too deeply."]


def test_every_rule_is_asked() -> None:
    """A rule that somebody writes and nobody asks finds nothing."""
    written = {
        name
        for name, function in inspect.getmembers(rules, inspect.isfunction)
        if function.__module__ == rules.__name__
        and function.__annotations__.get("return") == "Found"
        and not name.startswith("_")
    }

    asked = {rule.__name__ for rule in (*rules.OF_THE_SOURCE, *rules.OF_A_RESOURCE, rules.gone_has_a_witness)}
    assert written == asked


GENERATION = """
[resources.{name}]
get = "/v1/{name}/{{parent}}"
page = {{ link = "next" }}
split = {{ parent = "{parent}", key = "/id" }}
rows = ""
key = ["/id"]
"""


def test_generations_have_an_end() -> None:
    names = ["charges", "lines", "taxes", "notes"]
    born = [GENERATION.format(name=name, parent=parent) for parent, name in pairwise(names)]
    text = (EXAMPLES / "stripe.toml").read_text()

    assert compile_source("stripe.toml", (text + "".join(born[:2])).encode()).claim == "walked"
    assert said("stripe.toml", (text + "".join(born)).encode()) == [
        "stripe.toml:35 notes.split.parent: is nested too deeply: at most 3 generations, this one included."
    ]


ITEMS = """source = "any"
hosts = ["api.example.com"]
auth = "none"
[resources.p]
get = "/p"
page = { link = "next" }
rows = ""
key = ["/id"]
[resources.items]
get = "/items"
query = { c = "{token}", f = "{from}", t = "{to}", v = "{value}" }
page = { token = "/n" }
rows = "/d"
key = ["/id"]
count = { at = "/total" }
split = { window = "P1D", most = 10, then = { values = ["a", "b"] } }
"""


NO_WINDOW = ('f = "{from}", t = "{to}", ', "")
ALONE = "{value} must be a value of its own: a partition that is small enough is asked without it."


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        # Both would be one {value}, and parts of different wholes would have one name.
        ([NO_WINDOW, ('window = "P1D"', 'values = ["x", "y"]')],
         "16 items.split.then: divides by values, and so does split itself. Leave it out."),
        ([('v = "{value}"', 'v = "kind:{value}"')], f"11 items.query.v: {ALONE}"),
        ([('get = "/items"', 'get = "/{value}/items"')], f"10 items.get: {ALONE}"),
        ([(", most = 10", "")],
         "16 items.split.then: is never used: add most, which says how many rows are too many for one partition."),
        ([NO_WINDOW, ('v = "{value}"', 'v = "{value}", p = "{parent}"'), ('window = "P1D", most = 10', 'parent = "p", key = "/id"')],
         "16 items.split.then: divides by something, and rows of a parent are not divided. Leave it out."),
    ],
)  # fmt: skip
def test_what_is_still_too_large_can_be_divided(changes: list[tuple[str, str]], fault: str) -> None:
    compile_source("any.toml", ITEMS.encode())
    text = ITEMS
    for old, new in changes:
        text = text.replace(old, new)

    assert said("any.toml", text.encode()) == [f"any.toml:{fault}"]


def test_a_header_of_the_file_can_be_sent() -> None:
    text = (EXAMPLES / "stripe.toml").read_text().replace('"2024-06-20"', '"2024\N{EN DASH}06"')

    assert said("stripe.toml", text.encode()) == [
        "stripe.toml:5 headers.Stripe-Version: must be plain ASCII: that is all a header can carry."
    ]


def test_a_look_up_is_filled_in_one_way() -> None:
    text = (
        (EXAMPLES / "github.toml")
        .read_text()
        .replace('number = "int /number"', 'number = "int /number", repo = "text /repo"')
    )

    assert said("github.toml", text.encode()) == [
        "github.toml:22 issues.gone.look: {repo} is a column and a setting. Rename the column."
    ]


def test_a_table_has_a_name_that_postgres_keeps() -> None:
    text = (EXAMPLES / "stripe.toml").read_text()
    text = text.replace('source = "stripe"', f'source = "{"s" * 32}"').replace(".charges]", f".{'c' * 32}]")

    (fault,) = said("stripe.toml", text.encode())

    assert fault.startswith(f"stripe.toml:9 {'c' * 32}: makes a table name of more than 63 characters")


def test_an_estimate_is_asked_for_the_partition_too() -> None:
    text = (EXAMPLES / "hubspot.toml").read_text().replace('count = { at = "/total", exact = false }\n', "")
    count = '[resources.contacts.count]\npost = "/count"\nbody = { filter = "{from}" }\nat = "/n"\nexact = false\n'

    assert said("hubspot.toml", (text + count).encode()) == [
        "hubspot.toml:29 contacts.count.body: must ask for the partition: {to} is missing."
    ]
