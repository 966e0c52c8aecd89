"""The tolerances of all mail hosts that one egress asks. Pure."""

from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct, field

from .accounts import AccountsHere, WaitingHosts
from .budget import RefusalBudget
from .host import Tolerance

Attach = Callable[[str, Tolerance], None]  # gives a host that is new what is known of its name

TOLERANCES_MAX = 20_000  # hosts remembered in memory; the longest unused is removed first


class SpentBudget(Struct, frozen=True):
    """A mail host that has refused recipients of ours within the last hour, for the operator."""

    egress: str
    name: str
    label: str  # of the row of its limits; "other" without one
    recent: int  # refused within ten minutes
    refused: int  # within the hour
    tolerance: int  # refusals in ten minutes
    is_careful: bool  # learned from a ban
    rest_left_s: float


class Tolerances(Struct, eq=False):
    """The tolerances of all mail hosts of one egress. Bounded; the longest unused is removed first."""

    _attach: Attach | None = None
    _tolerances: OrderedDict[object, Tolerance] = field(default_factory=OrderedDict)
    _waiting: WaitingHosts = field(default_factory=WaitingHosts)

    def find(self, host: object, name: str) -> Tolerance:
        """`name` is that of an exchange: what processes share is by name."""
        tolerance = self._tolerances.get(host)
        if tolerance is None:
            tolerance = self._tolerances[host] = Tolerance(
                budget=RefusalBudget(AccountsHere(self._waiting))
            )
            if self._attach is not None:
                self._attach(name, tolerance)
            if len(self._tolerances) > TOLERANCES_MAX:
                self._tolerances.popitem(last=False)
        else:
            self._tolerances.move_to_end(host)
        return tolerance
