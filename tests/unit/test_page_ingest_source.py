"""What a source file means: the claim of each example, what lowers a claim, what a digest names, what a tenant may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.page_ingest.source.compile import Compiled, compile_source
from shared.page_ingest.source.lines import key_lines
from shared.page_ingest.source.model import Claim, Refused
from shared.page_ingest.source.tighten import Widened, tightened

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "example-sources"


def text_of(example: str) -> str:
    return (EXAMPLES / f"{example}.toml").read_text()


def compiled(example: str, *changes: tuple[str, str]) -> Compiled:
    text = text_of(example)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return compile_source(f"{example}.toml", text.encode())


# --- claims -----------------------------------------------------------------------------------------------------------

CLAIMS = {
    "github": "through T",
    "stripe": "walked",
    "shopify": "complete",
    "salesforce": "complete",
    "hubspot": "walked",
    "jira": "through T",
    "zendesk": "through T",
    "socrata": "complete",
    "openalex": "complete",
    "notion": "walked",
}


def test_each_example_can_claim_exactly_what_its_api_can_prove() -> None:
    assert {path.stem: compiled(path.stem).claim.value for path in EXAMPLES.glob("*.toml")} == CLAIMS


@pytest.mark.parametrize("example", CLAIMS)
def test_a_claim_comes_with_its_reason_and_the_endings_below_it(example: str) -> None:
    (resource,) = compiled(example).resources

    assert len(resource.best.reason) > 40
    assert resource.best.endings == (Claim(CLAIMS[example]), Claim.DRIFTED, Claim.PARTIAL)


NO_GONE = ('gone = "unseen"', 'gone = "never"')
NO_GONE_OF_SOCRATA = ('gone = { unseen = true, most = "2%" }', 'gone = "never"')


@pytest.mark.parametrize(
    ("example", "change", "claim", "reason"),
    [
        pytest.param("openalex", ('count = { at = "/meta/count" }', ""), "walked", "nothing says how many",
                     id="without a count"),
        pytest.param("openalex", ('at = "/meta/count"', 'at = "/meta/count", exact = false'), "walked", "approximate",
                     id="with an approximate count"),
        pytest.param("openalex", ('key = ["/id"]', 'key = "hash"'), "walked", "cannot be told apart", id="without a key"),
        pytest.param("openalex", ("publication_date:{from}", "updated_date:{from}"), "through T", "a time that changes",
                     id="windows of a time that changes, by its name"),
        pytest.param("openalex", ('as = "date"', 'as = "date", moves = true'), "through T", "a time that changes",
                     id="windows of a time that changes, as the file says"),
        pytest.param("salesforce", ("SELECT Id,", "SELECT Id, LastModifiedDate,"), "through T", "a time that changes",
                     id="a guess only lowers a claim"),
    ],
)  # fmt: skip
def test_what_cannot_be_proven_lowers_the_claim(example: str, change: tuple[str, str], claim: str, reason: str) -> None:
    (resource,) = compiled(example, most_less(example, change), change, NO_GONE).resources

    assert resource.best.claim == claim
    assert reason in resource.best.reason


def most_less(example: str, change: tuple[str, str]) -> tuple[str, str]:
    """Partitions are halved by counts; a list without a count has none to halve by."""
    return (", most = 20_000", "") if change[1] == "" else ("source =", "source =")


def test_a_file_can_say_that_a_time_never_changes() -> None:
    guessed = ("publication_date:{from}", "updated_date:{from}")

    assert compiled("openalex", guessed, ('as = "date"', 'as = "date", moves = false')).claim == "complete"


def test_a_window_of_a_body_is_judged_by_the_filter_around_it() -> None:
    assert compiled("hubspot", ("createdate", "lastmodifieddate")).claim == "through T"


def test_pages_by_number_can_skip_what_moves() -> None:
    by_number = ('since = "{since}", per_page', 'since = "{since}", page = "{number}", per_page')
    turned = ('page = { link = "next", size = 100 }', 'page = { number = 1, sorted_by = "sort", size = 100 }')

    (resource,) = compiled("github", by_number, turned).resources

    assert resource.best.claim == "walked"
    assert "cannot overlap" in resource.best.reason


def test_a_count_proves_nothing_about_pages_by_number() -> None:
    """A row leaves, another comes, one in between is skipped: both counts agree. Only pages that overlap notice it."""
    paging = ('offset = 0, sorted_by = "$order", size = 1000', 'number = 1, sorted_by = "$order", size = 1000')
    found = compiled("socrata", paging, ('"$offset" = "{offset}"', '"$page" = "{number}"'), NO_GONE_OF_SOCRATA)

    assert found.claim == "walked"
    assert "cannot overlap" in found.resources[0].best.reason


@pytest.mark.parametrize(
    ("paging", "sent"),
    [
        ('offset = 0, sorted_by = "$order", size = 1000', '"$offset" = "{offset}"'),
        ('after = "/unique_key", order = "asc /unique_key", size = 1000', '"$after" = "{after}"'),
        ('token = "header:x-next", size = 1000', '"$token" = "{token}"'),
        ('link = "next", size = 1000', '"$x" = 1'),
        ('next = "/next", size = 1000', '"$x" = 1'),
    ],
)
def test_an_exact_count_proves_every_other_way_of_turning_pages(paging: str, sent: str) -> None:
    changes = ('offset = 0, sorted_by = "$order", size = 1000', paging), ('"$offset" = "{offset}"', sent)

    assert compiled("socrata", *changes).claim == "complete"
    without = ('count = { query = { "$select" = "count(*)" }, at = "/0/count" }', ""), (", most = 50_000", "")
    assert compiled("socrata", *changes, *without, NO_GONE_OF_SOCRATA).claim == "walked"


CHILD = """
[resources.lines]
get = "/v1/charges/{parent}/lines"
query = { page = "{token}" }
page = { token = "/next" }
count = { at = "/total" }
split = { parent = "charges", key = "/id" }
rows = "/data"
key = ["/id"]
"""


def test_children_can_claim_no_more_than_their_parent() -> None:
    known = compile_source("stripe.toml", (text_of("stripe") + CHILD).encode())

    assert [each.resource.name for each in known.resources] == ["charges", "lines"]
    assert [each.best.claim for each in known.resources] == ["walked", "walked"]
    assert "its parent charges is at best walked" in known.resources[1].best.reason


def test_a_parent_is_read_whole() -> None:
    with pytest.raises(Refused, match=r"issues\.since: cannot be used: lines needs all rows of issues"):
        compile_source("github.toml", (text_of("github") + CHILD.replace("charges", "issues")).encode())


def test_what_is_gone_is_not_inferred_from_the_absence_of_a_parent() -> None:
    with pytest.raises(Refused, match='because of its parent charges the best claim is "walked"'):
        compile_source("stripe.toml", (text_of("stripe") + CHILD + 'gone = "unseen"\n').encode())


def test_parents_come_first_wherever_the_file_has_them() -> None:
    head, resource = text_of("stripe").split("\n[resources.charges]")

    known = compile_source("stripe.toml", f"{head}\n{CHILD}\n[resources.charges]{resource}".encode())

    assert [each.resource.name for each in known.resources] == ["charges", "lines"]


def test_a_file_claims_what_its_weakest_resource_can() -> None:
    second = """
