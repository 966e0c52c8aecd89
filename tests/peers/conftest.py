"""Fixtures of several peers; the programs' logs are shown with a test that failed."""

from collections.abc import Iterator
from typing import Any

import pytest

from mailprobe.bench.lab import Lab, start_lab
from mailprobe.engine.testing.zone import Zone
from tests.peers import measured
from tests.peers.mail_servers import MailServer
from tests.peers.programs.process import RUNNING, SHOWN_OCTETS_MAX


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@pytest.fixture
def zone(mail_server: MailServer) -> Zone:
    """The names of the module's mail server, for one test to change."""
    return mail_server.domains.zone()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed:
        for program in RUNNING:
            report.sections.append((f"{program.name} logs", program.logs()[-SHOWN_OCTETS_MAX:]))


def pytest_sessionfinish() -> None:
    if measured.ROWS:
        measured.write()
