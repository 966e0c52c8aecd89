"""Measures what the lists cost: time to load, time of a look-up, memory."""

from functools import partial
from itertools import count

from ..harness.engine_runs import rss_mib
from ..harness.figures import Figure
from ..harness.rounds import timed

ROUNDS = 5
LOOK_UPS = 100_000
NEW_DOMAINS = 5_000  # a round
DOMAINS = ("mailinator.com", "acme.test", "mx.acme.test")  # listed, not listed, below one
ADDRESSES = ("ann@gmail.com", "ann@mailinator.com", "ann@acme.test", "info@gmial.com")


def run() -> list[Figure]:
    from mailprobe.engine.address import parse
    from mailprobe.engine.lists.lists import load_lists

    before = rss_mib()
    lists = load_lists()
    used_mib = rss_mib() - before
    loading = timed(load_lists)
    look_up = timed(partial(_lookup, lists.is_disposable))
    known = [parse(text) for text in ADDRESSES] * (LOOK_UPS // len(ADDRESSES))
    signals = timed(partial(_signals, lists.signals, known))
    new = (parse(f"ann@harbour-books{number}.com") for number in count())
    batches = [[next(new) for _ in range(NEW_DOMAINS)] for _ in range(ROUNDS + 1)]
    first = timed(lambda: _signals(lists.signals, batches.pop()), ROUNDS)
    return [
        Figure(
            "loading the lists",
            loading.wall_s * 1000,
            "ms",
            spread=loading.spread,
            cpu_us=loading.cpu_s * 1e6,
            memory_mib=used_mib,
        ),
        look_up.figure("a look-up in the throwaway list", LOOK_UPS * len(DOMAINS)),
        signals.figure("all signals of a known domain", len(known)),
        first.figure("all signals of a new domain", NEW_DOMAINS),
    ]


def _lookup(is_disposable) -> None:  # type: ignore[no-untyped-def]
    for _ in range(LOOK_UPS):
        for domain in DOMAINS:
            is_disposable(domain)


def _signals(signals_of, addresses) -> None:  # type: ignore[no-untyped-def]
    for address in addresses:
        signals_of(address)
