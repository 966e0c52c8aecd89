"""The state of each egress: one that cannot connect rests, one that too many hosts refuse is quarantined.

Both are tried again with one address at a time.
"""

import logging

import trio
from msgspec import Struct, field

from ...egress import EgressControl
from ...verdict import Reason
from ..operators import OTHERS
from ..probe import EGRESS_FAILED_RULE, Probe
from .choice import EgressChoice, Way

log = logging.getLogger("mailprobe.egress")

LABELS = 2  # the end of a host's name that counts as its operator, if none is known
TRIALS_S = 1.0  # between two looks whether an egress is to be tried again
TRIAL_HOSTS_MAX = 3  # dead hosts that a trial asks in turn: one says nothing about the egress
UNREACHED_KEPT_MAX = 64  # dead hosts that a trial does not ask again
JUDGED_EVERY_S = 300.0  # of the last egress: one line of the log each time

# Rules of hosts that have not greeted: a proxy may accept every connection and lead nowhere.
UNREACHED = (
    *("connect.failed", "connect.unreachable", "clock.connect"),
    *("clock.banner", "closed.banner", "garbage.banner"),
)

# Reasons that a reply of a mail host has given.
ANSWERED: frozenset[Reason] = frozenset(
    {
        *("accepted", "untested", "catch_all", "no_mailbox", "disabled", "full", "greylisted"),
        *("rate_limited", "temporary", "policy", "blocked_us", "unclear"),
    }
)


class _Trials(Struct, eq=False):
    """The trials of one egress."""

    probe: Probe | None = None  # the one address that tries it again
    judged_from: float = float("-inf")  # then it may be quarantined
    left: int = 0  # further hosts that a trial of a quarantined one may ask
    hosts_unreached: set[str] = field(default_factory=set)  # by trials since it failed
    hosts_unproven: int = 0  # of them: no other egress has asked them instead


