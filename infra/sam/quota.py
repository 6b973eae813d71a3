"""Before a deployment: does the account let so many functions run at once?

A new account has a quota of 10 for all functions of a region, and reserving any of it fails in the middle of a deployment.
So the quota is asked for first. What cannot work is refused, what would be slow is said, and an account that does not
answer is told how to look by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import yaml
from botocore.exceptions import BotoCoreError, ClientError

from infra.sam.artifact import ROOT

SERVICE, QUOTA = "lambda", "L-B99A9384"  # concurrent executions
UNRESERVED = 100  # Lambda keeps so many for functions that reserve none
ENOUGH = 1000  # what an account has once it is used, and what is granted without questions
RESERVE = ("Api", "Intake", "Tick", "Sweep")
FORWARD = 10
OVERRIDE = re.compile(r"\b(\w+)=[\"']?([^\s\"']+)")


class TooLittle(Exception):
    """The deployment would fail; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many functions run at once at most, how many of them are kept apart, and for which stage."""

    at_once: int
    reserved: int
    connections: str


def wanted(
    config: str, arguments: str = "", samconfig: Path = ROOT / "samconfig.toml", template: Path = ROOT / "template.yaml"
) -> Wanted:
    """By the mapping `Connections`: a function holds one connection, and so many copies of it run."""
    document = _plain(template)
    given = overrides(config, arguments, samconfig)
    connections = given.get("DatabaseConnections", document["Parameters"]["DatabaseConnections"]["Default"])
    shares = document["Mappings"]["Connections"]
    if connections not in shares:
        raise TooLittle(f"DatabaseConnections={connections} is not one of {', '.join(_sizes(shares))}.")
    counts: dict[str, int] = {**shares["always"], **shares[connections]}
    reserves = given.get("ReserveConcurrency", "false") == "true"
    return Wanted(
        at_once=sum(counts.values()) + FORWARD,
        reserved=sum(counts[name] for name in RESERVE) if reserves else 0,
        connections=connections,
    )


def overrides(config: str, arguments: str = "", samconfig: Path = ROOT / "samconfig.toml") -> dict[str, str]:
    """The parameters that a deployment gives: those of its stage, and those of the command line over them."""
    said = tomllib.loads(samconfig.read_text()).get(config, {}).get("deploy", {}).get("parameters", {})
    found = said.get("parameter_overrides", [])
    text = " ".join(found) if isinstance(found, list) else str(found)
    return dict(OVERRIDE.findall(text)) | dict(OVERRIDE.findall(arguments))


def advice(want: Wanted, quota: int) -> str | None:
    """What to tell whoever deploys; None: all is well. Raises if the deployment would fail."""
    more = (
        f"Ask for more, which costs nothing: aws service-quotas request-service-quota-increase "
        f"--service-code {SERVICE} --quota-code {QUOTA} --desired-value {max(ENOUGH, want.at_once + UNRESERVED)}"
    )
    if want.reserved and quota - want.reserved < UNRESERVED:
        raise TooLittle(
            f"This account runs {quota} functions at once. ReserveConcurrency=true keeps {want.reserved} of them for the API, "
            f"the intake, the tick and the sweep, and Lambda insists on {UNRESERVED} that nobody keeps. Nothing was uploaded. "
            f"{more} Until then deploy with ReserveConcurrency=false."
        )
    if quota < want.at_once:
        return (
            f"This account runs {quota} functions at once; at its busiest, this stage with DatabaseConnections="
            f"{want.connections} wants {want.at_once}. It works with less, but then steps, the API and the tick wait for each "
            f"other. {more}"
        )
    return None


def account_quota(client: Any = None) -> int:
    """As Service Quotas has it for this account and region."""
    client = client or boto3.client("service-quotas")
    found = client.get_service_quota(ServiceCode=SERVICE, QuotaCode=QUOTA)
    return int(found["Quota"]["Value"])


def check(config: str, arguments: str = "", client: Any = None) -> str | None:
    want = wanted(config, arguments)
    try:
        quota = account_quota(client)
    except (BotoCoreError, ClientError, KeyError) as error:
        return (
            f"The account's quota of concurrent executions is unknown ({type(error).__name__}). This stage wants {want.at_once} "
            f"and reserves {want.reserved}. Look by hand: aws lambda get-account-settings --query AccountLimit.ConcurrentExecutions"
        )
    return advice(want, quota)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="default")
    parser.add_argument("--arguments", default="")
    given = parser.parse_args(argv)
    try:
        said = check(given.config, given.arguments)
    except TooLittle as error:
        print(f"baton: {error}", file=sys.stderr)
        return 1
    if said is not None:
        print(f"baton: {said}", file=sys.stderr)
    return 0


def _sizes(shares: Mapping[str, Any]) -> list[str]:
    return sorted((name for name in shares if name.isdigit()), key=int)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML whose CloudFormation tags do not matter here."""


_Loader.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


def _plain(template: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(template.read_text(), Loader=_Loader)  # noqa: S506 - a safe loader
    return found


if __name__ == "__main__":
    sys.exit(main())
