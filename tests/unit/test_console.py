"""Guards the console's files: what they weigh, whom they speak to, how long they are kept, and what no path can reach."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from functions.catalogue import KINDS
from infra.local.deploy import ROOT
from shared.kernel.api.console import A_YEAR, Console, Login, live_login, live_uploads
from shared.kernel.settings import BadSettings
from shared.row_job.rows_api import pages_off

FOLDER = ROOT / "functions" / "api" / "console"
OURS = sorted(path for path in FOLDER.rglob("*.js") if "vendor" not in path.parts)
VENDORED = "77ea1aea74e08a40ba3cfda122e3e70da104906b7ad1bb3822e1f53acaaaf800"
LOCAL = Login(issuer="https://issuer.example/pool", client_id="abc", password_url="http://127.0.0.1:4566")
LARGEST_FIRST_VIEW = 150_000
IMPORT = re.compile(r'^import (?:(\w+)|\{([^}]*)\}) from "([^"]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:const|function|class|let) (\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def console() -> Console:
    return Console(FOLDER, LOCAL)


def get(console: Console, path: str, **headers: str) -> dict[str, Any]:
    event = {"rawPath": path, "headers": headers, "requestContext": {"http": {"method": "GET"}}}
    assert console.serves(event)
    return console.answer(event)


@pytest.mark.parametrize("path", ["/", "/console", "/console/"])
def test_the_first_view_has_an_address_of_its_own(console: Console, path: str) -> None:
    answer = get(console, path)

    assert (answer["statusCode"], answer["headers"]["Location"]) == (302, "/console/overview")


@pytest.mark.parametrize(
    ("path", "base"), [("/console/now", "./"), ("/console/runs/a", "../"), ("/console/a/b/c", "../../")]
)
def test_every_view_is_the_same_page_and_knows_the_way_back(console: Console, path: str, base: str) -> None:
    answer = get(console, path)

    assert f'<base href="{base}">' in answer["body"]
    assert answer["headers"]["Cache-Control"] == "no-cache"
    assert "{{" not in answer["body"]


def test_the_page_is_guarded(console: Console) -> None:
    headers = get(console, "/console/now")["headers"]

    policy = dict(each.strip().split(" ", 1) for each in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["connect-src"] == "'self' http://127.0.0.1:4566"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_where_the_issuer_is_spoken_to_is_all_that_is_added_to_the_policy() -> None:
    hosted = Login(issuer="https://issuer.example/pool", client_id="abc", origins="https://login.example")

    policy = get(Console(FOLDER, hosted), "/console/now")["headers"]["Content-Security-Policy"]

    assert "connect-src 'self' https://issuer.example https://login.example;" in policy


def test_the_page_may_put_files_where_the_bucket_is_and_nowhere_else() -> None:
    env = {"BATON_UPLOADS_URL": "https://baton-files.s3.eu-central-1.amazonaws.com"}
    hosted = Login(issuer="https://issuer.example/pool", client_id="abc")

    policy = get(Console(FOLDER, hosted, uploads=live_uploads(env)), "/console/now")["headers"][
        "Content-Security-Policy"
    ]

    assert "connect-src 'self' https://issuer.example https://baton-files.s3.eu-central-1.amazonaws.com;" in policy
    local = {**env, "BATON_STAGE": "local", "AWS_ENDPOINT_URL": "http://127.0.0.1:4566"}
    assert live_uploads(local) == "http://127.0.0.1:4566"
    with pytest.raises(BadSettings, match="BATON_UPLOADS_URL"):
        live_uploads({"BATON_UPLOADS_URL": "https://a.example; script-src *"})


def test_the_page_tells_how_to_log_in_and_nothing_else(console: Console) -> None:
    said = re.search(r'name="baton-login" content="([^"]*)"', get(console, "/console/now")["body"])

    assert said is not None
    assert json.loads(html.unescape(said[1])) == {
        "issuer": "https://issuer.example/pool", "client_id": "abc", "audience": "", "scopes": "openid email", "password_url": "http://127.0.0.1:4566",
    }  # fmt: skip


def told_kinds(page: str) -> dict[str, str | None]:
    said = re.search(r'name="baton-kinds" content="([^"]*)"', page)
    assert said is not None
    return dict(json.loads(html.unescape(said[1])))


def test_the_page_tells_which_kinds_are_deployed_and_which_have_a_view(tmp_path: Path) -> None:
    """A file whose kind is not deployed is not told of, and a kind without a file is."""
    folder = shutil.copytree(FOLDER, tmp_path / "console")
    (folder / "kinds" / "of_another_stage.js").write_text("export default {};")
    (folder / "kinds" / "page_ingest").mkdir(exist_ok=True)
    (folder / "kinds" / "page_ingest" / "large.js").write_text("export default {};")

    page = get(Console(folder, LOCAL, ("page_ingest", "without_a_file")), "/console/overview")["body"]

    assert told_kinds(page) == {"page_ingest": "kinds/page_ingest.js", "without_a_file": None}
    ahead = set(re.findall(r'rel="modulepreload" href="assets/\w+/([^"]+)"', page))
    assert {name for name in ahead if "/" in name} == {"kinds/page_ingest.js", "vendor/preact.js"}
    assert "app.js" in ahead


def test_what_is_deployed_is_told_as_it_is() -> None:
    """The function `api` names every kind of the catalogue, with its view if it has one."""
    told = told_kinds(get(Console(FOLDER, LOCAL, KINDS), "/console/overview")["body"])

    views = {path.stem: f"kinds/{path.name}" for path in (FOLDER / "kinds").glob("*.js")}
    assert told == {name: views.get(name) for name in KINDS}
    assert told["query_run"] == "kinds/query_run.js"


def test_the_page_tells_which_of_its_pages_are_turned_off() -> None:
    """With the words that the API has for it; nothing where the list is on."""

    def told(env: dict[str, str]) -> Any:
        page = get(Console(FOLDER, LOCAL, KINDS, off=pages_off(env)), "/console/overview")["body"]
        said = re.search(r'name="baton-off" content="([^"]*)"', page)
        return json.loads(html.unescape(said[1])) if said else None

    assert told({"PENDING_DASHBOARD_ENABLED": "true"}) == {}
    assert "PendingDashboardEnabled=true" in told({})["row_job/pending"]


def test_no_kind_is_named_outside_its_own_file() -> None:
    frame = [path for path in OURS if "kinds" not in path.relative_to(FOLDER).parts]

    named = [
        re.compile(rf"""(?<!type=)(?<!role=)["'`/]{kind}["'`./]""") for kind in KINDS
    ]  # `search` is also what an input can be
    assert [path.name for path in frame for kind in named if kind.search(path.read_text())] == []


