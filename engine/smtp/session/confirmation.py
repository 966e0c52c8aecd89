"""Verdicts that wait until the host is seen to judge: see mailprobe.engine.smtp.controls.

All held verdicts of a session are of one kind, accepted or refused: the first reply of the
other kind confirms them, in whatever session of the host it comes. A control is sent when the
session has nothing else to send, and at its end.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from math import inf

from ...verdict import Outcome
from ..catchall import RANDOM_UNASKED, Acceptance, DomainAcceptance
from ..controls import (
    CHANGED_RULE,
    KNOWN_MAX,
    TREATMENT,
    UNCONFIRMED_RULE,
    HostControls,
    Known,
    Treatment,
)
from ..probe import Cause, Probe
from ..replies.rules import Meaning, ReplyMeaning
from ..tolerance.host import list_wait_s
from ..tolerance.limits import Kind
from ..wire import SmtpReply
from .batch import Control
from .effects import (
    ClockSuspended,
    Emit,
    HeldBack,
    HostChanged,
    Settled,
)
from .host import SessionHost

REFUSES_S = 600.0  # a host that has refused somebody since then is taken to refuse still
CONTROL_S = 0.2  # of silence before a control confirms a list's verdicts: more may be sent
_ACCEPTED, _REFUSED = Treatment.ACCEPTED, Treatment.REFUSED
_CATCH_ALL = Outcome.CATCH_ALL


@dataclass(frozen=True, slots=True)
class UnprovenAcceptance:
    """An address that a host accepted which may accept everybody by now."""

    probe: Probe
    at: float
    refused: int  # recipients before it: at the host, within the time that it is known to count,
    refused_here: int  # and in the session


@dataclass(slots=True, eq=False)
class Confirmation:
    """The unconfirmed verdicts of one session."""

    _host: SessionHost
    _controls: HostControls
    _emit: Emit
    verdicts: list[tuple[Probe, Outcome, str]] = field(default_factory=list)
    _treatment: Treatment = _ACCEPTED  # of all of them
    _since: float = 0.0  # when the first of them was read,
    _latest: float = 0.0  # and the latest
    due_at: float = 0.0  # when a control is sent if there is nothing else to send
    _broken: bool = False  # a control of this session was contradicted
    _refused: int = 0  # recipients refused as unknown in this session
    _accepted: deque[UnprovenAcceptance] = field(
        default_factory=partial(deque, maxlen=KNOWN_MAX)
    )  # since the last of them

    def conclude(self, probe: Probe, outcome: Outcome, rule: str, now: float) -> None:
        """This verdict is proven to be the probe's: settle it, or hold it until it is confirmed."""
        treatment, controls = TREATMENT.get(outcome), self._controls
        if treatment is not None:
            if treatment is _REFUSED:
                self._count_refused(now)
            must_confirm = controls.must_confirm(probe, treatment, self._refused, now)
            if must_confirm or (treatment is _REFUSED and self._awaits_proof(probe, now)):
                if self._must_hold(probe, treatment, now):
                    self._hold(probe, outcome, rule, treatment, now)
                    return
            elif treatment is _ACCEPTED:
                of_all = outcome is _CATCH_ALL
                self._note_accepted(probe.mailbox, probe.target.domain, now, of_all=of_all)
                if self.verdicts:
                    self.see(treatment)
        self._emit(Settled(probe, outcome, rule))

    def _count_refused(self, now: float, *, is_control: bool = False) -> None:
        controls = self._controls
        if self._accepted:
            self._prove_acceptances()
        controls.note_refused(now, self._refused)
        self._refused += 1
        if is_control:
            controls.record.note_controlled(self._refused, now)

    def _note_accepted(
        self, mailbox: str, domain: DomainAcceptance, now: float, *, of_all: bool = False
    ) -> None:
        self._controls.note_accepted(mailbox, domain, now, self._refused, of_all=of_all)

    def _prove_acceptances(self) -> None:
        """The host refuses still, so what it accepted before may be a control from now on."""
        accepted, self._accepted = self._accepted, deque(maxlen=KNOWN_MAX)
        if self._broken:
            return
        for each in accepted:
            domain: DomainAcceptance = each.probe.target.domain
            of_all = domain.acceptance is Acceptance.ALL
            mailbox, refused = each.probe.mailbox, each.refused
            self._controls.note_accepted(
                mailbox, domain, each.at, each.refused_here, of_all=of_all, refused=refused
            )
            each.probe.result.note_record(None)

    def name_refused(self, now: float) -> None:
        """A random name was refused as unknown."""
        self._count_refused(now, is_control=True)
        self.see(_REFUSED)

    def is_at_record(self, treatment: Treatment, now: float, *, of_list: bool) -> bool:
        """May the host treat all alike by now?"""
        return self._controls.is_at_record(treatment, self._refused, now, of_list=of_list)

    def _awaits_proof(self, probe: Probe, now: float) -> bool:
        """Does its list wait until a host that has accepted nobody is seen to judge?"""
        return probe.has_patience and self._controls.unconfirmed_s(now) > 0

    def _must_hold(self, probe: Probe, treatment: Treatment, now: float) -> bool:
        """Must the verdict wait? Not if there is nothing to compare it with."""
        self.see(treatment)
        controls = self._controls
        domain: DomainAcceptance = probe.target.domain
        if (
            self._broken
            or controls.has_changed(now)
            or controls.is_doubted(treatment, now)
            or controls.known.find(treatment.opposite, domain, now)
            or (treatment is _REFUSED and self._awaits_proof(probe, now))
        ):
            return True
        if treatment is _REFUSED and probe.has_patience and controls.comparable:
            if controls.known.acceptance_free_s(now) is not None:
                return True
            controls.note_unconfirmed(now)
            return self._awaits_proof(probe, now)
        if treatment is _ACCEPTED:
            self._note_accepted(probe.mailbox, domain, now)
        return False

    def _hold(
        self, probe: Probe, outcome: Outcome, rule: str, treatment: Treatment, now: float
    ) -> None:
        if not self.verdicts:
            self._treatment, self._since, self.due_at = treatment, now, now
        self._latest = now
        if probe.deferred_start:
            self._emit(ClockSuspended(probe))
            self.due_at = now + CONTROL_S
        if treatment is _ACCEPTED:
            probe.result.wait_for_control(outcome, rule)
        self.verdicts.append((probe, outcome, rule))
        self._emit(HeldBack(1))

    def see(self, treatment: Treatment) -> None:
        """A recipient was treated so: this confirms the verdicts of the other kind."""
        if not self._broken:
            self._controls.note_seen(treatment)
            if self.verdicts and self._treatment is not treatment:
                self.release()

    def accepted_untested(self, probe: Probe, now: float) -> None:
        """A recipient was accepted whose domain is still to be tested."""
        is_record = self._controls.must_confirm(probe, _ACCEPTED, self._refused, now)
        # What another connection is told does not show that this one, which may have turned, judges.
        at = inf if self._refused > self._controls.record.in_session[_REFUSED] else now
        probe.result.note_record(at if is_record else None)
        if is_record:
            refused = self._controls.record.count(now)
            self._accepted.append(UnprovenAcceptance(probe, now, refused, self._refused))
        else:
            self._note_accepted(probe.mailbox, probe.target.domain, now)
        self.see(_ACCEPTED)

    # -- controls --------------------------------------------------------------------------------

    @property
    def expects_acceptance(self) -> bool:
        """Is the control that is due one that the host accepted before?"""
        return self._treatment is _REFUSED

    def next_control(self, now: float) -> Control | None:
        """The control that would confirm the verdicts; None if there is none, or no need."""
        controls = self._controls
        self.verdicts = [each for each in self.verdicts if not self._drop(each[0])]
        if not self.verdicts or self._broken or controls.changed_at >= self._since:
            return None
        expected = self._treatment.opposite
        if controls.seen_at[expected] > self._latest:  # by another session
            self.release()
            return None
        probe = self.verdicts[0][0]
        domain: DomainAcceptance = probe.target.domain
        known, is_postmaster = controls.known.find(expected, domain, now), False
        if known is None and expected is _ACCEPTED and controls.accepted_nobody():
            known, is_postmaster = controls.known.postmaster(domain, now), True
        if known is None and expected is _REFUSED:
            known = self._fresh_name(probe, now)
        if known is None or not self._may_send(expected, probe, now):
            return None
        return self._control(known, expected, probe.asker, now, is_postmaster=is_postmaster)

    def has_control(self, now: float) -> bool:
        """Is there an address that could confirm the verdicts?"""
        if not self.verdicts:
            return False
        probe = self.verdicts[0][0]
        if (
            self._controls.known.find(self._treatment.opposite, probe.target.domain, now)
            is not None
        ):
            return True
        return self._treatment is _ACCEPTED and self._may_be_named(probe, now)

    def _may_be_named(self, probe: Probe, now: float) -> bool:
        """Is its domain known to refuse random names, and does a list wait for the proof?"""
        return probe.deferred_start and probe.target.domain.known(now) is Acceptance.SOME

    def _fresh_name(self, probe: Probe, now: float) -> Known | None:
        """A new random name, where those that were refused went out within the hour."""
        if not self._may_be_named(probe, now):
            return None
        return Known(
            probe.target.domain.fresh_mailbox(probe.mailbox),
            probe.target.domain,
            now,
        )

    def _may_send(self, expected: Treatment, probe: Probe, now: float) -> bool:
        """One that is refused costs one of the host's refusals."""
        if expected is _ACCEPTED:
            return True
        kind = Kind.NAME if probe.has_patience else Kind.LONE_NAME
        tolerance = self._host.tolerance
        return tolerance.room_for_name(kind, probe.asker, now, probe.patience_s) > 0

    def proof_control(self, domain: DomainAcceptance, account: str, now: float) -> Control | None:
        """One that shows whether the host still judges, so that it may be asked for more."""
        controls = self._controls
        proof = controls.known.find_proof(domain, now)
        if proof is None:
            return None
        known, is_postmaster = proof
        controls.known.proves(now, self._host.clocks.read_s)
        return self._control(known, _ACCEPTED, account, now, is_postmaster=is_postmaster)

    def _control(
        self, known: Known, expected: Treatment, account: str, now: float, *, is_postmaster: bool
    ) -> Control:
        self._controls.known.asks(known.mailbox, now)
        return Control(
            known.domain,
            known.mailbox,
            account,
            known=known,
            expected=expected,
            is_postmaster=is_postmaster,
        )

    def _drop(self, probe: Probe) -> bool:
        if probe.settled:
            self._emit(HeldBack(-1))
        return probe.settled

    def control_answered(
        self, control: Control, reply: SmtpReply, reading: ReplyMeaning, now: float
    ) -> None:
        controls = self._controls
        controls.known.proof_answered(accepted=reply.positive)
        if reply.positive:
            treatment = _ACCEPTED
        elif reply.code >= 500 and reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED):
            treatment = _REFUSED
        elif control.is_postmaster:
            return
        else:  # it says openly that it does not judge now, which is no contradiction
            self.release()
            return
        if treatment is control.expected:
            if treatment is _REFUSED:
                self._count_refused(now, is_control=True)
            else:
                self._note_accepted(control.mailbox, control.domain, now)
            self.see(treatment)
            return
        if treatment is _REFUSED:
            self._count_refused(now)
        if control.is_postmaster:  # many domains have none
            controls.known.note_postmaster_refused(now)
            if not controls.comparable:
                self._host.tolerance.known.proofs_lack()
            return
        self._broken = True
        hour = controls.contradict(control.known, treatment, now)
        self.end(now)
        words = f"answered otherwise than before: {reply.code} {reply.text[:80]}"
        cause = Cause(Outcome.HOST_CHANGED, CHANGED_RULE, words, about_us=True)
        self._emit(HostChanged(cause, hour))

    def withdraw_refusals(self) -> list[Probe]:
        """The probes whose refusal is not confirmed and which may be asked again, once."""
        if self._treatment is not _REFUSED or self._broken or not self._controls.comparable:
            return []
        again = [
            each for each in self.verdicts if not (each[0].settled or each[0].attempts.unproven)
        ]
        self.verdicts = [each for each in self.verdicts if each not in again]
        self._emit(HeldBack(-len(again)))
        for probe, _, _ in again:
            probe.attempts.doubt()
        return [probe for probe, _, _ in again]

    # -- the end ---------------------------------------------------------------------------------

    def end(self, now: float) -> None:
        """No control was answered: settle the verdicts, as unknown if the host has changed."""
        controls = self._controls
        is_doubted = bool(self.verdicts) and controls.is_doubted(self._treatment, now)
        if not self._broken and not controls.has_changed(now) and not is_doubted:
            self.release(now, confirmed=False)
            return
        verdicts, self.verdicts = self.verdicts, []
        self._settle([(probe, Outcome.HOST_CHANGED, CHANGED_RULE) for probe, _, _ in verdicts])

    def release(self, now: float = 0.0, *, confirmed: bool = True) -> None:
        """Settle the verdicts as they are; what is not confirmed, as far as that allows."""
        verdicts, self.verdicts = self.verdicts, []
        if self._treatment is _ACCEPTED:
            for probe, outcome, _ in verdicts:
                if confirmed:
                    self._note_accepted(
                        probe.mailbox,
                        probe.target.domain,
                        self._since,
                        of_all=outcome is _CATCH_ALL,
                    )
            if not confirmed:
                verdicts = [self._untested(each, now) for each in verdicts]
        elif not confirmed:
            verdicts = [self._unconfirmed(each, now) for each in verdicts]
        self._settle(verdicts)

    def _untested(
        self, verdict: tuple[Probe, Outcome, str], now: float
    ) -> tuple[Probe, Outcome, str]:
        """An accepted address of a host that may have turned: nothing shows that it refuses yet.

        A list is told nothing and asks it again; for a request a refusal of the last minutes is
        enough.
        """
        probe, outcome, _ = verdict
        if probe.has_patience:
            tolerance, controls = self._host.tolerance, self._controls
            is_spent = tolerance.is_spent(Kind.LIST, probe.asker, now)
            if is_spent and controls.record.count(now) <= controls.row_takes:
                return verdict
            wait_s = tolerance.next_room_s(Kind.NAME, probe.asker, now, probe.patience_s)
            wait_s = max(wait_s, list_wait_s(probe.patience_s))
            probe.result.retry_after(wait_s, tolerance.known.tolerance)
            if outcome is _CATCH_ALL:  # its random name was accepted by such a host, too
                probe.target.domain.forget()
            return probe, Outcome.UNCONFIRMED, UNCONFIRMED_RULE
        if (
            outcome is not Outcome.DELIVERABLE
            or now - self._controls.seen_at[_REFUSED] <= REFUSES_S
        ):
            return verdict
        return probe, Outcome.DELIVERABLE_UNTESTED, RANDOM_UNASKED

    def _unconfirmed(
        self, verdict: tuple[Probe, Outcome, str], now: float
    ) -> tuple[Probe, Outcome, str]:
        """A list does not condemn at a host that has accepted nobody, before an hour is over.

        Nor where more were refused than ever before an acceptance, until an address that it accepted
        may be asked again.
        """
        probe, controls = verdict[0], self._controls
        wait_s = controls.unconfirmed_s(now)
        if wait_s <= 0 and controls.comparable:
            wait_s = controls.known.acceptance_free_s(now) or 0.0
        if wait_s <= 0 or not probe.has_patience:
            return verdict
        probe.result.retry_after(max(wait_s, list_wait_s(probe.patience_s)))
        return probe, Outcome.UNCONFIRMED, UNCONFIRMED_RULE

    def _settle(self, verdicts: list[tuple[Probe, Outcome, str]]) -> None:
        if verdicts:
            self._emit(HeldBack(-len(verdicts)))
        for verdict in verdicts:
            self._emit(Settled(*verdict))
