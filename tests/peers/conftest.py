"""What the programs said is shown with a test that failed beside them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers import measured
from tests.peers.programs import RUNNING, SHOWN_OCTETS_MAX


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        for program in RUNNING:
            report.sections.append((f"{program.name} said", program.said()[-SHOWN_OCTETS_MAX:]))


def pytest_sessionfinish() -> None:
    if measured.ROWS:
        measured.write()
