"""What the lists cost: to load, to look up, to keep."""

import time

from bench.asking import rss_mib
from bench.figures import Figure

ROUNDS = 200_000


def run() -> list[Figure]:
    from engine.address import parse
    from engine.lists import load_lists

    before = rss_mib()
    began = time.perf_counter()
    lists = load_lists()
    load_ms = (time.perf_counter() - began) * 1000
    used = rss_mib() - before
    addresses = [parse(f"ann@{domain}") for domain in ("gmail.com", "mailinator.com", "acme.test")]
    return [
        Figure("loading the lists", load_ms, "ms"),
        Figure("a look-up in the throwaway list", _each_us(lists), "µs"),
        Figure("all signals of a known domain", _signals_us(lists, addresses), "µs"),
        Figure("memory of the lists", used, "MiB"),
    ]


def _each_us(lists) -> float:  # type: ignore[no-untyped-def]
    is_disposable, domains = lists.is_disposable, ("mailinator.com", "acme.test", "mx.acme.test")
    began = time.perf_counter()
    for _ in range(ROUNDS // 3):
        for domain in domains:
            is_disposable(domain)
    return (time.perf_counter() - began) / (ROUNDS // 3 * 3) * 1e6


def _signals_us(lists, addresses) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    for _ in range(ROUNDS // 3):
        for address in addresses:
            lists.signals(address)
    return (time.perf_counter() - began) / (ROUNDS // 3 * 3) * 1e6
