"""Fixtures of several peers; the programs' logs are shown with a test that failed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from mailprobe.bench.lab import Lab
from mailprobe.bench.world.zone import Zone
from tests.peers import measured
from tests.peers.mail_servers import MailServer
from tests.peers.programs.process import RUNNING, SHOWN_OCTETS_MAX
from tests.warm_lab import start_lab

# the tests with nginx or Caddy
IN_FRONT = {
    "test_default_nginx.py", "test_nginx.py", "test_proxies.py", "test_refusing_service.py",
}  # fmt: skip


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


class _ByProgram(LoadScopeScheduling):  # type: ignore[misc]
    """One of the runner's processes has a file's tests, and all of a program, which has one folder."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "nginx" if Path(path).name in IN_FRONT else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByProgram:
    return _ByProgram(config, log)


def pytest_testnodedown(node: Any) -> None:
    measured.merge(getattr(node, "workeroutput", {}).get("measured", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["measured"] = list(measured.ROWS.items())
    elif measured.ROWS:
        measured.write()
