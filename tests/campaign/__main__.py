"""Runs a campaign: `python -m tests.campaign [--minutes N] [--seed N] [--fault NAME …]`."""

import argparse
import sys
import time
from contextlib import suppress
from random import Random

import trio

from tests.campaign.faults import FAULTS, Fault
from tests.campaign.load import PlainClient
from tests.campaign.world import SETTLE_S, World, open_world, pass_a_minute

MINUTES_MAX = 20
LONG_MINUTES = 10  # from there on the long faults are in
WARM_UP = 15  # acknowledgements before a fault
LOG_LINES = 20
TRACEBACK = "Traceback (most recent call last)"


async def run(seed: int, minutes: float, names: list[str]) -> list[str]:
    """Inflict each fault in turn, in another order each time, until the time is over.

    Returns what was found, line by line; the first round that finds something is the last.
    """
    end = time.monotonic() + 60 * minutes
    rounds = 0
    async with open_world(seed) as world:
        order = Random(seed)
        while True:
            for name in order.sample(names, len(names)):
                if rounds and time.monotonic() > end:
                    print(f"campaign: seed={seed} rounds={rounds}: all that was promised is there")
                    return []
                rounds += 1
                if found := await _round(world, seed, rounds, name):
                    return found


async def _round(world: World, seed: int, number: int, name: str) -> list[str]:
    began, before = time.monotonic(), world.witness.acknowledgements
    found: list[str] = []
    try:
        await _inflict(world, FAULTS[name])
        found = await world.settle()
    except* trio.TooSlowError:
        found = ["the service did not go on"]
    except* AssertionError as group:
        found = [f"the service: {str(error)[-2000:]}" for error in group.exceptions]
    log = world.place.log.read_text("utf-8", "replace")
    if TRACEBACK in log:
        line = next(line for line in log.splitlines() if TRACEBACK in line)
        found.append("the log has a traceback:\n" + line.replace("\\n", "\n"))
    acknowledged = world.witness.acknowledgements - before
    took_s = time.monotonic() - began
    print(
        f"campaign: seed={seed} round={number} fault={name} acknowledged={acknowledged}"
        f" jobs={len(world.witness.jobs)} lists={world.lists_done} took_s={took_s:.0f}"
        f" {'differs' if found else 'ok'}",
        flush=True,
    )
    world.place.log.write_text("")
    tail = log.splitlines()[-LOG_LINES:]
    return [*found, "the end of the service's log:", *tail] if found else []


async def _inflict(world: World, fault: Fault) -> None:
    """Clients send, the fault is inflicted, a service without fault ends what is under way."""
    await world.stop()  # that of the round before
    await world.start(**fault.env(world))
    for client in world.clients:
        client.is_last = False
    async with trio.open_nursery() as nursery:
        for client in world.clients:
            nursery.start_soon(client.run, world.url)
        await world.progress(WARM_UP)
        await fault.act(world)
        if world.service is not None:
            await world.stop()
        nursery.cancel_scope.cancel()
    pass_a_minute(world.place)
    await world.start()
    with trio.fail_after(SETTLE_S):
        async with trio.open_nursery() as nursery:
            for client in world.clients:
                client.is_last = True
                if not isinstance(client, PlainClient):
                    nursery.start_soon(client.run, world.url)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES_MAX)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--fault", action="append", choices=FAULTS, default=[])
    parser.add_argument("--list", action="store_true", help="print the faults")
    given = parser.parse_args(words)
    if given.list:
        for name, fault in FAULTS.items():
            print(f"{name:18} {(fault.act.__doc__ or name).strip().splitlines()[0]}")
        return 0
    minutes = min(given.minutes, MINUTES_MAX)
    wanted = given.fault or [
        name for name, fault in FAULTS.items() if minutes >= LONG_MINUTES or not fault.is_long
    ]
    print(f"campaign: seed={given.seed} minutes={minutes:g} faults={len(wanted)}", flush=True)
    if not (found := trio.run(run, given.seed, minutes, wanted)):
        return 0
    print(*(f"campaign: seed={given.seed} failed", *found), sep="\n", file=sys.stderr)
    return 1


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
