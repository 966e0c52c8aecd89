"""Opens connections to one mail host: chooses the address and judges failures.

If a connection fails while others are open, the host has reached its limit. If the only
connection fails, the host failed, and every waiting probe fails over at once.
"""

from collections.abc import Callable, Sequence
from itertools import filterfalse, zip_longest

import trio
from msgspec import Struct, field

from ...evidence import ConnectionAttempt
from ...verdict import Outcome
from ..probe import ADDRESSES_MAX, Cause, Probe
from .greeting import greet
from .host import Host
from .openings import HEDGE_S, RELEASE_S, Openings
from .reply_times import FAR_S
from .serving import ConnectionEgress, ServedSession

HURRY_S = 0.15  # without a greeting, then further connections are opened
NEXT_EXCHANGE_S = 0.75  # kept for it when another address of this one is tried
SILENT_RULE = "clock.connect"
SHUT_RULES = ("connect.failed", SILENT_RULE)  # a door that is shut
CLOSED_RULE = "closed.banner"  # or closed in our face,
CLOSED_BEFORE = 2  # after so many failures in a row: less may be chance
# So many other hosts are asked, and none has answered for so long: then the network may be silent.
OTHERS_LEAST, OTHERS_S = 3, 0.5
# Of each family, tried in one attempt after 0, 1, 2 failures in a row.
DOUBTFUL_ADDRESSES = (ADDRESSES_MAX, 2, 1)
UNREACHABLE_RULE = "connect.unreachable"
NOT_CONNECTED = ("connect.failed", UNREACHABLE_RULE)  # at once: there is time for other addresses


def addresses_in_turn(turn: Sequence[str], count: int) -> list[str]:
    """The addresses to try, in this order: at most `count`, but one of each family.

    IPv4 and IPv6 alternate: where one of them does not work, the other one comes next.
    """
    first, *_ = turn
    own = [each for each in turn if (":" in each) == (":" in first)]
    others = [each for each in turn if (":" in each) != (":" in first)]
    both = [each for pair in zip_longest(own, others) for each in pair if each is not None]
    return both[: max(count, 2 if others else 1)]


class _Hurry(Struct, eq=False):
    """What one attempt does while its greeting is slow; the clock calls `tick`."""

    _opener: "ConnectionOpener"
    due: float
    _hedges: bool = False  # at the next tick
    over: bool = False  # the attempt has ended, or this was all

    def tick(self, now: float) -> None:
        if self._hedges:
            self.over = True
            self._opener.hedge()
        else:
            self._hedges = True
            self.due = now + HEDGE_S - HURRY_S
            self._opener.hurry()


