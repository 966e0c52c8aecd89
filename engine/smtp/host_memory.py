"""Remembers back-offs by IP address and by exchange name.

After a failure the engine backs off from every address that failed and from the names of
its exchanges, so neither a second host nor rotating A records start a new series of attempts.
Both tables are bounded; the oldest entry is removed first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct, field

from .backoff import NEVER, HostBackoff
from .probe import Cause

NAMES_OF_HOST_MAX = 64  # an operator's host may have a name for each customer
BACKOFFS_MAX = 10_000  # addresses, and as many names


class HostMemory(Struct, eq=False):
    """Addresses and exchange names that must not be connected to until their back-off ends."""

    _now: Callable[[], float]
    _addresses: OrderedDict[str, tuple[float, Cause]] = field(default_factory=OrderedDict)
    _names: OrderedDict[str, tuple[HostBackoff, Cause]] = field(default_factory=OrderedDict)
    # Names that refused another engine.
    _struck: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def name_backoff_until(self, name: str) -> float:
        """When the back-off of this exchange name ends; `NEVER` if none is remembered."""
        return self.backoff_of(name).until

    def address_backoff(self, address: str) -> Cause | None:
        """The cause of this address's current back-off, or None."""
        until, cause = self._addresses.get(address, (0.0, None))
        return cause if self._now() < until else None

    def name_backoff(self, name: str, now: float) -> Cause | None:
        """The cause of this exchange name's back-off at `now`, whatever its addresses, or None."""
        backoff, cause = self._names.get(name, (HostBackoff(), None))
        return cause if now < backoff.until else None

    def resting_names(self, now: float) -> list[tuple[str, float, Cause]]:
        """The exchange names in back-off, each with its end and its cause."""
        return [
            (name, backoff.until, cause)
            for name, (backoff, cause) in self._names.items()
            if now < backoff.until
        ]

    def record(
        self, names: Iterable[str], backoff: HostBackoff, addresses: Sequence[str], cause: Cause
    ) -> None:
        """Back off from the addresses of a host that failed and from its names."""
        now = self._now()
        for address in addresses:
            self._addresses[address] = (backoff.until, cause)
            self._addresses.move_to_end(address)
        for name in list(names)[:NAMES_OF_HOST_MAX]:
            self._names[name] = (self._longer_backoff(name, backoff, now, cause), cause)
            self._names.move_to_end(name)
        self._trim()

    def _trim(self) -> None:
        tables: tuple[OrderedDict[str, Any], ...] = (self._addresses, self._names, self._struck)
        for table in tables:
            while len(table) > BACKOFFS_MAX:
                table.popitem(last=False)

    def backoff_of(self, name: str) -> HostBackoff:
        return self._names.get(name, (HostBackoff(), None))[0]

    def strike_elsewhere(self, name: str, until: float) -> None:
        """The exchange refused another engine: until then a first failure here is the second."""
        self._struck[name] = until
        self._struck.move_to_end(name)
        self._trim()

    def is_struck(self, name: str) -> bool:
        return self._now() < self._struck.get(name, NEVER)

    def back_off_address(self, address: str, backoff: HostBackoff, cause: Cause) -> bool:
        """Another engine backs off from this address; False if this one does for as long."""
        if backoff.until <= self._addresses.get(address, (NEVER, cause))[0]:
            return False
        self.record((), backoff, (address,), cause)
        return True

    def back_off_name(self, name: str, backoff: HostBackoff, cause: Cause) -> bool:
        """Another engine backs off from this exchange name; False if this one does for as long."""
        if backoff.until <= self.name_backoff_until(name):
            return False
        self._names[name] = (backoff, cause)
        self._names.move_to_end(name)
        self._trim()
        return True

    def _longer_backoff(
        self, name: str, backoff: HostBackoff, now: float, cause: Cause
    ) -> HostBackoff:
        """The host's back-off, or the longer one of a name that failed at other addresses before."""
        longer = self.backoff_of(name).after_failure(now, refused=cause.about_us)
        return longer if longer.until > backoff.until else backoff

    def record_success(self, names: Iterable[str]) -> None:
        """A recipient was answered: end the back-off of its host's names."""
        for name in list(names)[:NAMES_OF_HOST_MAX]:
            self._names.pop(name, None)
