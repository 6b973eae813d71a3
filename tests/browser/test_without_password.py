"""Guards the way in that AWS has: the issuer's own page, with a code that is used once and a proof of who asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from infra.local.deploy import STACK
from tests.support.browser import PASSWORD, People, Watch
from tests.support.scene import Scene

pytestmark = pytest.mark.full

API = f"{STACK}-api"


@pytest.fixture(scope="module", autouse=True)
def hosted_page(cloud: Scene) -> Iterator[None]:
    """The deployed api function as in AWS: it names an issuer, and no place that takes passwords."""
    functions, outputs = cloud.address.client("lambda"), cloud.address.outputs
    before = functions.get_function_configuration(FunctionName=API)["Environment"]["Variables"]
    issuer = f"{cloud.address.endpoint}/{outputs['UserPoolId']}"
    there = {**before, "BATON_LOGIN_ISSUER": issuer, "BATON_LOGIN_PASSWORD_URL": ""}
    functions.update_function_configuration(FunctionName=API, Environment={"Variables": there})
    yield
    functions.update_function_configuration(FunctionName=API, Environment={"Variables": before})


def test_the_issuers_page_sends_people_back_to_where_they_were_going(page: Page, people: People, watch: Watch) -> None:
    page.goto("runs?status=failed")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/oauth2/authorize?*code_challenge_method=S256*")
    page.locator("input[name=username]").fill(people.viewer.email)
    page.locator("input[name=password]").fill(PASSWORD)
    page.locator("[type=submit]").first.click()

    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    assert re.search(r"/console/runs\?status=failed$", page.url), page.url
    expect(page.get_by_text(people.viewer.email)).to_be_visible()

    # What the issuer gave is renewed with it, and ends with it.
    page.evaluate(
        """() => {
            const kept = JSON.parse(sessionStorage.getItem("baton.session"));
            sessionStorage.setItem("baton.session", JSON.stringify({...kept, access: kept.access.slice(0, -8) + "AAAAAAAA"}));
        }"""
    )
    watch.expects(401, "/api/v1/")
    page.reload()
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()


def test_an_answer_that_nobody_asked_for_lets_nobody_in(page: Page) -> None:
    page.goto("now?code=stolen&state=of-somebody-else")

    expect(page.get_by_role("alert")).to_contain_text("not started in this tab")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert "code=" not in page.url