class EgressTrials:
    """Takes note of what becomes of each probe, and tries egresses again."""

    def __init__(
        self, choice: EgressChoice, control: EgressControl, quarantine_share: float
    ) -> None:
        self._choice = choice
        self._control = control
        self._quarantine_share = quarantine_share
        self._now = trio.lowlevel.current_clock().current_time
        self.of = {way: _Trials() for way in choice.ways}
        self._next_look_at = self._now()
        # Probes that ask a host that the trial of an egress has not reached.
        self._witnesses: dict[Probe, Way] = {}

    def begin(self, probe: Probe) -> Way | None:
        """The egress that this probe tries again, if one is due. Looks every TRIALS_S."""
        now = self._now()
        if now < self._next_look_at:
            return None
        self._next_look_at = now + TRIALS_S
        self._witnesses = {each: of for each, of in self._witnesses.items() if not each.settled}
        host = probe.target.exchanges[0]
        operators = {
            self._choice.operators.id_of(exchange.name) for exchange in probe.target.exchanges
        }
        for way, trials in self.of.items():
            if (
                not (
                    trials.probe
                    and not trials.probe.settled
                    and trials.probe.target.egress is way.hosts
                )
                and way not in self._witnesses.values()
                and host.name not in trials.hosts_unreached
                and way.standing.failure.until <= now
                and way.spent_until <= now
                and way.may_ask(operators)
                and way.hosts.reaches(host)
                and not way.hosts.is_refused_at(host, probe.domain)
                and self._is_due(way)
                and self._choice.count(way, 1)
            ):
                trials.probe = probe
                return way
        return None

    def _is_due(self, way: Way) -> bool:
        state, trials = self._control.state(way.name), self.of[way]
        if state == "quarantined":
            if trials.left:
                trials.left -= 1
                return True
            if not self._control.reserve_trial(way.name):
                return False
            trials.left = TRIAL_HOSTS_MAX - 1
            return True
        trials.left = 0
        return state == "active" and way.standing.has_failed

    def note(self, way: Way, probe: Probe, rule: str, reason: Reason) -> None:
        """Learn about the egress from a probe that is about to be settled by this rule."""
        now, standing, trials = self._now(), way.standing, self.of[way]
        is_trial = trials.probe is probe
        if is_trial:
            trials.probe = None
        if (
            self._witnesses
            and (tried := self._witnesses.pop(probe, None))
            and probe.attempts.conversations
        ):
            self._failed(tried, probe)  # which did not reach this host a moment ago
        if rule == EGRESS_FAILED_RULE:
            self._failed(way, probe)
            return
        if rule in UNREACHED and probe.attempts.addresses:
            host = probe.target.exchange.name
            if standing.unreached(host, now) and self._others_work(way):
                self._failed(way, probe)
        if not probe.attempts.conversations:
            return  # no host has answered it
        if standing.has_failed:
            log.warning("egress works again: egress=%s", way.name)
        standing.worked(now)
        trials.hosts_unreached.clear()
        if is_trial:
            trials.left = 0
        if reason in ANSWERED:
            self._answered(way, probe, reason, is_trial=is_trial)

    def _answered(self, way: Way, probe: Probe, reason: Reason, *, is_trial: bool) -> None:
        """A mail host has answered. If too many refuse the egress, it is quarantined."""
        host = probe.target.exchange.name
        operator, is_refusal = self._choice.operators.id_of(host), reason == "blocked_us"
        self._control.answered(way.name, operator, host, reason)
        of_others = ".".join(host.split(".")[-LABELS:])
        way.standing.answered(of_others if operator == OTHERS else operator, refused=is_refusal)
        state = self._control.state(way.name)
        if state == "quarantined":
            if is_trial and not is_refusal:
                way.standing.forget_answers()
                self._control.release(way.name)
                log.warning("egress released: egress=%s", way.name)
        elif (
            is_refusal
            and self._now() >= self.of[way].judged_from
            and way.standing.refusal_share() >= self._quarantine_share
        ):
            self._judge(way)

    def _judge(self, way: Way) -> None:
        """Too many hosts refuse it: quarantine it. The last one stays: they may be one customer's."""
        why, choice = way.standing.words, self._choice
        way.standing.forget_answers()
        others = (each for each in self.of if each is not way)
        if any(choice.is_usable(each) or choice.awaits_addresses(each) for each in others):
            self._control.quarantine(way.name, why)
            log.error("egress quarantined: egress=%s why=%s", way.name, why)
        else:
            self.of[way].judged_from = self._now() + JUDGED_EVERY_S
            log.error("egress refused, and no other can be used: egress=%s why=%s", way.name, why)

    def unreached(self, way: Way, probe: Probe, witness: Probe | None) -> None:
        """The trial of a failed egress has not reached its host, which may itself be dead.

        If another egress asks that host in its place, that decides. Else several hosts decide.
        """
        trials = self.of[way]
        if len(trials.hosts_unreached) >= UNREACHED_KEPT_MAX:
            trials.hosts_unreached.clear()
        trials.hosts_unreached.add(probe.target.exchanges[0].name)
        if witness is not None:
            self._witnesses[witness] = way
            return
        trials.hosts_unproven += 1
        if trials.hosts_unproven >= TRIAL_HOSTS_MAX:
            self._failed(way, probe)

    def _others_work(self, way: Way) -> bool:
        """Has another egress reached a host since this one does not?"""
        since = way.standing.unreached_since
        return any(
            other.standing.worked_at >= since and not other.standing.has_failed
            for other in self.of
            if other is not way
        )

    def _failed(self, way: Way, probe: Probe) -> None:
        now, standing = self._now(), way.standing
        if standing.failure.until > now:
            return  # connections that were tried together
        standing.failed(now)
        self.of[way].hosts_unreached.clear()
        self.of[way].hosts_unproven = 0
        log.error(
            "egress failed: egress=%s why=%s retry_in_s=%d",
            way.name, probe.attempts.cause.words if probe.attempts.cause else "", standing.failure.length_s,
        )  # fmt: skip
