"""Seats shared by turns: what one costs must not grow with how many wait for one.

"In turn": an asker has some waiting, one of them leaves and another one comes. "In and
out": an asker's only one leaves, so that its lane goes and is made again.
"""

from functools import partial

from mailprobe.bench.harness.figures import Figure
from mailprobe.bench.harness.rounds import Timed, ratio, timed
from mailprobe.engine.fair_queue import Turnstile

ASKERS = (1, 100, 10_000)
EACH = 3  # that an asker has waiting, but for the last figures
TURNS = 50_000  # a round


def run() -> list[Figure]:
    in_turn = {askers: measure(askers, EACH) for askers in ASKERS}
    in_and_out = {askers: measure(askers, 1) for askers in ASKERS}
    first, last = ASKERS[0], ASKERS[-1]
    return [
        *(each.figure(f"in turn: askers {askers:,}", TURNS) for askers, each in in_turn.items()),
        *(
            each.figure(f"in and out: askers {askers:,}", TURNS)
            for askers, each in in_and_out.items()
        ),
        ratio("in turn: 10,000 askers beside 1", in_turn[last], in_turn[first]),
        ratio("in and out: 10,000 askers beside 1", in_and_out[last], in_and_out[first]),
    ]


def measure(askers: int, each: int) -> Timed:
    """A seat taken and waited for again, with so many waiting all the time."""
    turnstile: Turnstile[str] = Turnstile()
    for _ in range(each):
        for number in range(askers):
            asker = f"account {number}"
            turnstile.join(asker, asker)
    return timed(partial(go_round, turnstile))


def go_round(turnstile: Turnstile[str]) -> None:
    take, join = turnstile.take, turnstile.join
    for _ in range(TURNS):
        asker = take()
        assert asker is not None
        join(asker, asker)
