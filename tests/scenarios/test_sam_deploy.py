"""`sam build` and `sam deploy` as they go to AWS, into the local one: a run completes, also when IAM is enforced; nothing is left."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import boto3
import pytest

from infra.local.cloud import Address, Cloud, throwaway_home
from infra.local.deploy import ROOT, STACK
from infra.local.runs import environment_of, functions_of, queues_of
from shared.kernel.aws import DEFAULT_REGION
from tests.support.scene import Scene

SAM = ROOT / ".local" / "sam-venv" / "bin" / "sam"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("enforce_iam", [False, True], ids=["plain", "iam enforced"])
def test_a_run_completes_through_sam_deploy_and_a_deleted_stack_leaves_nothing(enforce_iam: bool) -> None:
    run(["make", "build", "ARCHITECTURE=here"], os.environ)
    with throwaway_home() as home, Cloud.start(home, print, enforce_iam=enforce_iam, stones=500) as cloud:
        before = belongings(cloud.address(os.getpid(), {}))
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": cloud.ministack.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": DEFAULT_REGION,
        }
        given = [f"{name}={value}" for name, value in cloud.address(0, {}).parameters.items()]
        run([str(SAM), "deploy", "--config-env", "local", "--parameter-overrides", *given], environment)

        assert may_a_stranger_look(cloud.ministack.url) is not enforce_iam
        scene = Scene(cloud, {})
        assert "baton_worker@" in environment_of(scene.address, "page_ingest")["DATABASE_URL"]
        scene.cloud.nivoda.misbehave("throttle", budget=1, retry_after="2")
        scene.completes(scene.start(120))
        assert scene.tick()["finished"]
        scene.runs.close()

        run([str(SAM), "delete", "--config-env", "local", "--no-prompts", "--region", DEFAULT_REGION], environment)
        assert belongings(scene.address) == before


def run(command: list[str], environment: Any) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"


def may_a_stranger_look(endpoint: str) -> bool:
    """Whether a user without any permission can list queues: then nothing is enforced, and its test proves nothing."""
    iam = boto3.client(
        "iam", endpoint_url=endpoint, region_name=DEFAULT_REGION, aws_access_key_id="test", aws_secret_access_key="test"
    )
    iam.create_user(UserName="stranger")
    key = iam.create_access_key(UserName="stranger")["AccessKey"]
    sqs = boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name=DEFAULT_REGION,
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
    )
    try:
        sqs.list_queues()
    except sqs.exceptions.ClientError:
        return False
    return True


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
