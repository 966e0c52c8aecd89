"""The address look-ups that questions of layer 4 wait for, while their clock runs.

An exchange's look-up has EXCHANGE_S while the question has another exchange left; then
the next one is looked up beside it, and whichever is found first is tried. A question
that still waits when its clock ends has failed by its resolver, not by a mail host.
"""

from collections.abc import Callable

import trio

from mailprobe.engine.dns.messages import AddressAnswer, LookupFailed
from mailprobe.engine.dns.query_queue import Priority
from mailprobe.engine.dns.routes import Routes
from mailprobe.engine.dns.single_flight import Interest
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.verdict import Outcome

EXCHANGE_S = 1.0  # of layer 4's three seconds, for one exchange's name

NO_ADDRESS = Cause(Outcome.CONVERSATION_FAILED, "exchange.no-address", "no address to connect to")
NOT_PUBLIC = Cause(Outcome.CONVERSATION_FAILED, "exchange.not-public", "no public address")
LOOKUP_FAILED = Cause(Outcome.RESOLVER_FAILED, "exchange.lookup-failed", "its look-up failed")
NEVER_TRIED = (None, NO_ADDRESS, NOT_PUBLIC, LOOKUP_FAILED)  # no exchange had an address for us


class AddressLookups:
    """Which names each question waits for. `found` and `late` are called with its place."""

    def __init__(
        self,
        routes: Routes,
        found: Callable[[Probe, int, AddressAnswer], None],
        late: Callable[[Probe], None],
    ) -> None:
        self._routes = routes
        self._found = found
        self._late = late
        # Looked at for every address that is settled, so it is no property.
        self.pending: dict[Probe, dict[int, Interest[AddressAnswer]]] = {}

    def waits(self, probe: Probe) -> bool:
        """Does it wait for any look-up?"""
        return probe in self.pending

    def begin(self, probe: Probe, place: int) -> None:
        """Look up the exchange at this place. `found` may be called before this returns."""

        def settle(answer: AddressAnswer | LookupFailed) -> None:
            pending = self.pending.get(probe)
            if pending is not None and pending.pop(place, None) is not None:
                if not pending:
                    del self.pending[probe]
                self._found(probe, place, answer)

        others = place + 1 < len(probe.exchanges)
        interest: Interest[AddressAnswer] = Interest(
            probe.asker,
            Priority.PROBE,
            settle,
            probe.deadline,
            late_at=trio.current_time() + EXCHANGE_S if others else float("inf"),
            late=lambda: self._late(probe),
        )
        self.pending.setdefault(probe, {})[place] = interest
        self._routes.subscribe_addresses(probe.exchanges[place].name, interest)

    def drop(self, probe: Probe) -> None:
        """It waits no longer: it is settled, or tries an exchange that was found."""
        for interest in self.pending.pop(probe, {}).values():
            interest.cancel()
