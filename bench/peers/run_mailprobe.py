"""Ours, by the library: the whole list in one call."""

import os

import trio

from mailprobe.api.settings import Settings
from mailprobe.engine import open_engine

from ..harness.engine_runs import verify_all
from .runner import (
    BAD,
    CATCH_ALL,
    GOOD,
    UNSURE,
    RunnerClock,
    read_addresses,
    report,
)

WORDS = {
    "deliverable": GOOD,
    "undeliverable": BAD,
    "invalid": BAD,
    "catch_all": CATCH_ALL,
    "unknown": UNSURE,
}


async def main() -> None:
    addresses = read_addresses()
    async with open_engine(Settings.read(os.environ).engine) as engine:
        with RunnerClock() as clock:
            verdicts = await verify_all(engine, addresses)
    report({verdict.email: WORDS[verdict.status] for verdict in verdicts}, clock)


if __name__ == "__main__":
    trio.run(main)
