"""The part that all runners share: take addresses, give answers, report their cost.

A runner is a program that puts one verifier to work. It reads a JSON array of
addresses and prints, as its last line, the verifier's answers: a JSON object
with `told` (address -> one of WORDS), `took_s`, `cpu_s` and `raised`, the
number of addresses for which the verifier raised an error instead.

The clock runs from the first question to the last answer: starting, importing
and loading lists are not counted. This file is also read by the
peers' interpreters, so it needs nothing but the standard library.
"""

import json
import resource
import sys
import time
from collections.abc import Mapping

GOOD, BAD, UNSURE, CATCH_ALL = WORDS = ("good", "bad", "unsure", "catch_all")
HELO = "probe.example.org"  # for those whose documentation says to give a name
SENDER = "probe@example.org"


class RunnerClock:
    """The time that a block takes, and the processor time of this process and those it waited for."""

    took_s = 0.0
    cpu_s = 0.0

    def __enter__(self) -> "RunnerClock":
        self.cpu_s, self.took_s = _cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.took_s = time.perf_counter() - self.took_s
        self.cpu_s = _cpu_s() - self.cpu_s


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def read_addresses() -> list[str]:
    addresses: list[str] = json.load(sys.stdin)
    return addresses


def report(reported: Mapping[str, str], clock: RunnerClock, raised: int = 0) -> None:
    answer = {"told": reported, "took_s": clock.took_s, "cpu_s": clock.cpu_s, "raised": raised}
    print("\n" + json.dumps(answer), flush=True)


def word(answer: bool | None) -> str:
    """For verifiers that say yes, no, or nothing."""
    return UNSURE if answer is None else GOOD if answer else BAD
