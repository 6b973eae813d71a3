"""Guards that a local cloud is its owner's alone: its files, its database and its AWS, on a machine that others use too."""

from __future__ import annotations

import socket
import stat
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import boto3
import pytest
import sqlalchemy as sa
import urllib3
from botocore.exceptions import ClientError

from infra.local.cloud import DATABASE
from infra.local.deploy import STACK
from infra.local.runs import functions_of
from shared.kernel import db
from shared.kernel.aws import DEFAULT_REGION
from tests.support.scene import Scene

pytestmark = pytest.mark.full

ONLY_PASSABLE = 0o711  # the home and the folder of Postgres, whose server may run under another account


def test_no_file_of_the_cloud_can_be_read_by_others(scene: Scene) -> None:
    home, open_to_others = scene.cloud.home, []
    scene.address.write(home)
    for path in (home, *home.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path in {home, scene.cloud.postgres.directory} and mode == ONLY_PASSABLE:
            continue
        if mode & 0o077 and not path.is_symlink():
            open_to_others.append(f"{mode:o} {path.relative_to(home)}")

    assert open_to_others == []
    assert any(path.name == "cloud.json" for path in home.iterdir())


@pytest.mark.parametrize("role", ["postgres", "baton_worker", "baton_api"])
@pytest.mark.parametrize("password", ["", "postgres", "of another role"])
def test_postgres_lets_nobody_in_without_the_password_of_the_role(scene: Scene, role: str, password: str) -> None:
    theirs = sa.make_url(scene.address.url_as("baton_api" if role != "baton_api" else "baton_worker"))
    given = theirs.password if password == "of another role" else password
    url = theirs.set(username=role, password=given, database=DATABASE)
    engine = db.connect_engine(url.render_as_string(hide_password=False), pool="none")

    with pytest.raises(sa.exc.DBAPIError) as refused, engine.connect():
        pass

    assert db.sqlstate(refused.value) == "28P01"


def test_no_process_shows_a_secret_of_the_cloud(scene: Scene) -> None:
    scene.tick()  # so that a function runs too
    urls = [sa.make_url(scene.address.database_url), sa.make_url(scene.address.url_as("baton_worker"))]
    wanted = [str(url.password).encode() for url in urls] + [scene.address.access_key.encode()]

    shown = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes()
        except OSError:
            continue
        shown += [words for secret in wanted if secret in words]

    assert shown == []


def test_the_local_aws_answers_no_client_without_its_key(scene: Scene) -> None:
    stranger = boto3.client(
        "secretsmanager", endpoint_url=scene.address.endpoint, region_name=DEFAULT_REGION,
        aws_access_key_id="test", aws_secret_access_key="test",
    )  # fmt: skip

    with pytest.raises(ClientError, match="access key is not this cloud's"):
        stranger.list_secrets()

    for method, path in (("POST", "/_ministack/reset"), ("GET", "/_ministack/sqs/messages"), ("GET", "/")):
        assert ask(method, scene.address.endpoint + path).status == 403
    assert functions_of(scene.address)  # and nothing is forgotten


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}], ids=["host", "origin"]
)
def test_a_page_of_somebody_else_is_refused_by_every_server(scene: Scene, headers: dict[str, str]) -> None:
    key = scene.address.access_key
    signed = {"Authorization": f"AWS4-HMAC-SHA256 Credential={key}/20261116/us-east-1/sqs/aws4_request"}
    for url in (
        scene.address.endpoint + "/",
        scene.address.upstreams["nivoda"] + "/_control",
        scene.address.outputs["ApiUrl"],
    ):
        asked = url.replace(url.split("/")[2].partition(":")[0], "127.0.0.1")
        assert ask("GET", asked, headers={**signed, **headers}).status == 403


MADE_BY_A_LINK = {
    "Action": "CreateStack",
    "StackName": "made-by-a-link",
    "TemplateBody": '{"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}}',
}


@pytest.mark.parametrize(
    "path", ["/login", "/logout", "/oauth2/authorize", "/pool/.well-known/jwks.json", "/_ministack/health"]
)
def test_a_link_on_another_page_changes_nothing_whatever_it_asks_for(scene: Scene, path: str) -> None:
    """The emulator takes a call of any service from the query of a path that it does not know: a stack could run code."""
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    ask("GET", scene.address.endpoint + path, fields=MADE_BY_A_LINK, headers=followed)

    assert stacks_of(scene) == [STACK]


@pytest.mark.parametrize("path", ["/", "/login", "/oauth2/token", "/oauth2/revoke", "/pool/.well-known/jwks.json"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "OPTIONS"])
def test_a_call_in_the_body_needs_the_key_wherever_it_is_sent(scene: Scene, method: str, path: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20261116/us-east-1/cloudformation/aws4_request"}
    for headers in (form, form | signed):
        body = urlencode(MADE_BY_A_LINK)
        ask(method, scene.address.endpoint + path, body=body, headers=headers)

    assert stacks_of(scene) == [STACK]


def ask(method: str, url: str, **asked: Any) -> urllib3.BaseHTTPResponse:
    """On a connection of its own: a server may close one without having read the body, and says so only by closing it."""
    with urllib3.PoolManager() as alone:
        return alone.request(method, url, timeout=60, retries=False, **asked)


def stacks_of(scene: Scene) -> list[str]:
    return [each["StackName"] for each in scene.address.client("cloudformation").describe_stacks()["Stacks"]]


def test_who_is_refused_reads_why_even_when_the_body_comes_late(scene: Scene) -> None:
    """A server that answers and closes before it has the body resets the connection: the client sees that, and no answer."""
    host, port = scene.address.endpoint.removeprefix("http://").split(":")
    body = urlencode(MADE_BY_A_LINK).encode()
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(f"GET /oauth2/token HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        time.sleep(0.5)  # time enough to be refused
        for start in range(0, len(body), 20):
            client.sendall(body[start : start + 20])
            time.sleep(0.01)
        answer = client.recv(65_536)

    assert answer.startswith(b"HTTP/1.1 403"), answer
    assert b"access key is not this cloud's" in answer
