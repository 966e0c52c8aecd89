"""Chooses the egress that asks for each domain, and lets another one ask where it is refused.

The router stands before the dispatchers, one for each egress. A domain stays with its egress as
long as that may and can ask its host. An address whose host refuses the egress goes on to the
next one within its own deadline. An egress that too many hosts refuse is quarantined, and one
that cannot connect rests; both are tried again with one address.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import trio

from ...dns.messages import MailExchange
from ...egress import Egress, EgressControl
from ...observer import EngineStatistics
from ...verdict import Blame, Outcome, Reason
from ..backoff import RestingHost
from ..dispatcher import ProbeDispatcher
from ..operators import OTHERS, MailOperators
from ..pool.pool import Pool
from ..probe import (
    AWAITS_EGRESS,
    EGRESS_FAILED_RULE,
    EGRESS_FAMILY_RULE,
    EGRESS_OUT_RULE,
    NO_EGRESS_RULE,
    Probe,
)
from ..tolerance.hosts import SpentBudget
from ..turn import Turn
from .choice import score, seed_of
from .held_probes import HeldProbes
from .standing import EgressStanding

log = logging.getLogger("mailprobe.egress")

# Each refusal costs an egress reputation, and a host that refuses three refuses the fourth.
EGRESSES_TRIED_MAX = 3
TAKE_OVER_S = 0.5  # left at least: connect, banner, EHLO, MAIL and RCPT of a host 0.1 s away
SPENT_S = 0.1  # between two looks whether an egress has addresses of the day again
HELD_IN_VAIN_MAX = 64  # held probes tried again without success in a row: 5 ms with 30 egresses
LABELS = 2  # the end of a host's name that counts as its operator, if none is known
# A host that defers everybody who comes by an egress for longer than greylisting takes.
DEFERS_S = 240.0
UNSUITED_S = 24 * 3600.0  # an egress whose recipients a host does not judge does not ask it again
UNSUITED_MAX = 10_000  # hosts and egresses remembered so; the oldest are removed first
TRIALS_S = 1.0  # between two looks whether an egress is to be tried again

TRIAL_HOSTS_MAX = 3  # dead ones that a trial asks one after the other: one says nothing of us
UNREACHED_KEPT_MAX = 64  # dead hosts that a trial does not ask again

JUDGED_EVERY_S = 300.0  # of the last egress: one line of the log each time

# Rules of hosts that have not greeted: a proxy may accept every connection and lead nowhere.
UNREACHED = (
    *("connect.failed", "connect.unreachable", "clock.connect"),
    *("clock.banner", "closed.banner", "garbage.banner"),
)

# What a mail host has answered, rather than nobody or we ourselves.
ANSWERED: frozenset[Reason] = frozenset(
    {
        *("accepted", "untested", "catch_all", "no_mailbox", "disabled", "full", "greylisted"),
        *("rate_limited", "temporary", "policy", "blocked_us", "unclear"),
    }
)

ACCEPTED = (Outcome.DELIVERABLE, Outcome.DELIVERABLE_UNTESTED, Outcome.CATCH_ALL)

ReadCause = Callable[[Outcome, str], tuple[Reason, Blame | None]]


class _Way:
    """One egress: its row, its dispatcher and how it fares."""

    __slots__ = (
        *("dispatcher", "hosts_unproven", "hosts_unreached", "judged_from", "name", "row", "seed"),
        *("spent_until", "standing", "trial", "trials_left"),
    )

    def __init__(self, row: Egress, dispatcher: ProbeDispatcher) -> None:
        self.name = row.name
        self.row = row
        self.dispatcher = dispatcher
        self.seed = seed_of(row.name)
        self.standing = EgressStanding()
        self.spent_until = float("-inf")  # its addresses of the day are used up
        self.trial: Probe | None = None  # the one address that tries it again
        self.judged_from = float("-inf")  # then it may be quarantined
        self.trials_left = 0  # further hosts that a trial of a quarantined one may ask
        self.hosts_unreached: set[str] = set()  # by trials since it failed
        self.hosts_unproven = 0  # of them: no other egress has asked them instead

    def may_ask(self, operators: Iterable[str]) -> bool:
        return all(map(self.row.may_ask, operators))

    @property
    def is_tried(self) -> bool:
        """Is its trial under way?"""
        trial = self.trial
        return trial is not None and not trial.settled and trial.dispatcher is self.dispatcher


class _Task(NamedTuple):
    """What the choice depends on."""

    domain: str
    exchanges: Sequence[MailExchange]
    tried: tuple[str, ...] = ()


class EgressRouter:
    """Every probe under way, by several egresses. Has what callers use of a `ProbeDispatcher`."""

    def __init__(
        self,
        dispatchers: Callable[["EgressRouter"], Sequence[tuple[Egress, ProbeDispatcher]]],
        operators: MailOperators,
        turn: Turn[Pool],
        control: EgressControl,
        quarantine_share: float,
        cause_of: ReadCause,
    ) -> None:
        """`dispatchers` makes those of all egresses, which call relieve() of this router."""
        self.operators = operators
        self.turn = turn
        self._control = control
        self._quarantine_share = quarantine_share
        self._cause_of = cause_of
        self._now = trio.lowlevel.current_clock().current_time
        self.ways = [_Way(*each) for each in dispatchers(self)]
        self._first = self.ways[0].dispatcher  # for what is common to all
        self._by_name = {way.name: way for way in self.ways}
        self._trials_at = self._now()
        self._states_changed = trio.Event()
        self.held = HeldProbes()
        self._held_again_at = float("-inf")  # those that were tried without success
        # Ask the host that the trial of an egress has not reached.
        self._witnesses: dict[Probe, _Way] = {}
        # Until when an egress does not ask an exchange that judges nobody who comes by it.
        self._unsuited: OrderedDict[tuple[str, str], float] = OrderedDict()
        turn.subscribe(self._room_freed)  # before any list does

    # -- what callers use of a dispatcher -------------------------------------------------------

    def pools_of(
        self, domain: str, exchanges: Sequence[MailExchange], count: int, *, patient: bool
    ) -> list[Pool | None]:
        """The pools of the first exchanges, at the egress that asks for the domain; None without one."""
        task = _Task(domain, exchanges)
        # Where all are refused, a list waits at one of them, as it does at a host in back-off.
        way = (
            self._choose(task)
            or self._best(task, awaited=True)
            or next(iter(self._by_fitness(task)), None)
        )
        if way is None:
            return [None] * min(count, len(exchanges))
        return way.dispatcher.pools_of(domain, exchanges, count, patient=patient)

    def is_withdrawn(self, pool: Pool, domain: str) -> bool:
        """Is another egress to ask for the domain, rather than that of this pool?"""
        way = self._way_of(pool)
        suited = self._is_suited(way, pool.name)
        return not (suited and self._is_usable(way)) or way.dispatcher.is_refused(pool, domain)

    def awaits_addresses(self, pool: Pool) -> bool:
        """Is the next block of its egress' day awaited? Lists keep their addresses meanwhile."""
        return self._awaits_addresses(self._way_of(pool))

    def submit(self, probe: Probe) -> None:
        """Queue the probe at one of the egresses; `on_settled` is called once."""
        if len(self.held) and self._now() >= self._held_again_at:
            self._try_held()  # they have waited longer
        task = _Task(probe.domain, probe.exchanges)
        if (way := self._trial(probe) or self._reserve(task)) is not None:
            way.dispatcher.submit(probe)
            return
        probe.belong_to(self._first)
        self.turn.begin((probe,))
        if self._is_awaited(task):
            self._hold(probe)
        else:
            self._first.settle(probe, Outcome.NO_EGRESS, NO_EGRESS_RULE)

    def submit_to(self, pool: Pool, probes: Sequence[Probe]) -> None:
        """Submit probes whose first exchange has this pool, unless another egress must ask."""
        if not probes:
            return
        way, here = self._way_of(pool), list(probes)
        if (tried := self._trial(here[0])) is not None:
            tried.dispatcher.submit(here.pop(0))
        granted = self._count(way, len(here)) if here and self._is_usable(way) else 0
        way.dispatcher.submit_to(pool, here[:granted])
        for probe in here[granted:]:
            self.submit(probe)

    def abandon(self, probes: Iterable[Probe]) -> None:
        """The caller has gone: drop the probes without a report."""
        self._first.abandon(probes)

    def hosts_backing_off(self) -> list[RestingHost]:
        """The mail hosts that are left alone now by an egress, and why."""
        return [
            replace(host, words=f"{way.name}: {host.words}")
            for way in self.ways
            for host in way.dispatcher.hosts_backing_off()
        ]

    def spent_budgets(self) -> list[SpentBudget]:
        """The hosts that have refused recipients within the hour, by egress."""
        return [spent for way in self.ways for spent in way.dispatcher.spent_budgets()]

    def statistics(self) -> EngineStatistics:
        """Return current counts; a host counts once for each egress that has asked it."""
        each = [way.dispatcher.statistics() for way in self.ways]
        return EngineStatistics(
            probes=self.turn.under_way,
            probes_in_flight=len(self.turn.waiting),
            probes_waiting=sum(one.probes_waiting for one in each),
            connections=sum(one.connections for one in each),
            hosts=sum(one.hosts for one in each),
            hosts_backing_off=sum(one.hosts_backing_off for one in each),
            hosts_waiting=sum(one.hosts_waiting for one in each),
        )

    # -- the choice -----------------------------------------------------------------------------

    def _way_of(self, pool: Pool) -> _Way:
        dispatcher: ProbeDispatcher = pool.dispatcher  # type: ignore[assignment] # a PoolHost there
        return self._by_name[dispatcher.egress]

    def _is_usable(self, way: _Way) -> bool:
        return self._is_able(way) and way.spent_until <= self._now()

    def _is_able(self, way: _Way) -> bool:
        return not way.standing.has_failed and self._control.state(way.name) == "active"

    def _awaits_addresses(self, way: _Way) -> bool:
        """Could it ask, if it had addresses of the day, which it may have in a moment?"""
        return (
            way.spent_until > self._now()
            and self._is_able(way)
            and self._control.awaits_more(way.name)
        )

    def _is_awaited(self, task: _Task) -> bool:
        """Is there an egress that may ask in a moment?"""
        return self._best(task, awaited=True) is not None

    def _choose(self, task: _Task) -> _Way | None:
        """The egress that fits best of those that may and can ask; None if there is none."""
        return self._best(task, awaited=False)

    def _best(self, task: _Task, *, awaited: bool) -> _Way | None:
        exchange = task.exchanges[0]
        for way in self._by_fitness(task, awaited=awaited):
            if self._is_suited(way, exchange.name) and not way.dispatcher.is_refused_at(
                exchange, task.domain
            ):
                return way
        return None

    def _is_suited(self, way: _Way, exchange: str) -> bool:
        return self._unsuited.get((way.name, exchange), float("-inf")) <= self._now()

    def _by_fitness(self, task: _Task, *, awaited: bool = False) -> list[_Way]:
        """Those that may ask, or that are awaited; the best one first."""
        is_candidate = self._awaits_addresses if awaited else self._is_usable
        operators = {self.operators.id_of(exchange.name) for exchange in task.exchanges}
        # By the host, so that it hears from one egress as long as that may ask.
        best = min(task.exchanges, key=lambda each: (each.preference, each.name))
        seed = seed_of(best.name)
        return sorted(
            (
                way
                for way in self.ways
                if way.name not in task.tried
                and is_candidate(way)
                and way.may_ask(operators)
                and any(map(way.dispatcher.reaches, task.exchanges))
            ),
            key=lambda way: (
                way.dispatcher.reaches(task.exchanges[0]),
                score(seed, way.seed, way.row.weight),
            ),
            reverse=True,
        )

    def _reserve(self, task: _Task) -> _Way | None:
        """Choose, and count one address of today.

        Where all egresses are refused at the first exchange, the first of them goes on to the next.
        """
        while (way := self._choose(task)) is not None:
            if self._count(way, 1):
                return way
        if task.tried or self._is_awaited(task):
            return None
        way = next(iter(self._by_fitness(task)), None)
        return way if way is not None and self._count(way, 1) else None

    def _count(self, way: _Way, count: int) -> int:
        """Count addresses of today; if they are not granted, the egress is left out for a while."""
        granted = self._control.reserve(way.name, count)
        if granted < count:
            way.spent_until = self._now() + SPENT_S
        return granted

    # -- pauses and quarantines -----------------------------------------------------------------

    async def keep_withdrawn(self) -> None:
        """Let others ask what waits at an egress that is paused or quarantined, until cancelled."""
        with self._control.notifying(lambda: self._states_changed.set()):
            while True:
                self._states_changed = trio.Event()
                for way in self.ways:
                    is_out = self._control.state(way.name) != "active"
                    way.dispatcher.admit_probes(is_out=is_out)
                self.turn.run()
                await self._states_changed.wait()

    def is_withdrawn_from(self, egress: str, probe: Probe) -> bool:
        """See Relief: all but the trial of a quarantined one."""
        way = self._by_name[egress]
        if self._control.state(way.name) == "quarantined" and way.trial is probe:
            return False
        return way.dispatcher.is_out

    # -- probes that wait for addresses of the day -------------------------------------------------

    def _hold(self, probe: Probe) -> None:
        probe.belong_to(self._first)
        self.turn.hold(probe, AWAITS_EGRESS)
        self.held.add(probe)

    async def keep_held(self) -> None:
        """Let held probes go on as egresses have addresses again. Runs until cancelled."""
        while True:
            await self.held.wait()
            await trio.sleep(SPENT_S)
            self.held.drop_settled(self._now())
            self._try_held()
            self.turn.run()

    def _try_held(self) -> None:
        """Let those go on that an egress may ask about by now; settle what none may in a moment."""
        kept: list[Probe] = []
        try:
            while len(kept) < HELD_IN_VAIN_MAX and not self._is_in_vain():
                if (probe := self.held.pop()) is None:
                    break
                kept.append(probe)
                if self._try(probe):
                    kept.pop()
        finally:
            for probe in kept:
                self.held.add(probe)
        if kept:
            self._held_again_at = self._now() + SPENT_S

    def _room_freed(self, pool: Pool | None) -> None:
        """A host has room: what is held has waited longer than what lists hold back."""
        if pool is not None and len(self.held) and self._now() >= self._held_again_at:
            self._try_held()

    def _try(self, probe: Probe) -> bool:
        """Does this held one wait no more?"""
        task = _Task(probe.domain, probe.exchanges, probe.egresses_tried)
        if not self._has_room(task, probe):
            return False
        way = None if self._is_too_late(probe) else self._reserve(task)
        if way is not None:
            self.turn.go_on(probe)
            way.dispatcher.queue(probe)
        elif self._is_awaited(task):
            return False
        else:
            self._first.settle(probe, Outcome.NO_EGRESS, NO_EGRESS_RULE)
        return True

    def _has_room(self, task: _Task, probe: Probe) -> bool:
        """Is there room for one more of a list, here and at its host? Its clock begins then."""
        if not probe.deferred_start:
            return True
        if self.turn.lists_are_full:
            return False
        if (way := self._choose(task)) is None:
            return True
        [pool] = way.dispatcher.pools_of(task.domain, task.exchanges, 1, patient=probe.patient)
        return pool is None or pool.room(1, probe.asker, probe.patience_s) > 0

    def _is_in_vain(self) -> bool:
        """Has no egress addresses now, while one is awaited?"""
        return not any(map(self._is_usable, self.ways)) and any(
            map(self._awaits_addresses, self.ways)
        )

    def _is_too_late(self, probe: Probe) -> bool:
        return probe.deadline - self._now() < TAKE_OVER_S

    def _trial(self, probe: Probe) -> _Way | None:
        """The egress that this probe tries again, if one is due. Looks every TRIALS_S."""
        now = self._now()
        if now < self._trials_at:
            return None
        self._trials_at = now + TRIALS_S
        self._witnesses = {each: of for each, of in self._witnesses.items() if not each.settled}
        operators = {self.operators.id_of(exchange.name) for exchange in probe.exchanges}
        for way in self.ways:
            if (
                not way.is_tried
                and way not in self._witnesses.values()
                and probe.exchanges[0].name not in way.hosts_unreached
                and way.standing.failure.until <= now
                and way.spent_until <= now
                and way.may_ask(operators)
                and way.dispatcher.reaches(probe.exchanges[0])
                and not way.dispatcher.is_refused_at(probe.exchanges[0], probe.domain)
                and self._is_trial_due(way)
                and self._count(way, 1)
            ):
                way.trial = probe
                return way
        return None

    def _is_trial_due(self, way: _Way) -> bool:
        state = self._control.state(way.name)
        if state == "quarantined":
            if way.trials_left:
                way.trials_left -= 1
                return True
            if not self._control.reserve_trial(way.name):
                return False
            way.trials_left = TRIAL_HOSTS_MAX - 1
            return True
        way.trials_left = 0
        return state == "active" and way.standing.has_failed

    # -- what came of it ------------------------------------------------------------------------

    def relieve(self, egress: str, probe: Probe, outcome: Outcome, rule: str) -> bool:
        """The probe is about to be settled so. True if another egress asks in its place.

        It is if the host refuses this egress, or the egress cannot connect.
        """
        way, now = self._by_name[egress], self._now()
        reason, blame = self._cause_of(outcome, rule)
        is_trial = way.trial is probe
        self._note(way, probe, rule, reason, now)
        cause = probe.cause
        rests = cause is not None and cause.about_us and cause.rule == rule
        refused = blame == "us" and reason in ("blocked_us", "rate_limited")
        failed = rule == EGRESS_FAILED_RULE or (rule in UNREACHED and way.standing.has_failed)
        successor = None
        if refused or rests or failed or rule in (EGRESS_FAMILY_RULE, EGRESS_OUT_RULE):
            successor = self._pass_on(way.dispatcher, probe, outcome, rule)
        elif probe.doubted:
            self._judge_doubt(probe, outcome)
        elif self._is_doubtful(probe, outcome, now):
            successor = self._pass_on(way.dispatcher, probe, outcome, rule, doubted=True)
        if is_trial and rule in UNREACHED and way.standing.has_failed:
            self._unreached_in_trial(way, probe, successor)
        return successor is not None

    @staticmethod
    def _is_doubtful(probe: Probe, outcome: Outcome, now: float) -> bool:
        """May the host treat all alike who come by this egress? It has accepted none of them."""
        pool: Pool | None = probe.pool
        if pool is None or pool.controls.comparable:
            return False
        if outcome is Outcome.TEMPORARY:
            since = pool.refusals.deferred_since
            return since is not None and now - since >= DEFERS_S
        return outcome in (Outcome.UNDELIVERABLE, Outcome.UNCONFIRMED)

    def _judge_doubt(self, probe: Probe, outcome: Outcome) -> None:
        """Another egress has asked: does the host judge those who come by the doubted one?"""
        if outcome not in ACCEPTED:
            return
        exchange = probe.exchanges[max(0, probe.exchange_index)].name
        key = probe.doubted, exchange
        self._unsuited[key] = self._now() + UNSUITED_S
        self._unsuited.move_to_end(key)
        if len(self._unsuited) > UNSUITED_MAX:
            self._unsuited.popitem(last=False)
        log.warning("egress not judged: egress=%s host=%s", *key)

    def _pass_on(
        self,
        dispatcher: ProbeDispatcher,
        probe: Probe,
        outcome: Outcome,
        rule: str,
        *,
        doubted: bool = False,
    ) -> Probe | None:
        """Let another egress ask; return its probe, or None if there is none."""
        tried = (*probe.egresses_tried, dispatcher.egress)
        refused_all = len(tried) >= EGRESSES_TRIED_MAX and rule != EGRESS_OUT_RULE
        if refused_all or self._is_too_late(probe):
            return None
        task = _Task(probe.domain, probe.exchanges, tried)
        other = self._reserve(task)
        if other is None and not self._is_awaited(task):
            return None
        successor = dispatcher.pass_on(probe, outcome, rule, doubted=doubted)
        if other is None:
            self._hold(successor)
        else:
            successor.belong_to(other.dispatcher)
            other.dispatcher.start_probe(successor)
        return successor

    # -- how the egresses fare ------------------------------------------------------------------

    def _note(self, way: _Way, probe: Probe, rule: str, reason: Reason, now: float) -> None:
        """Take note of how the egress fares."""
        standing, is_trial = way.standing, way.trial is probe
        if is_trial:
            way.trial = None
        if self._witnesses and (tried := self._witnesses.pop(probe, None)) and probe.conversations:
            self._failed(tried, probe, now)  # which did not reach this host a moment ago
        if rule == EGRESS_FAILED_RULE:
            self._failed(way, probe, now)
            return
        if rule in UNREACHED and probe.addresses_tried:
            host = probe.exchanges[probe.exchange_index].name
            if standing.unreached(host, now) and self._others_work(way):
                self._failed(way, probe, now)
        if not probe.conversations:
            return  # no host has answered it
        if standing.has_failed:
            log.warning("egress works again: egress=%s", way.name)
        standing.worked(now)
        way.hosts_unreached.clear()
        if is_trial:
            way.trials_left = 0
        if reason not in ANSWERED:
            return
        host = probe.exchanges[probe.exchange_index].name
        operator, is_refusal = self.operators.id_of(host), reason == "blocked_us"
        self._control.answered(way.name, operator, host, reason)
        of_others = ".".join(host.split(".")[-LABELS:])
        standing.answered(of_others if operator == OTHERS else operator, refused=is_refusal)
        state = self._control.state(way.name)
        if state == "quarantined":
            if is_trial and not is_refusal:
                standing.forget_answers()
                self._control.release(way.name)
                log.warning("egress released: egress=%s", way.name)
        elif (
            is_refusal
            and now >= way.judged_from
            and standing.refusal_share() >= self._quarantine_share
        ):
            self._judge(way, now)

    def _judge(self, way: _Way, now: float) -> None:
        """Too many hosts refuse it. A few hosts of one customer may: so the last one stays."""
        why = way.standing.words
        way.standing.forget_answers()
        others = (each for each in self.ways if each is not way)
        if any(self._is_usable(each) or self._awaits_addresses(each) for each in others):
            self._control.quarantine(way.name, why)
            log.error("egress quarantined: egress=%s why=%s", way.name, why)
        else:
            way.judged_from = now + JUDGED_EVERY_S
            log.error("egress refused, and no other can be used: egress=%s why=%s", way.name, why)

    def _unreached_in_trial(self, way: _Way, probe: Probe, witness: Probe | None) -> None:
        """The trial of a failed egress has not reached its host, which may itself be dead.

        If another egress asks that host in its place, that shows it. Else several hosts do.
        """
        if len(way.hosts_unreached) >= UNREACHED_KEPT_MAX:
            way.hosts_unreached.clear()
        way.hosts_unreached.add(probe.exchanges[0].name)
        if witness is not None:
            self._witnesses[witness] = way
            return
        way.hosts_unproven += 1
        if way.hosts_unproven >= TRIAL_HOSTS_MAX:
            self._failed(way, probe, self._now())

    def _others_work(self, way: _Way) -> bool:
        """Has another egress reached a host since this one does not?"""
        since = way.standing.unreached_since
        return any(
            other.standing.worked_at >= since and not other.standing.has_failed
            for other in self.ways
            if other is not way
        )

    def _failed(self, way: _Way, probe: Probe, now: float) -> None:
        if way.standing.failure.until > now:
            return  # connections that were tried together
        way.standing.failed(now)
        way.hosts_unreached.clear()
        way.hosts_unproven = 0
        log.error(
            "egress failed: egress=%s why=%s retry_in_s=%d",
            way.name, probe.cause.words if probe.cause else "", way.standing.failure.length_s,
        )  # fmt: skip