class ConnectionOpener(Struct, eq=False):
    """One attempt to open a connection of a host."""

    _host: Host
    _openings: Openings
    _egress: ConnectionEgress
    _now: Callable[[], float] = field(
        default_factory=lambda: trio.lowlevel.current_clock().current_time
    )

    async def open(self, permit_at: str | None) -> ServedSession | None:
        """Return a greeted connection or None. Opens others as well while the greeting is slow."""
        hurry: _Hurry | None = None
        self._openings.begin()
        # Within proven parallelism other connections are opened without waiting anyhow.
        connections = self._host.staffing.connections
        may_hurry = connections.now > connections.proven or not self._is_served
        # A patient host has few connections, and none because the greeting is slow.
        if may_hurry and not self._host.clocks.patient:
            hurry = _Hurry(self, self._now() + HURRY_S)
            self._egress.network.routes.clock.watch(hurry)
        try:
            return await self._try_addresses(permit_at)
        finally:
            self._openings.end()
            if hurry is not None:
                hurry.over = True

    def hurry(self) -> None:
        """The greeting is slow: open further connections."""
        self._openings.be_slow()
        self._host.staff(hurried=True)
        self._host.turn.run()

    def hedge(self) -> None:
        """It still has not come: connect to the next exchange as well."""
        if not self._is_served:
            self._openings.hedge()
            self._egress.hedges.hedge(self._host, list(self._host.waiting))
            self._host.turn.run()

    @property
    def _is_served(self) -> bool:
        """Is another connection greeted?"""
        return bool(self._host.staffing.sessions.open)

    async def _try_addresses(self, permit_at: str | None) -> ServedSession | None:
        """Return a session, with its permit, at the first address that answers.

        None if none does: then every waiting probe has failed over, unless the failure
        is this connection's alone because others are open or being opened.
        """
        cause, permits_short, backoff_cause, tried = None, False, None, False
        turn = self._addresses_in_turn(permit_at)
        for address in turn:
            if tried and self._openings.is_dialled(address):
                continue
            # Probes for which another address here would leave no time to fail over.
            if tried and (short := list(filter(self._must_fail_over, self._host.waiting))):
                if not self._openings.is_only:
                    break  # the last of them to fail decides
                if cause is not None:
                    for probe in short:
                        self._host.egress.probes.fail_over(probe, cause)
            if address != permit_at:
                if (resting := self._host.rest.cause_at(address)) is not None:
                    backoff_cause = resting
                    continue
                if not (self._host.waiting.any() or self._egress.hedges.is_wanted(self._host)):
                    break  # what was learned of the host also holds for later probes
                if not self._egress.permits.try_acquire(address, self._host):
                    permits_short = True
                    continue
            tried = True
            self._host.turn.run()
            greeted = await self._try_address(address)
            if not isinstance(greeted, Cause):
                return greeted
            self._host.turn.run()
            # A network of ours without IPv6 says less than the host's own refusal.
            if cause is None or greeted.rule != UNREACHABLE_RULE:
                cause = greeted
            if greeted.outcome is Outcome.NO_EGRESS:
                break
            if address == turn[-1] and cause.rule in NOT_CONNECTED:
                turn += await self._of_other_family(turn)  # goes on with these
        if permits_short:
            return None
        if cause is None:
            if backoff_cause is not None and not self._is_served:
                self._host.rest.send_on(backoff_cause)  # they failed under another name
        elif not self._is_ban(cause):
            if cause.outcome is not Outcome.NO_EGRESS:  # else nothing was learned of the host
                failed = self._openings.failed_of(self._host.identity.addresses, self._now())
                self._host.rest.record_failure(cause, failed)
            self._host.rest.send_on(cause)
        return None

    def _is_ban(self, cause: Cause) -> bool:
        """A host that answered, and refused some, no longer lets us in: is that a ban?"""
        is_shut = cause.rule in SHUT_RULES or cause.greeting
        if cause.rule == CLOSED_RULE:
            is_shut = self._host.rest.backoff.failures >= CLOSED_BEFORE
        if not is_shut or self._is_served or not self._host.tolerance.may_have_banned(self._now()):
            return False
        is_ours = cause.rule == SILENT_RULE and self._are_others_silent(self._now() - OTHERS_S)
        return not is_ours and self._host.blocked(cause.words)

    def _are_others_silent(self, since: float) -> bool:
        """Are other hosts asked, of which none has answered since?"""
        others = [each for each in self._egress.hosts.values() if each is not self._host]
        if any(each.tolerance.known.answered_at >= since for each in others):
            return False
        asking = (
            each.staffing.connections.now > 0 or each.staffing.openings.has_failed_since(since)
            for each in others
        )
        return sum(asking) >= OTHERS_LEAST

    async def _try_address(self, address: str) -> ServedSession | Cause | None:
        """Return a session, which keeps the permit; a cause that holds for all probes; or None."""
        openings, accompanied, began = self._openings, self._is_served, self._now()
        greeted_before = openings.greeted
        connections = self._host.staffing.connections
        others = connections.now > 1 or began - connections.closed_at < RELEASE_S
        lines: list[tuple[float, bool, str]] = []
        openings.dial(address)
        greeted = await greet(self._host, self._egress, address, lines)
        if not (isinstance(greeted, Cause) and greeted.outcome is Outcome.TIMED_OUT):
            openings.replied(address)
        if greeted is None:  # the permit was revoked, which says nothing about the host
            return None
        self._host.egress.probes.observer.connected(greeted=isinstance(greeted, ServedSession))
        if isinstance(greeted, ServedSession):
            openings.succeeded(address, self._now() - began)
            if self._host.times.pace.reply_s >= FAR_S:
                connections.greeted_far(self._now())
            return greeted
        openings.failed(address, self._now())
        if accompanied or self._is_served or openings.greeted > greeted_before:
            if greeted.replied or self._host.staffing.sessions.is_at(address):
                self._host_at_limit()
            return None  # else only this address fails
        if greeted.temporary and connections.left:
            self._host_at_limit()  # it still counts those that we left
            return None
        if greeted.temporary and (others or connections.now > 1):
            await self._idle_down()
            return None
        if connections.now > 1:
            connections.failed()
            return None
        self._record_attempt(address, greeted, lines)
        return greeted

    def _must_fail_over(self, probe: Probe) -> bool:
        return (
            probe.target.next_exchange is not None
            and not self._host.waiting.is_gone(probe)
            and probe.clock.deadline < self._now() + self._host.clocks.read_s + NEXT_EXCHANGE_S
        )

    def _host_at_limit(self) -> None:
        """The other connections go on; this one was one too many."""
        self._host.staffing.connections.crowded(len(self._host.staffing.sessions.open), self._now())

    async def _idle_down(self) -> None:
        """Wait a moment, and open the next connection alone.

        A host still counts connections that are closing, and connections dialled together
        count each other. Only the reply to a lone connection tells whether the host failed.
        """
        self._openings.open_singly()
        self._host.staffing.connections.failed()
        await trio.sleep(RELEASE_S)

    def _addresses_in_turn(self, first: str | None) -> list[str]:
        turn = self._openings.from_next_turn(self._host.identity.addresses)
        if first is not None:
            turn = [first, *(address for address in turn if address != first)]
        return addresses_in_turn(turn, self._addresses_max)

    @property
    def _addresses_max(self) -> int:
        """How many are tried in one attempt."""
        return DOUBTFUL_ADDRESSES[
            min(self._host.rest.backoff.failures, len(DOUBTFUL_ADDRESSES) - 1)
        ]

    async def _of_other_family(self, tried: Sequence[str]) -> list[str]:
        """The addresses that remain where those of one family do not connect."""
        waiting = next(iter(self._host.waiting), None)
        if waiting is None or len(tried) >= ADDRESSES_MAX:
            return []
        found = await self._egress.other_addresses(self._host, waiting.asker)
        most = min(self._addresses_max, ADDRESSES_MAX - len(tried))
        return [address for address in found if address not in tried][:most]

    def _record_attempt(
        self, address: str, cause: Cause, lines: Sequence[tuple[float, bool, str]]
    ) -> None:
        """Count the failed attempt at this address for every waiting probe."""
        for probe in filterfalse(self._host.waiting.is_gone, list(self._host.waiting)):
            probe.attempts.fail_connection(cause)
            if probe.notes is not None:
                probe.notes.tried.append(
                    ConnectionAttempt(self._host.identity.name, address, cause.words)
                )
                for line in lines:
                    probe.notes.add_line(*line)
            if probe.attempts.exhausted and probe.target.host is self._host:
                self._host.egress.probes.settle(probe, cause.outcome, cause.rule)
