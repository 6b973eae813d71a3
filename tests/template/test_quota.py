"""Guards that nobody deploys into an account that cannot run it without being told what to do first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from infra.sam import quota
from infra.sam.quota import QUOTA, SERVICE, UNRESERVED, TooLittle, advice, check, wanted
from tests.support.template import ROOT, functions, load, mappings

ASKED = {"ServiceCode": SERVICE, "QuotaCode": QUOTA}


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    """Service Quotas, as strict about requests and answers as its own model."""
    client: Any = boto3.client(
        "service-quotas", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    monkeypatch.setattr(boto3, "client", lambda name: {"service-quotas": client}[name])
    with Stubber(client) as stubber:
        yield stubber
    stubber.assert_no_pending_responses()


def has(account: Stubber, value: float) -> None:
    account.add_response("get_service_quota", {"Quota": {"QuotaCode": QUOTA, "Value": value}}, ASKED)


def test_a_new_account_cannot_reserve_and_is_refused_before_anything_is_uploaded(
    account: Stubber, capsys: pytest.CaptureFixture[str]
) -> None:
    has(account, 10.0)

    assert quota.main(["--config", "prod"]) == 1

    told = capsys.readouterr().err
    assert "Nothing was uploaded" in told
    assert f"request-service-quota-increase --service-code lambda --quota-code {QUOTA} --desired-value 1000" in told
    assert "ReserveConcurrency=false" in told


def test_a_small_quota_is_not_passed_over_in_silence(account: Stubber, capsys: pytest.CaptureFixture[str]) -> None:
    has(account, 10.0)

    assert quota.main([]) == 0

    assert "runs 10 functions at once" in capsys.readouterr().err


def test_an_account_that_has_enough_hears_nothing(account: Stubber, capsys: pytest.CaptureFixture[str]) -> None:
    for config in ("default", "prod"):
        has(account, 1000.0)
        assert quota.main(["--config", config]) == 0

    assert capsys.readouterr().err == ""


def test_a_quota_that_may_not_be_asked_for_is_unknown_not_enough(account: Stubber) -> None:
    account.add_client_error("get_service_quota", "AccessDeniedException", expected_params=ASKED)

    told = check("prod")

    assert told is not None
    assert "is unknown (AccessDeniedException)" in told
    assert "aws lambda get-account-settings" in told


def test_the_command_line_wins_over_the_stage() -> None:
    assert wanted("prod", "--parameter-overrides Stage=prod ReserveConcurrency=false").reserved == 0
    assert wanted("default", "--parameter-overrides 'DatabaseConnections=400'").connections == "400"
    with pytest.raises(TooLittle, match="not one of 45, 90, 180, 400, 900"):
        wanted("default", "DatabaseConnections=91")


def test_what_lambda_insists_on_is_left_over() -> None:
    want = wanted("prod")

    advice(want, want.reserved + UNRESERVED)
    with pytest.raises(TooLittle):
        advice(want, want.reserved + UNRESERVED - 1)


def test_every_function_that_runs_by_use_is_counted() -> None:
    template = load(ROOT / "template.yaml")
    reserved = [name for name, each in functions(template).items() if "ReservedConcurrentExecutions" in each]
    counted = template["Mappings"]["Connections"]

    assert sorted(f"{name}Function" for name in quota.RESERVE) == sorted(reserved)
    (forward,) = (event for name, event, *_ in mappings(template) if name == "ForwardFunction")
    assert forward["ScalingConfig"]["MaximumConcurrency"] == quota.FORWARD
    assert {f"{name}Function" for row in ("weight", "always") for name in counted[row]} | {"ForwardFunction"} == set(
        functions(template)
    )
