"""What makes the whole suite quick: the longest files first, and a collector that is spared."""

import logging
import signal
from collections.abc import Callable, Iterator

import pytest
from werkzeug.routing import Rule

from mailprobe.api.gc_tuning import tune_collector

# The processes take whole files, in this order (see `make test`): what begins last should be
# short, or one of them works alone at the end. The rest follows as it was collected.
LONGEST_FIRST = (
    "tests/api/quota/test_killed.py",
    "tests/simulation/test_doubled_at_tarpits.py",
    "tests/simulation/test_sequences.py",
    "tests/api/quota/test_killed_between_writes.py",
    "tests/engine/smtp/test_cancellation.py",
    "tests/engine/test_real_sockets.py",
    "tests/api/cli/cleaning/test_faults.py",
    "tests/api/quota/test_edges.py",
    "tests/simulation/test_bad_neighbours.py",
    "tests/api/jobs/test_killed.py",
    "tests/engine/dns/test_endpoint_faults.py",
    "tests/api/rest/description/test_schemathesis.py",
    "tests/api/cli/test_standard_streams.py",
    "tests/api/test_serve.py",
    "tests/storage/test_model_queues.py",
    "tests/api/cli/test_clean.py",
    "tests/simulation/test_interleavings.py",
    "tests/docs/test_commands.py",
    "tests/engine/dns/test_hung_resolver.py",
    "tests/api/billing/test_killed_worker.py",
    "tests/simulation/test_out_of_step.py",
    "tests/api/http/test_abuse_operations.py",
    "tests/engine/smtp/test_out_of_step.py",
    "tests/api/cli/test_serve.py",
    "tests/storage/test_model.py",
)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell starts what is put behind a `&`; programs under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


def pytest_collection_finish() -> None:
    """Seven thousand tests stay to the end: to look for cycles among them takes 8 % of the time."""
    tune_collector()


_compile_builder = Rule._compile_builder
_builders: dict[tuple[object, ...], Callable[..., tuple[str, str]]] = {}


def _builder(rule: Rule, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
    defaults = tuple(sorted((rule.defaults or {}).items()))
    key = (rule.rule, rule.host, rule.subdomain, defaults, append_unknown)
    if key not in _builders:
        _builders[key] = _compile_builder(rule, append_unknown)
    return _builders[key]


# Each service of a test makes the same 90 routes, and werkzeug compiles two functions for each
# of them: a fifth of the time of the tests that open one.
setattr(Rule, "_compile_builder", _builder)  # noqa: B010 - mypy forbids to assign a method


class _Faults(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.logged: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.append(logging.Formatter().format(record))


@pytest.fixture
def faults() -> Iterator[list[str]]:
    """The faults that background work has logged, for a test that expects some."""
    seen = _Faults()
    log = logging.getLogger("mailprobe.background")
    log.addHandler(seen)
    yield seen.logged
    log.removeHandler(seen)


@pytest.fixture(autouse=True)
def no_unexpected_fault(request: pytest.FixtureRequest) -> Iterator[None]:
    """A bug in background work ends nothing, so that a test would not see it."""
    logged = request.getfixturevalue("faults")
    yield
    if "faults" not in request.node._fixtureinfo.argnames:
        assert not logged, logged[0]
