"""Garbage collection is deferred during the start, and only then."""

import gc
from collections.abc import Iterator

import pytest

from mailprobe.api.cli.source import open_own_engine
from mailprobe.api.gc_tuning import (
    COLLECT_AFTER,
    COMMAND_COLLECT_AFTER,
    collector_paused,
    tune_collector,
)
from mailprobe.engine.settings import EngineSettings


@pytest.fixture(autouse=True)
def collector_as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


def test_it_is_held_until_the_start_is_over() -> None:
    with collector_paused():
        assert not gc.isenabled()
        tune_collector()
        assert gc.isenabled()
        assert gc.get_threshold()[0] == COLLECT_AFTER
        assert gc.get_freeze_count() > 0
        assert gc.get_count()[0] < COLLECT_AFTER  # objects of the start are not collected next
    assert gc.isenabled()


def test_a_start_that_fails_leaves_it_as_it_was() -> None:
    with pytest.raises(ValueError, match="wrong"), collector_paused():
        raise ValueError("wrong")
    assert gc.isenabled()
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


async def test_an_engine_of_a_command_is_the_end_of_its_start() -> None:
    with collector_paused():
        async with open_own_engine(EngineSettings()):
            assert gc.isenabled()
            assert gc.get_threshold()[0] == COMMAND_COLLECT_AFTER
