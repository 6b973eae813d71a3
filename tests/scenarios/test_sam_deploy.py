"""`sam build` and `sam deploy` as they go to AWS, into the local one with IAM enforced: a run completes; one log is left."""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
import urllib3

from infra.local.cloud import Address, Cloud, throwaway_home
from infra.local.deploy import ROOT, STACK
from infra.local.ministack import credentials
from infra.local.runs import environment_of, functions_of, queues_of
from shared.kernel import aws
from shared.kernel.aws import DEFAULT_REGION
from tests.support.scene import Scene

SAM = ROOT / ".local" / "sam-venv" / "bin" / "sam"


@pytest.mark.long
def test_a_run_completes_through_sam_deploy_and_a_deleted_stack_leaves_one_log() -> None:
    run(["make", "build", "ARCHITECTURE=here"], os.environ)
    with throwaway_home() as home, Cloud.start(home, print, enforce_iam=True, stones=500) as cloud:
        before = belongings(cloud.address(os.getpid(), {}))
        environment = {
            **os.environ,
            **credentials(cloud.ministack.access_key),
            "AWS_ENDPOINT_URL": cloud.ministack.url,
            "AWS_DEFAULT_REGION": DEFAULT_REGION,
            "XDG_CONFIG_HOME": str(home),
        }
        given = [f"{name}={value}" for name, value in cloud.address(0, {}).parameters.items()]
        run([str(SAM), "deploy", "--config-env", "local", "--parameter-overrides", *given], environment)

        assert "not authorized to perform" in what_a_stranger_is_told(cloud)
        scene = Scene(cloud, outputs_of(cloud))
        the_console_is_served_from_the_artifact(scene.address.outputs["ApiUrl"])
        the_first_person_logs_in(scene.address.outputs["ConsoleUrl"], environment)
        assert "baton_worker:" in environment_of(scene.address, "page_ingest")["DATABASE_URL"]
        scene.cloud.nivoda.misbehave("throttle", budget=1, retry_after="2")
        scene.completes(scene.start(120))
        assert scene.tick()["finished"]
        scene.runs.close()

        run([str(SAM), "delete", "--config-env", "local", "--no-prompts", "--region", DEFAULT_REGION], environment)
        # Why a first deployment failed must be there after its rollback: the migration's log stays, and nothing else.
        left = belongings(scene.address)
        (log,) = set(left["logs"]) - set(before["logs"])
        assert log.startswith(f"/aws/lambda/{STACK}-migrate-")
        assert {**left, "logs": before["logs"]} == before


def run(command: list[str], environment: Any) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"


def outputs_of(cloud: Cloud) -> dict[str, str]:
    stacks = aws.client("cloudformation", endpoint=cloud.ministack.url, access_key=cloud.ministack.access_key)
    (stack,) = stacks.describe_stacks(StackName=STACK)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}


def get(url: str) -> tuple[int, str, str]:
    """By the API's own name, which not every resolver knows."""
    where = urlsplit(url)
    asked = where._replace(netloc=f"127.0.0.1:{where.port}").geturl()
    answer = urllib3.request("GET", asked, headers={"Host": where.netloc}, retries=False, timeout=60)
    return answer.status, answer.headers.get("content-type", ""), answer.data.decode()


def the_console_is_served_from_the_artifact(api: str) -> None:
    status, kind, page = get(f"{api}/console/now")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    named = re.findall(r'(?:href|src)="(assets/[^"]+)"', page)
    assert {Path(name).suffix for name in named} >= {".js", ".css"}
    # And what those modules import in their turn.
    seen: set[str] = set()
    while left := set(named) - seen:
        for name in left:
            status, kind, content = get(f"{api}/console/{name}")
            assert status == 200, name
            assert kind.startswith(("text/javascript", "text/css", "image/svg")), name
            folder = name.rsplit("/", 1)[0]
            named += [
                posixpath.normpath(f"{folder}/{found}")
                for found in re.findall(r'(?:from|import\() ?"(\./[^"]+|\.\./[^"]+)"', content)
            ]
            seen.add(name)
    assert len(seen) > 8
    status, _, document = get(f"{api}/openapi.json")
    assert status == 200
    assert "/api/v1/runs" in json.loads(document)["paths"]
    status, kind, docs = get(f"{api}/docs")
    assert (status, kind) == (200, "text/html")
    assert "swagger" in docs.lower()


def the_first_person_logs_in(console: str, environment: Mapping[str, str]) -> None:
    """By the commands of docs/deploy.md, with no password of the database anywhere."""
    told = baton(
        ["user", "add", "you@example.com", "--role", "admin", "--tenant", "acme", "--stack", STACK], environment
    )
    assert f"console:  {console}" in told
    password = next(line.split()[1] for line in told.splitlines() if line.startswith("password:"))
    login = next(line.split()[2:] for line in told.splitlines() if line.startswith("next:"))
    baton([*login, "--password-stdin"], environment, password + "\n")
    me = json.loads(baton(["me", "--json"], environment))
    assert [(tenant["name"], tenant["role"]) for tenant in me["tenants"]] == [("acme", "admin")]
    told = json.loads(baton(["smoke", "--json"], environment))
    assert [check["name"] for check in told["checks"] if check["ok"]] == ["health", "console", "login", "run"], told


def baton(arguments: list[str], environment: Mapping[str, str], given: str = "") -> str:
    done = subprocess.run(
        [ROOT / ".venv" / "bin" / "baton", "--home", "/nowhere", *arguments],
        cwd=ROOT, env=dict(environment), input=given, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def what_a_stranger_is_told(cloud: Cloud) -> str:
    """A user without any permission who lists queues: let in by the guard, refused by IAM, or nothing is proved."""
    endpoint, root = cloud.ministack.url, cloud.ministack.access_key
    iam = aws.client("iam", endpoint=endpoint, access_key=root)
    iam.create_user(UserName="stranger")
    key = iam.create_access_key(UserName="stranger")["AccessKey"]
    sqs = boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name=DEFAULT_REGION,
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
    )
    with pytest.raises(sqs.exceptions.ClientError) as refused:
        sqs.list_queues()
    return str(refused.value)


def belongings(address: Address) -> dict[str, list[str]]:
    """Everything that a stack of ours makes, by name."""
    named: dict[str, list[str]] = {
        "functions": functions_of(address),
        "queues": sorted(queues_of(address)),
        "mappings": [m["UUID"] for m in address.client("lambda").list_event_source_mappings()["EventSourceMappings"]],
        "schedules": [s["Name"] for s in address.client("scheduler").list_schedules()["Schedules"]],
        "buses": [b["Name"] for b in address.client("events").list_event_buses()["EventBuses"]],
        "logs": [g["logGroupName"] for g in address.client("logs").describe_log_groups()["logGroups"]],
        "buckets": [b["Name"] for b in address.client("s3").list_buckets()["Buckets"] if STACK in b["Name"]],
        "roles": [r["RoleName"] for r in address.client("iam").list_roles()["Roles"] if STACK in r["RoleName"]],
        "alarms": [a["AlarmName"] for a in address.client("cloudwatch").describe_alarms()["MetricAlarms"]],
        "apis": [a["ApiId"] for a in address.client("apigatewayv2").get_apis()["Items"]],
        "pools": [p["Id"] for p in address.client("cognito-idp").list_user_pools(MaxResults=60)["UserPools"]],
    }
    return {name: sorted(found) for name, found in named.items()}