[resources.refunds]
get = "/v1/refunds"
query = { limit = "{size}", starting_after = "{after}" }
page = { after = "/id", order = "desc /created", size = 100 }
count = { at = "/total" }
rows = "/data"
key = ["/id"]
"""
    known = compile_source("stripe.toml", (text_of("stripe") + second).encode())

    assert [each.best.claim for each in known.resources] == ["walked", "complete"]
    assert known.claim == "walked"


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_only_what_can_be_complete_is_audited() -> None:
    phases = {name: [phase.name for phase in compiled(name).resources[0].phases] for name in CLAIMS}

    audited = {name for name, each in phases.items() if each == ["plan", "part", "audit", "consolidate"]}
    assert audited == {name for name, claim in CLAIMS.items() if claim == "complete"}
    assert all(each == ["plan", "part", "consolidate"] for name, each in phases.items() if name not in audited)


@pytest.mark.parametrize(
    ("example", "end"),
    [
        ("github", "ends at a page without a next link"),
        ("stripe", "ends where /has_more is false"),
        ("zendesk", "ends where /end_of_stream is true"),
        ("socrata", "a short page is not the end"),
        ("openalex", "ends at a page without a token"),
        ("hubspot", "10,000 rows are an error, not the end"),
    ],
)
def test_the_plan_says_where_a_list_ends(example: str, end: str) -> None:
    (resource,) = compiled(example).resources

    assert end in resource.phases[1].does


# --- the digest -------------------------------------------------------------------------------------------------------


def test_a_digest_names_what_the_file_means() -> None:
    before = compiled("github")

    assert before.digest == compiled("github", ("# Issues of", "# All the issues of"), ("auth =", "auth  =")).digest
    assert before.digest != compiled("github", ("size = 100", "size = 99")).digest
    assert before.digest != compiled("github", ('state = "all"', 'state = "open"')).digest
    assert len({compiled(example).digest for example in CLAIMS}) == 10


def test_the_digest_of_a_file_stays_what_it_was() -> None:
    """Runs pin it: a release that computes another one for the same file would strand them."""
    smallest = """
