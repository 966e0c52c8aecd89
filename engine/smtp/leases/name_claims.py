"""Random names of one host's domains, as processes share them: one sends a domain's, lists elsewhere wait.

A claim goes with the call that leases refusals. It ends with a call that does not name it, and at
the latest CLAIM_S after the first one that did, so a process that died, or an account that cannot
send the name, does not block the others. By then they have the answer, or one of them sends a name.
"""

from collections.abc import Iterable
from math import inf

from msgspec import Struct, field

CLAIM_S = 5.0  # an answer reaches the others within two seconds
ELSEWHERE_S = 3.0  # so long a list's rows wait for the answer to a name of another process
CLAIMS_MAX = 16  # in one call


class NameClaims(Struct, eq=False):
    """The names that this process wants to send, may send, and leaves to others.

    Each is the key of its domain, with the instant until which that holds, on the caller's clock.
    """

    _wanted: dict[str, float] = field(default_factory=dict)
    _reported: list[str] = field(default_factory=list)  # by the call under way
    _mine: dict[str, float] = field(default_factory=dict)
    _elsewhere: dict[str, float] = field(default_factory=dict)

    def want(self, name: str, now: float) -> bool:
        """Claim the name, to send it when allowed. Returns False if another process sends it."""
        self._wanted[name] = now + CLAIM_S
        return now >= self._elsewhere.get(name, -inf)

    def is_mine(self, name: str, now: float) -> bool:
        return now < self._mine.get(name, -inf)

    def report(self, now: float, *, is_wanted: bool) -> list[str]:
        """What the call names; nothing if the host is not wanted any more."""
        self._wanted = {name: until for name, until in self._wanted.items() if until > now}
        self._reported = list(self._wanted)[:CLAIMS_MAX] if is_wanted else []
        return self._reported

    def granted(self, elsewhere: Iterable[str], began: float) -> None:
        """The call that `began` then was answered: other processes send these names."""
        until = began + CLAIM_S
        self._elsewhere = dict.fromkeys(elsewhere, until)
        self._mine = dict.fromkeys(set(self._reported) - self._elsewhere.keys(), until)
