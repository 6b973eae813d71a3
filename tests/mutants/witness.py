"""A pytest plugin of the mutants' runner: did a test notice something, or could it not even run?

Of each failed test one line is printed: `NOTICED` if the test itself failed, `DID NOT RUN` if it could not be collected or
set up, or met SQL that Postgres does not understand: then the mutant broke the program and not the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pg8000.core import CoreConnection

from tests.support.sql_errors import is_no_sql

_complaints: list[str] = []
_lines: list[str] = []


def pytest_configure() -> None:
    plain = CoreConnection.handle_ERROR_RESPONSE

    def witnessed(connection: Any, data: Any, context: Any) -> None:
        plain(connection, data, context)
        if is_no_sql(context.error):
            _complaints.append(str(context.error.args[0].get("M")))

    CoreConnection.handle_ERROR_RESPONSE = witnessed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    if call.when == "setup":
        _complaints.clear()
    if report.failed:
        cause = str(call.excinfo.value if call.excinfo else "").split("\n", 1)[0]
        word = "DID NOT RUN" if call.when == "setup" or _complaints else "NOTICED"
        _lines.append(f"{word} {item.nodeid}: {_complaints[0] if _complaints else cause}")
    return report  # type: ignore[return-value]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _lines.append(f"DID NOT RUN {report.nodeid}: {str(report.longrepr).splitlines()[-1]}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in _lines:
        terminalreporter.write_line(line)
