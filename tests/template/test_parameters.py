"""Guards that parameters which do not fit together are refused before anything is made, each with the sentence that helps."""

from __future__ import annotations

import re

import pytest

from infra.sam import settings
from tests.support.template import NO_VALUE, ROOT, Values, functions, load

TEMPLATE = load(ROOT / "template.yaml")
ARN = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:x"
OWNER = {"OwnerSecretArn": ARN}
IAM = {**OWNER, "DatabaseIamAuth": "true", "DatabaseHost": "db", "DatabaseResourceId": "cluster-ABC"}
SECRETS = {**OWNER, "DatabaseSecretArn": ARN, "ApiSecretArn": ARN, "DatabaseHost": "db"}
URL = {"DatabaseUrl": "postgresql://w:x@db/baton", "OwnerDatabaseUrl": "postgresql://o:x@db/baton"}
VPC = {"SubnetIds": "subnet-1,subnet-2", "SecurityGroupIds": "sg-1"}


@pytest.mark.parametrize(
    "given", [IAM, SECRETS, URL, {**IAM, **VPC}, {**URL, "OidcIssuer": "https://x", "OidcAudience": "y"}]
)
def test_every_documented_way_is_taken(given: dict[str, str]) -> None:
    assert Values(TEMPLATE, given).broken_rules() == []


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (OWNER, "DatabaseIamAuth, DatabaseSecretArn or DatabaseUrl"),
        ({"DatabaseUrl": "x"}, "OwnerSecretArn or OwnerDatabaseUrl"),
        ({**SECRETS, "ApiSecretArn": ""}, "needs ApiSecretArn"),
        ({**SECRETS, "DatabaseSecretArn": ""}, "needs DatabaseSecretArn"),
        ({**SECRETS, "DatabaseHost": ""}, "needs DatabaseHost"),
        ({**IAM, "DatabaseHost": ""}, "needs DatabaseHost"),
        ({**IAM, "DatabaseResourceId": ""}, "needs DatabaseResourceId"),
        ({**IAM, "DatabaseSecretArn": ARN}, "leave them out"),
        ({**URL, "DatabaseSecretArn": ARN, "ApiSecretArn": ARN, "DatabaseHost": "db"}, "give one of the three"),
        ({**IAM, **VPC, "SecurityGroupIds": ""}, "SubnetIds needs SecurityGroupIds"),
        ({**IAM, **VPC, "SubnetIds": ""}, "SecurityGroupIds needs SubnetIds"),
        ({**URL, "OidcIssuer": "https://x"}, "needs OidcAudience"),
    ],
)
def test_parameters_that_do_not_fit_together_are_refused(given: dict[str, str], missing: str) -> None:
    broken = Values(TEMPLATE, given).broken_rules()

    assert any(missing in sentence for sentence in broken), broken


@pytest.mark.parametrize("value", ["*", "cluster-*", "arn:aws:rds:x", "my-cluster"])
def test_iam_login_to_every_database_of_the_account_cannot_be_asked_for(value: str) -> None:
    assert not re.fullmatch(TEMPLATE["Parameters"]["DatabaseResourceId"]["AllowedPattern"], value)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("", True), ("BATON_ROWS_SLOTS=8", True), ("BATON_ROWS_SLOTS=8,BATON_JOB_COMMANDS=/var/task/x.toml", True),
        ("BATON_ROWS_SLOTS=8 BATON_ROWS_THREADS=8", False), ("ROWS_SLOTS=8", False), ("BATON_ROWS_SLOTS", False),
    ],
)  # fmt: skip
def test_settings_have_the_form_that_the_functions_read(value: str, fits: bool) -> None:
    assert bool(re.fullmatch(TEMPLATE["Parameters"]["Settings"]["AllowedPattern"], value)) is fits


def test_settings_reach_every_function_and_leave_room_for_its_other_variables() -> None:
    """Lambda gives 4 KB to all of them. With a secret for each role, an issuer of one's own and long names."""
    listed = "x" * TEMPLATE["Parameters"]["Settings"]["MaxLength"]
    arns = dict.fromkeys(("NivodaSecretArn", "OwnerSecretArn", "DatabaseSecretArn", "ApiSecretArn"), ARN + "x" * 50)
    long = dict.fromkeys(
        ("DatabaseHost", "NivodaBaseUrl", "ProductSearchBaseUrl", "OidcIssuer", "OidcOrigins"), "x" * 90
    )
    names = dict.fromkeys(("Stage", "OidcAudience", "OidcClientId", "GoogleSheetsSpreadsheetId"), "x" * 40)
    values = Values(TEMPLATE, {**arns, **long, **names, "Settings": listed})
    for name, function in functions(TEMPLATE).items():
        variables = {key: values.of(value) for key, value in function["Environment"]["Variables"].items()}
        assert variables["BATON_SETTINGS"] == listed, name
        assert sum(len(f"{key}{value}") for key, value in variables.items() if value is not NO_VALUE) < 4_000, name
    assert TEMPLATE["Resources"]["Schema"]["Properties"]["Settings"] == {"Ref": "Settings"}, "they are checked anew"


@pytest.mark.parametrize(("listed", "code"), [("BATON_ROWS_SLOTS=8,BATON_ROWS_THREADS=4", 0), ("BATON_ROWS_SLOT=8", 1)])
def test_settings_are_checked_before_anything_is_uploaded(
    listed: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"--parameter-overrides Stage=dev Settings={listed} DatabaseConnections=90"

    assert settings.main(["--arguments", given]) == code
    assert ("did you mean BATON_ROWS_SLOTS?). Nothing was uploaded." in capsys.readouterr().err) is bool(code)