def test_files_are_kept_for_a_year_under_a_path_that_names_their_content(console: Console, tmp_path: Path) -> None:
    answer = get(console, f"/console/assets/{console.version}/app.js")

    assert answer["headers"]["Cache-Control"] == A_YEAR
    assert answer["headers"]["Content-Type"] == "text/javascript; charset=utf-8"
    for name in ("index.html", "app.js"):
        (tmp_path / name).write_text("changed")
    assert Console(tmp_path, LOCAL).version != console.version


@pytest.mark.parametrize(
    "name",
    [
        "../app.py",
        "..%2fapp.py",
        "/etc/passwd",
        "vendor",
        "vendor/README.md",
        "",
        "none.js",
        "views/../../app.py",
        "%00",
    ],
)
def test_what_is_not_a_file_of_the_console_cannot_be_asked_for(console: Console, name: str) -> None:
    assert get(console, f"/console/assets/{console.version}/{name}")["statusCode"] == 404


def test_a_file_of_another_version_is_not_there(console: Console) -> None:
    answer = get(console, "/console/assets/0000000000000000/app.js")

    assert (answer["statusCode"], answer["headers"]["Cache-Control"]) == (404, "no-store")


def test_files_are_packed_for_whoever_can_unpack_them(console: Console) -> None:
    path = f"/console/assets/{console.version}/style.css"
    packed = get(console, path, **{"Accept-Encoding": "br, gzip"})
    plain = get(console, path)

    assert packed["headers"]["Content-Encoding"] == "gzip"
    assert gzip.decompress(base64.b64decode(packed["body"])).decode() == plain["body"]


def test_the_whole_console_weighs_less_than_its_first_view_may(console: Console) -> None:
    """By a third, for what it asks the API. But for what kinds load when it is opened, `kinds/<kind>/…`."""
    later = re.compile(r"kinds/[^/]+/")
    weighs = sum(len(file.packed) for name, file in console.files.items() if not later.match(name))
    assert weighs < LARGEST_FIRST_VIEW * 2 / 3


def test_other_methods_and_paths_are_not_the_consoles(console: Console) -> None:
    for method, path in (("POST", "/console/now"), ("GET", "/consoles"), ("GET", "/api/v1/me")):
        assert not console.serves({"rawPath": path, "requestContext": {"http": {"method": method}}})


def test_what_draws_it_is_what_was_taken_from_its_makers() -> None:
    assert hashlib.sha256((FOLDER / "vendor" / "preact.js").read_bytes()).hexdigest() == VENDORED


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_modules_speak_to_no_other_host_and_write_no_markup(path: Path) -> None:
    text = path.read_text()

    for word in ("://", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "dangerouslySet"):
        assert word not in text
    # Nothing is kept when the last tab is gone, but whether somebody likes their times in UTC, and which tenant was theirs.
    kept = set(re.findall(r"localStorage\.\w+\((\w+)", text))
    assert kept == {"format.js": {"KEPT"}, "app.js": {"LAST"}}.get(path.name, set())
    assert text.count("localStorage") == 2 * len(kept)


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_modules_import_what_is_there_and_use_what_they_import(path: Path) -> None:
    text = path.read_text()
    body = IMPORT.sub("", text)

    for only, several, file in IMPORT.findall(text):
        names = {name.strip() for name in (several or only).split(",")}
        assert all(re.search(rf"\b{name}\b", body) for name in names), f"not all of {names} is used"
        there = (path.parent / file).read_text()
        assert "vendor" in file or only or names <= set(EXPORT.findall(there))
        assert not only or "export default" in there
    for file in re.findall(r'import\("([^"]+)"\)', text):
        assert (path.parent / file).is_file(), file


def test_whoever_writes_in_another_form_is_told_which() -> None:
    """A browser says no more than "match the requested format" of a field without a title."""
    fields = [tag for path in OURS for tag in re.findall(r"<input [^`]*?pattern=[^`]*", path.read_text())]

    assert len(fields) >= 8
    assert [tag for tag in fields if "title=" not in tag] == []


def test_a_local_cloud_takes_a_password_where_its_aws_is() -> None:
    env = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:4566",
        "BATON_LOGIN_CLIENT_ID": "abc",
        "BATON_LOGIN_ISSUER": "https://i",
    }

    assert live_login({**env, "BATON_STAGE": "local"}).password_url == "http://127.0.0.1:4566"
    assert live_login({**env, "BATON_STAGE": "prod"}).password_url == ""


@pytest.mark.parametrize("origins", ["https://a.example; script-src *", "https://a.example\r\nX: y", "'unsafe-eval'"])
def test_nothing_gets_into_the_policy_by_a_setting(origins: str) -> None:
    with pytest.raises(BadSettings, match="BATON_LOGIN_ORIGINS"):
        live_login({"BATON_LOGIN_ORIGINS": origins})
