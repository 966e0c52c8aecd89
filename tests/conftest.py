"""What makes the whole suite quick: the longest files first, and a collector that is spared."""

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from trio.testing import MockClock
from xdist.scheduler import LoadScopeScheduling

from mailprobe.api.gc_tuning import collector_paused, tune_collector
from tests.compiled_once import share_compiled
from tests.seeds import ALL

# Hypothesis' deadline of 0.2 s an example would test the machine, not this code.
settings.register_profile("patient", deadline=None, max_examples=100 if ALL else 25)
settings.load_profile("patient")

# The processes take whole files, in this order (see `make test`): what begins last should be
# short, or one of them works alone at the end. The rest follows as it was collected.
LONGEST_FIRST = (
    "tests/api/rest/description/test_schemathesis.py",
    "tests/test_architecture.py",
    "tests/simulation/test_sequences.py",
    "tests/engine/smtp/test_cancellation.py",
    "tests/api/cli/lists/test_update.py",
    "tests/hostile_files/test_clean.py",
    "tests/api/cli/test_standard_streams.py",
    "tests/bench/suites/test_service.py",
    "tests/docs/test_commands.py",
    "tests/engine/dns/test_endpoint_faults.py",
    "tests/engine/smtp/egress/test_take_over.py",
    "tests/engine/smtp/replies/test_reply_cost.py",
    "tests/api/cli/test_demo.py",
    "tests/api/http/test_abuse_operations.py",
    "tests/simulation/test_defences.py",
    "tests/bench/harness/test_harness.py",
    "tests/api/asgi/test_hypercorn.py",
    "tests/engine/smtp/tolerance/test_at_hosts.py",
    "tests/engine/dns/test_hung_resolver.py",
    "tests/engine/smtp/replies/test_rules.py",
    "tests/api/observability/test_metrics_served.py",
    "tests/bench/lab/test_lab.py",
    "tests/engine/dns/test_hung_names.py",
    "tests/api/quota/test_refusal_leases.py",
    "tests/api/cli/remote/test_list_way.py",
    "tests/simulation/differential/test_differential.py",
    "tests/api/cli/early_end/test_dead_host.py",
    "tests/docs/test_programs_at_limits.py",
    "tests/engine/test_faults.py",
    "tests/api/quota/test_shared_cache.py",
    "tests/engine/smtp/host/test_late_replies.py",
    "tests/api/cli/test_clean.py",
    "tests/api/http/test_two_readers.py",
    "tests/api/quota/test_abuse_money.py",
    "tests/dev/lists/test_building.py",
    "tests/api/quota/test_hangups_billed.py",
    "tests/engine/smtp/limits/test_recipient_limits.py",
    "tests/api/observability/test_logs.py",
    "tests/engine/smtp/test_out_of_step.py",
    "tests/api/quota/test_edges.py",
    "tests/api/cli/cleaning/test_foreign_workbooks.py",
    "tests/api/lists/test_killed.py",
    "tests/api/cli/remote/test_killed_clean.py",
    "tests/engine/smtp/egress/test_held_probes.py",
    "tests/api/quota/test_killed_between_writes.py",
)

# One process takes all of these. Each parses most of our sources, 360 MB of syntax trees, and a
# process parses a file once.
SYNTAX_RULES = frozenset(
    [
        "tests/test_architecture.py",
        "tests/test_dependencies.py",
        "tests/test_layers.py",
        "tests/test_names.py",
        "tests/test_private_names.py",
        "tests/test_state_owners.py",
    ]
)

COLLECT_AFTER = (
    200_000  # new containers: at most 75 MB; after 50,000 each it takes 3 % of the time more
)

IN_MEMORY = "/dev/shm"  # files of Linux' shared memory
IN_MEMORY_MIN = 2 << 30  # a run leaves 160 MB; a container's shared memory may be 64 MB in all

# A database syncs its file with each change, and waits 1-30 ms for a disk: that was most of the
# time of storage's tests. Nothing here is about a disk that loses power.
if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > IN_MEMORY_MIN:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)

# jsonschema makes 38 parsers of it, to check what no schema here has (`iri`): 2 s of each process.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

share_compiled()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell starts what is put behind a `&`; programs under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """One process has all tests of a file, and all of SYNTAX_RULES."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "syntax rules" if file in SYNTAX_RULES else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile | None:
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """All that is collected stays: to look for cycles in it takes a quarter of the time."""
    with collector_paused():
        return (yield)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: to look for cycles among them takes 8 % of the time."""
    tune_collector(COLLECT_AFTER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Send one report of a test that passes, not five: they were a third of a short test's time.

    Its duration is that of the whole test. What fails or is skipped in its set-up is sent as ever.
    """
    runner = item.config.pluginmanager.getplugin("runner")
    assert runner is not None
    reports = runner.runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        if report.when == "call":
            report.duration = sum(each.duration for each in reports)
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


IDLE_S = 0.01  # then nothing is under way: both ends of every socket are in this one loop


@pytest.fixture
def idle_clock() -> MockClock:
    """Virtual time for real sockets: it stands still until nothing has arrived for IDLE_S.

    A busy machine takes none of the deadlines away, and no test waits for one.
    """
    return MockClock(autojump_threshold=IDLE_S)


class _Faults(logging.Handler):
    """What background work has logged since a test began."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.append(logging.Formatter().format(record))


_faults = pytest.StashKey[_Faults]()
_log_level = pytest.StashKey[int]()
_background = logging.getLogger("mailprobe.background")


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> list[str]:
    """The faults that background work has logged, for a test that expects some."""
    return request.node.stash[_faults].logged  # type: ignore[no-any-return]


# A bug in background work ends nothing, so that a test would not see it. These are hooks, for a
# fixture of every test takes a tenth of the time of the short ones.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_faults] = _Faults()
    _background.addHandler(item.stash[_faults])
    item.stash[_log_level] = logging.getLogger().level
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Function) -> Iterator[None]:
    try:
        yield
    finally:
        _background.removeHandler(item.stash[_faults])
    logged = item.stash[_faults].logged
    if "faults" not in item.fixturenames:
        assert not logged, logged[0]
    # A command that sets up its log belongs in a process of its own: tests after it count lines.
    assert logging.getLogger().level == item.stash[_log_level], "the test changed the log's level"
