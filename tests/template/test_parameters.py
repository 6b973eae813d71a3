"""Guards that parameters which do not fit together are refused before anything is made, each with the sentence that helps."""

from __future__ import annotations

import re

import pytest

from tests.support.template import ROOT, Values, load

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