source = "shop"
hosts = ["api.example.com"]
auth = "none"
[resources.items]
get = "/items"
page = { link = "next" }
rows = ""
key = ["/id"]
"""

    assert (
        compile_source("shop.toml", smallest.encode()).digest
        == "sha256:5c6cacdd55bc7d616f516726fd8e806b920a3faf93a578e8d44b5c61d7576cca"
    )


# --- lines ------------------------------------------------------------------------------------------------------------


def test_keys_are_found_on_their_lines() -> None:
    text = (
        '''# a comment with = and [x]
a = "x # y" # z
b.c = [
  1, # one
  { d = """
two
lines""", 'e f' = 2 },
]
[t]
"g\\u0068" = 1
[[u.v]]
w = '''
        "'''x'''"
        """
[u.v.x]
y = 2024-01-01T00:00:00Z
[[u.v]]
w = {}
"""
    )

    assert key_lines(text) == {
        ("a",): 2, ("b",): 3, ("b", "c"): 3, ("b", "c", 0): 4, ("b", "c", 1): 5, ("b", "c", 1, "d"): 5,
        ("b", "c", 1, "e f"): 7, ("t",): 9, ("t", "gh"): 10, ("u",): 11, ("u", "v"): 11, ("u", "v", 0): 11,
        ("u", "v", 0, "w"): 12, ("u", "v", 0, "x"): 13, ("u", "v", 0, "x", "y"): 14, ("u", "v", 1): 15,
        ("u", "v", 1, "w"): 16,
    }  # fmt: skip


def test_lines_that_end_as_on_windows_are_counted_once() -> None:
    windows = text_of("github").replace("size = 100", 'size = "many"').replace("\n", "\r\n")

    with pytest.raises(Refused, match=r"^github.toml:16 issues.page.size: must be a whole number, not text\.$"):
        compile_source("github.toml", windows.encode())


# --- what a tenant may change -----------------------------------------------------------------------------------------


def test_a_tenant_may_tighten() -> None:
    source = compiled("openalex").source

    changed = tightened(source, {"pace": "100/min", "works.size": 50, "works.window": "P7D"})

    assert changed.rate.pace is not None
    assert changed.rate.pace.text == "100/min"
    assert changed.resources["works"].page.size == 50
    assert changed.resources["works"].split is not None
    assert changed.resources["works"].split.window is not None
    assert changed.resources["works"].split.window.text == "P7D"
    assert tightened(source, {"pace": "10/s", "works.size": 100, "works.window": "P1M"}).resources == source.resources


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("pace", "11/s", "pace can only be slower than 10/s."),
        ("pace", "900/min", "pace can only be slower than 10/s."),
        ("works.size", 101, "works.size can only be smaller than 100."),
        ("works.size", 0, "works.size must be between 1 and 1,000,000,000."),
        ("works.size", True, "works.size must be a whole number, not true or false."),
        ("works.window", "P2M", "works.window can only be smaller than P1M."),
        ("works.window", "PT6H", "works.window must be whole days."),
        ("works.most", 1, "works.most cannot be changed; did you mean works.size?"),
        ("hosts", ["example.com"], "hosts cannot be changed. Use one of: pace, works.size, works.window."),
        ("wroks.size", 1, "wroks.size cannot be changed; did you mean works.size?"),
    ],
)
def test_a_tenant_may_not_widen(key: str, value: object, why: str) -> None:
    with pytest.raises(Widened) as widened:
        tightened(compiled("openalex").source, {key: value})

    assert str(widened.value) == why


def test_a_page_that_is_all_overlap_is_no_tightening() -> None:
    with pytest.raises(Widened, match="must be between 4 and"):
        tightened(compiled("socrata").source, {"requests.size": 3})
