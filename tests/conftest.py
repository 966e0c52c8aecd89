"""What makes the whole suite quick: the longest files first, and a collector that is spared."""

import pytest

from api.collector import spare_the_collector

# Two processes take whole files, in this order (see `make test`): what begins last should be
# short, or one of the two waits for the other. The rest follows as it was collected.
LONGEST_FIRST = (
    "tests/api/test_edges.py",
    "tests/api/test_killed.py",
    "tests/api/test_description_holds.py",
    "tests/api/test_jobs_killed.py",
    "tests/api/test_cli_serve.py",
    "tests/api/test_payments.py",
    "tests/test_readme.py",
    "tests/storage/test_model_queues.py",
    "tests/test_real_sockets.py",
    "tests/storage/test_model.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


def pytest_collection_finish() -> None:
    """Seven thousand tests stay to the end: to look for cycles among them takes 8 % of the time."""
    spare_the_collector()
