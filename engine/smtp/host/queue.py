"""The probes that wait at one mail host, and which of them may be sent."""

from ...fair_queue import FairQueue
from ..probe import Probe
from ..session.effects import Emit, Requeued
from ..tolerance.limits import Growth
from .resting import NO_BUDGET, HostParts, SentOnProbes


class HostQueue(FairQueue[Probe]):
    """They wait for a session; accounts take turns. Implements `SessionQueue` for the sessions.

    A probe that is settled, or tried elsewhere, may still be in it, and is dropped when its turn comes.
    """

    def __init__(self, host: HostParts, probes: SentOnProbes) -> None:
        super().__init__()
        self._host = host
        self._probes = probes
        self.behind = 0  # probes that the scheduler holds back for this host

    def add(self, probe: Probe) -> None:
        """It waits from now on, behind the others of its account."""
        self.behind = probe.behind
        self.join(probe.asker, probe)

    def is_gone(self, probe: Probe) -> bool:
        """Is the probe settled, or under way at another exchange?"""
        return probe.result.outcome is not None or probe.target.host is not self._host

    def any(self) -> bool:
        """Does a probe wait for a connection?"""
        return self.prune(self.is_gone)

    def live(self) -> list[Probe]:
        """Remove and return all that are not gone."""
        return [probe for probe in self.pop_all() if not self.is_gone(probe)]

    def next(self, now: float, emit: Emit) -> Probe | None:
        """Take the next probe to send. One whose domain or host is left alone is queued again instead."""
        rest = self._host.rest
        while (probe := self.pop()) is not None:
            if probe.result.outcome is not None or probe.target.host is not self._host:
                continue
            backing_off = now < rest.backoff.until or now < probe.target.domain.at.backoff_until
            if not backing_off or rest.cause_for(probe, now) is None:
                return probe
            emit(Requeued(probe))  # and rejected there, with its cause
        return None

    def requeue(self, probe: Probe, *, last: bool = False) -> None:
        """It is to be sent once more: first of its account, or behind all others."""
        if probe.settled or self._probes.withdrawn(probe):
            return
        if last:
            self.join(probe.asker, probe)
        elif (cause := self._host.rest.cause_for(probe, self._host.now())) is not None:
            self._host.rest.reject(probe, cause)
        else:
            self.push_front(probe.asker, probe)

    def reject_resting(self) -> None:
        """The host is left alone by now: those that it concerns fail over."""
        for probe in self.live():
            if (cause := self._host.rest.cause_for(probe, self._host.now())) is not None:
                self._host.rest.reject(probe, cause)
            else:
                self.join(probe.asker, probe)

    # -- what the host takes ---------------------------------------------------------------------

    def turn_away(self, probe: Probe) -> None:
        """Do not send the probe: the host tolerates no more refusals for it at the moment."""
        if self.is_gone(probe):
            return
        now, tolerance = self._host.now(), self._host.tolerance
        self._probes.observer.budget_lacking(tolerance.known.label, random=False)
        if probe.deferred_start:
            untested = probe.domain if probe.target.domain.needs_test(now) else ""
            tolerance.turned_away(probe.asker, now, probe.mailbox, untested)
        wait_s = tolerance.next_room_s(probe.kind, probe.asker, now, probe.patience_s)
        probe.result.retry_after(wait_s, tolerance.known.takes)
        self._host.rest.reject(probe, NO_BUDGET)

    def turn_away_spent(self) -> bool:
        """Turn away what may not be sent now; return whether anything is left that may."""
        now, tolerance = self._host.now(), self._host.tolerance
        if tolerance.budget.has_plenty(1, now):
            return True
        kept: list[Probe] = []
        for probe in self.live():
            kind, account = probe.kind, probe.asker
            is_spent = tolerance.is_spent(kind, account, now)
            if is_spent and tolerance.growth(kind, account, now, probe.patience_s) is Growth.NOT:
                self.turn_away(probe)
            else:
                kept.append(probe)
        for probe in kept:
            self.join(probe.asker, probe)
        return bool(kept)

    def may_send(self) -> bool:
        """May one of those that wait be sent now, beside what is under way?"""
        now, budget = self._host.now(), self._host.tolerance.budget
        return budget.has_plenty(1, now) or any(
            budget.room(probe.kind, probe.asker, now) > 0 or self._may_grow(probe, now)
            for probe in self.heads()
        )

    def _may_grow(self, probe: Probe, now: float) -> bool:
        """Does a request find room as soon as a session sends it?"""
        if probe.deferred_start:
            return False
        growth = self._host.tolerance.growth(probe.kind, probe.asker, now, is_provable=False)
        return growth is Growth.NOW
