"""Looks up the addresses of exchanges for probes, while their deadline runs.

If a look-up takes longer than EXCHANGE_S and the probe has another exchange, that
exchange is looked up as well, and the one found first is tried. A probe that still
waits for a look-up at its deadline failed because of the resolver, not of a mail host.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import trio
from msgspec import Struct, field

from ..dns.messages import DNS_LAG_RULE, AddressAnswer, Addresses, LookupFailed, NoAddress
from ..dns.query_queue import Priority
from ..dns.routes import Routes
from ..dns.single_flight import Interest
from ..verdict import Outcome
from .probe import EGRESS_FAMILY_RULE, Cause, Probe

EXCHANGE_S = 1.0  # for one exchange's look-up; a probe has three seconds in all

NO_ADDRESS = Cause(Outcome.CONVERSATION_FAILED, "exchange.no-address", "no address to connect to")
NOT_PUBLIC = Cause(Outcome.CONVERSATION_FAILED, "exchange.not-public", "no public address")
LOOKUP_FAILED = Cause(Outcome.RESOLVER_FAILED, "exchange.lookup-failed", "its look-up failed")
LOOKUP_LAGGED = Cause(
    Outcome.RESOLVER_FAILED, DNS_LAG_RULE, "this machine had no time to read an answer"
)
OTHER_FAMILY = Cause(
    Outcome.NO_EGRESS, EGRESS_FAMILY_RULE, "no address that this egress can connect to"
)
NEVER_TRIED = (
    None,
    NO_ADDRESS,
    NOT_PUBLIC,
    OTHER_FAMILY,
    LOOKUP_FAILED,
    LOOKUP_LAGGED,
)  # no exchange had a usable address


class AddressLookups(Struct, eq=False):
    """The look-ups each probe waits for. `_found` gets the exchange's place in the probe."""

    _routes: Routes
    _found: Callable[[Probe, int, AddressAnswer], None]
    _late: Callable[[Probe], None]
    _end_step: Callable[[], None]  # it follows each call of the other two
    # A plain attribute, because it is read for every settled probe.
    pending: dict[Probe, dict[int, Interest[AddressAnswer]]] = field(default_factory=dict)

    def waits(self, probe: Probe) -> bool:
        """Does the probe wait for any look-up?"""
        return probe in self.pending

    def cause_at_deadline(self, probe: Probe) -> Cause:
        """Return why a probe fails if its deadline comes while it waits for look-ups."""
        waits_for = self.pending.get(probe, {}).values()
        return LOOKUP_LAGGED if any(each.is_lagging for each in waits_for) else LOOKUP_FAILED

    def begin(self, probe: Probe, place: int) -> None:
        """Look up the exchange at this place. `found` is called later."""

        def settle(answer: AddressAnswer | LookupFailed) -> None:
            pending = self.pending.get(probe)
            if pending is not None and pending.pop(place, None) is not None:
                if not pending:
                    del self.pending[probe]
                self._found(probe, place, answer)
                self._end_step()

        def be_late() -> None:
            self._late(probe)
            self._end_step()

        others = place + 1 < len(probe.target.exchanges)
        interest: Interest[AddressAnswer] = Interest(
            probe.asker,
            Priority.PROBE,
            settle,
            probe.clock.deadline,
            late_at=trio.current_time() + EXCHANGE_S if others else float("inf"),
            late=be_late,
        )
        self.pending.setdefault(probe, {})[place] = interest
        self._routes.subscribe_addresses(probe.target.exchanges[place].name, interest)

    def drop(self, probe: Probe) -> None:
        """Cancel the probe's look-ups: it is settled, or tries an exchange that was found."""
        for interest in self.pending.pop(probe, {}).values():
            interest.cancel()


def cause_without_address(
    answer: AddressAnswer, of_family: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> Cause:
    """Return why no address is usable. `of_family`: those that the egress can reach."""
    if isinstance(answer, Addresses):
        return NOT_PUBLIC if of_family(answer.ips) else OTHER_FAMILY
    if isinstance(answer, NoAddress):
        return NO_ADDRESS
    return LOOKUP_LAGGED if answer.by_lag else LOOKUP_FAILED


async def other_family(
    routes: Routes, name: str, addresses: Sequence[str], account: str
) -> tuple[str, ...]:
    """The exchange's addresses in the family that these are not of; within EXCHANGE_S.

    RFC 5321 5.1: each address is tried before the exchange has failed.
    """
    has_six = {":" in address for address in addresses}
    if len(has_six) > 1:
        return ()
    kind: Literal["A", "AAAA"] = "A" if True in has_six else "AAAA"
    found: AddressAnswer | None = None
    with trio.move_on_after(EXCHANGE_S):
        found = await routes.addresses_of_family(name, kind, account)
    return found.ips if isinstance(found, Addresses) else ()
