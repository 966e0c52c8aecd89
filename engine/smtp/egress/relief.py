"""Several egresses: which one asks about an address, and when another one takes it over.

An address whose host refuses the egress goes on to the next one within its own deadline. Methods
about a probe only decide: the caller does the rest.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from ...egress import EgressControl
from ...verdict import Blame, Outcome, Reason
from ..host.host import Host, HostEgress
from ..probe import EGRESS_FAILED_RULE, EGRESS_FAMILY_RULE, EGRESS_OUT_RULE, Probe
from ..turn import Turn
from .choice import EgressChoice, EgressTask, Way
from .held_probes import HeldProbes
from .trials import UNREACHED, EgressTrials

# Each refusal costs an egress reputation, and a host that refuses three refuses the fourth.
EGRESSES_TRIED_MAX = 3
TAKE_OVER_S = 0.5  # left at least: connect, banner, EHLO, MAIL and RCPT of a host 0.1 s away
# A host that defers everybody who comes by an egress for longer than greylisting takes.
DEFERS_S = 240.0

ACCEPTED = (Outcome.DELIVERABLE, Outcome.DELIVERABLE_UNTESTED, Outcome.CATCH_ALL)

ReadCause = Callable[[Outcome, str], tuple[Reason, Blame | None]]


class Relieved(NamedTuple):
    """What follows for a probe that is about to be settled."""

    passes_on: bool  # another egress asks in its place,
    way: Way | None = None  # this one; None: the next that may
    doubted: bool = False  # to see whether the host judges those by the first one
    lost_trial: Way | None = None  # this egress was tried again, and has not reached the host


class EgressRelief:
    """Where a file names the egresses: the choice, their trials, and what waits for one."""

    def __init__(
        self,
        choice: EgressChoice,
        trials: EgressTrials,
        turn: Turn[Host],
        queue_by: Callable[[HostEgress, Probe], None],
        settle: Callable[[Probe, Outcome, str], None],
        control: EgressControl,
        cause_of: ReadCause,
    ) -> None:
        self.choice = choice
        self.trials = trials
        self.held = HeldProbes(choice, turn, queue_by, settle, self.is_too_late)
        self._turn = turn
        self._control = control
        self._cause_of = cause_of
        self._now = trio.lowlevel.current_clock().current_time
        self._states_changed = trio.Event()

    def way_for(self, probe: Probe) -> Way | None:
        """The egress that asks about it, counted; None without one."""
        return self.trials.begin(probe) or self.choice.reserve(
            EgressTask(probe.domain, probe.target.exchanges)
        )

    def is_awaited(self, probe: Probe) -> bool:
        """May an egress ask about it in a moment?"""
        return self.choice.is_awaited(
            EgressTask(probe.domain, probe.target.exchanges, probe.target.egresses_tried)
        )

    def grant(self, host: Host, probes: Sequence[Probe]) -> int:
        """How many of them the egress of this host may ask about: so many are counted."""
        way = self.choice.by_name[host.egress.name]
        return self.choice.count(way, len(probes)) if self.choice.is_usable(way) else 0

    def is_too_late(self, probe: Probe) -> bool:
        """Is too little time left for another egress?"""
        return probe.clock.deadline - self._now() < TAKE_OVER_S

    def is_withdrawn(self, probe: Probe) -> bool:
        """Is its egress paused or quarantined? The trial of a quarantined one goes on."""
        if not probe.target.egress.is_out:
            return False
        way = self.choice.by_name[probe.target.egress.name]
        is_quarantined = self._control.state(way.name) == "quarantined"
        return not (is_quarantined and self.trials.of[way].probe is probe)

    async def keep_withdrawn(self) -> None:
        """Let others ask what waits at an egress that is paused or quarantined, until cancelled."""
        with self._control.notifying(lambda: self._states_changed.set()):
            while True:
                self._states_changed = trio.Event()
                for way in self.choice.ways:
                    way.hosts.admit_probes(is_out=self._control.state(way.name) != "active")
                self._turn.run()
                await self._states_changed.wait()

    def relieve(self, probe: Probe, outcome: Outcome, rule: str) -> Relieved:
        """The probe is about to be settled with this cause: does another egress take over?

        It does if the host refuses this egress, or the egress cannot connect.
        """
        way = self.choice.by_name[probe.target.egress.name]
        reason, blame = self._cause_of(outcome, rule)
        is_trial = self.trials.of[way].probe is probe
        self.trials.note(way, probe, rule, reason)
        cause, has_failed = probe.attempts.cause, way.standing.has_failed
        rests = cause is not None and cause.about_us and cause.rule == rule
        refused = blame == "us" and reason in ("blocked_us", "rate_limited")
        failed = rule == EGRESS_FAILED_RULE or (rule in UNREACHED and has_failed)
        lost = way if is_trial and rule in UNREACHED and has_failed else None
        if refused or rests or failed or rule in (EGRESS_FAMILY_RULE, EGRESS_OUT_RULE):
            return self._another(probe, rule, lost, doubted=False)
        if probe.target.doubted:
            if outcome in ACCEPTED:
                self.choice.judge_doubt(probe)
        elif self._is_doubtful(probe, outcome):
            return self._another(probe, rule, lost, doubted=True)
        return Relieved(passes_on=False, lost_trial=lost)

    def _is_doubtful(self, probe: Probe, outcome: Outcome) -> bool:
        """May the host treat all recipients of this egress alike? It has accepted none of them."""
        host: Host | None = probe.target.host
        if host is None or host.controls.comparable:
            return False
        if outcome is Outcome.TEMPORARY:
            since = host.refusals.deferred_since
            return since is not None and self._now() - since >= DEFERS_S
        return outcome in (Outcome.UNDELIVERABLE, Outcome.UNCONFIRMED)

    def _another(self, probe: Probe, rule: str, lost: Way | None, *, doubted: bool) -> Relieved:
        """Another egress, counted, if there is one and time for it."""
        tried = (*probe.target.egresses_tried, probe.target.egress.name)
        refused_all = len(tried) >= EGRESSES_TRIED_MAX and rule != EGRESS_OUT_RULE
        if refused_all or self.is_too_late(probe):
            return Relieved(passes_on=False, lost_trial=lost)
        task = EgressTask(probe.domain, probe.target.exchanges, tried)
        other = self.choice.reserve(task)
        return Relieved(other is not None or self.choice.is_awaited(task), other, doubted, lost)
