"""The back-off rule: how long to wait before something that failed is tried again.

Every queue of the outbox worker retries by it, with its own figures: callbacks, alerts,
the billing meter, and the worker itself while the other side refuses everything.
Pure: chance and time are arguments.
"""

from math import inf

from msgspec import Struct


def growing(first_s: float, most_s: float) -> tuple[float, ...]:
    """Return the pauses from `first_s`, each twice the last, up to and with `most_s`."""
    pauses = []
    while first_s < most_s:
        pauses.append(first_s)
        first_s *= 2.0
    return (*pauses, most_s)


class Backoff(Struct, frozen=True):
    """A plan of pauses, and what may change one of them.

    `spread` holds the factors of a pause at chance 0 and at chance 1, so that what failed
    together is not tried again together.
    """

    plan_s: tuple[float, ...]
    ends: bool = False  # after the last pause there is no further try; else that pause repeats
    spread: tuple[float, float] = (1.0, 1.0)
    retry_after_s_max: float = 0.0  # a longer Retry-After is cut to this
    tried_for_s: float = inf  # no try begins later than this after the first

    def pause_s(
        self,
        failures: int,
        *,
        chance: float,
        retry_after_s: float | None = None,
        tried_s: float = 0.0,
    ) -> float | None:
        """Return the seconds until the next try after `failures` (from 1); None if there is none.

        `chance` is a random number from 0 to 1. `retry_after_s` is what the other side asked
        for, `tried_s` the time since the first try.
        """
        if self.ends and failures > len(self.plan_s):
            return None
        least, most = self.spread
        planned_s = self.plan_s[min(failures, len(self.plan_s)) - 1]
        pause_s = planned_s * (least * (1 - chance) + most * chance)
        pause_s = max(pause_s, min(retry_after_s or 0.0, self.retry_after_s_max))
        return pause_s if tried_s + pause_s <= self.tried_for_s else None
