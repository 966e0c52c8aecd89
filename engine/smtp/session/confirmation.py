"""Verdicts that wait until the host is seen to judge: see mailprobe.engine.smtp.controls.

All held verdicts of a session are of one kind, accepted or refused: the first reply of the
other kind confirms them, in whatever session of the host it comes. A control is sent when the
session has nothing else to send, and at its end.
"""

from collections import deque
from functools import partial
from math import inf

from msgspec import Struct, field

from ...verdict import Outcome
from ..backoff import NEVER
from ..catchall import RANDOM_UNASKED, Acceptance, DomainAcceptance
from ..controls import (
    CHANGED_RULE,
    KNOWN_MAX,
    TREATMENT,
    UNCONFIRMED_RULE,
    HostControls,
    Treatment,
)
from ..probe import Cause, Probe
from ..replies.rules import Meaning, ReplyMeaning
from ..tolerance.host import PATIENCE_SHARE, list_wait_s
from ..tolerance.limits import Kind
from ..tolerance.rate import AGAIN_S
from ..wire import SmtpReply
from .batch import ProbeVerdict
from .effects import (
    ClockSuspended,
    Emit,
    HeldBack,
    HostChanged,
    Settled,
)
from .host import SessionHost
from .sent_controls import Control, confirming_control, is_control_known

BRACKET_S = 120.0  # a refusal so shortly before an acceptance, and one after it, prove it
REFUSES_S = 600.0  # a host that has refused a recipient within it still judges, we assume
CONTROL_S = 0.2  # of silence before a control confirms a list's verdicts: more may be sent
_ACCEPTED, _REFUSED = Treatment.ACCEPTED, Treatment.REFUSED
_CATCH_ALL = Outcome.CATCH_ALL


class UnprovenAcceptance(Struct, frozen=True):
    """An accepted address whose host may accept everything by now."""

    probe: Probe
    at: float
    refused: int  # recipients before it: at the host, within the time that it is known to count,
    refused_here: int  # and in the session


class SessionTreatments(Struct, eq=False):
    """How the recipients of one session were treated, and what its host's controls learn of it."""

    _controls: HostControls
    refused: int = 0  # as unknown
    is_contradicted: bool = False  # by the answer to a control of this session
    _accepted: deque[UnprovenAcceptance] = field(
        default_factory=partial(deque, maxlen=KNOWN_MAX)
    )  # since the last of them was refused

    def note_refused(self, now: float, *, is_control: bool = False) -> None:
        """A recipient was refused as unknown; `is_control`: as it was before."""
        controls = self._controls
        if self._accepted:
            self._prove_acceptances()
        controls.note_refused(now, self.refused)
        self.refused += 1
        if is_control:
            controls.record.note_controlled(self.refused, now)

    def note_accepted(
        self, mailbox: str, domain: DomainAcceptance, now: float, *, of_all: bool = False
    ) -> None:
        """A recipient was accepted, and that is believed."""
        self._controls.note_accepted(mailbox, domain, now, self.refused, of_all=of_all)

    def note_untested(self, probe: Probe, now: float, *, takes_few: bool) -> None:
        """A recipient was accepted whose domain is still to be tested. `takes_few`: the connection."""
        is_record = self._controls.must_confirm(probe, _ACCEPTED, self.refused, now)
        # Replies on another connection do not show that this one, which may have turned, judges;
        # nor, if each takes few, that the host has not begun to judge again in between.
        at = (
            inf
            if self.refused > self._controls.record.in_session[_REFUSED]
            or (takes_few and now > self._controls.seen_at[_REFUSED] + BRACKET_S)
            else now
        )
        probe.result.note_record(at if is_record else None)
        if is_record:
            self._accepted.append(
                UnprovenAcceptance(probe, now, self._controls.record.count(now), self.refused)
            )
        else:
            self.note_accepted(probe.mailbox, probe.target.domain, now)

    def contradict(self) -> None:
        """A control was answered otherwise than before: nothing proves an acceptance any more."""
        self.is_contradicted = True

    def _prove_acceptances(self) -> None:
        """The host still refuses, so addresses that it accepted before may be controls."""
        accepted, self._accepted = self._accepted, deque(maxlen=KNOWN_MAX)
        if self.is_contradicted:
            return
        for each in accepted:
            domain: DomainAcceptance = each.probe.target.domain
            of_all = domain.acceptance is Acceptance.ALL
            mailbox, refused = each.probe.mailbox, each.refused
            self._controls.note_accepted(
                mailbox, domain, each.at, each.refused_here, of_all=of_all, refused=refused
            )
            each.probe.result.note_record(None)


class Confirmation(Struct, eq=False):
    """The unconfirmed verdicts of one session."""

    _host: SessionHost
    treatments: SessionTreatments
    _emit: Emit
    verdicts: list[ProbeVerdict] = field(default_factory=list)
    _treatment: Treatment = _ACCEPTED  # of all of them
    _since: float = 0.0  # when the first of them was read,
    _latest: float = 0.0  # and the latest
    due_at: float = 0.0  # when a control is sent if there is nothing else to send

    # -- replies ---------------------------------------------------------------------------------

    def conclude(self, probe: Probe, outcome: Outcome, rule: str, now: float) -> None:
        """This verdict is proven to be the probe's: settle it, or hold it until it is confirmed."""
        treatment, controls, treatments = (
            TREATMENT.get(outcome),
            self._host.controls,
            self.treatments,
        )
        if treatment is not None:
            if treatment is _REFUSED:
                treatments.note_refused(now)
            must_confirm = controls.must_confirm(probe, treatment, treatments.refused, now)
            if must_confirm or (treatment is _REFUSED and self._awaits_proof(probe, now)):
                if self._must_hold(probe, treatment, now):
                    self._hold(probe, outcome, rule, treatment, now)
                    return
            elif treatment is _ACCEPTED:
                of_all = outcome is _CATCH_ALL
                treatments.note_accepted(probe.mailbox, probe.target.domain, now, of_all=of_all)
                if self.verdicts:
                    self.see(treatment)
        self._emit(Settled(probe, outcome, rule))

    def refused(self, probe: Probe, outcome: Outcome, reading: ReplyMeaning, now: float) -> None:
        """The recipient itself was refused."""
        self.note_rate(probe, reading, now)
        self.conclude(probe, outcome, reading.rule, now)

    def note_rate(self, probe: Probe, reading: ReplyMeaning, now: float) -> None:
        """A list comes back if its recipient was refused because of a rate."""
        if reading.meaning is Meaning.RATE_LIMITED and probe.has_patience:
            probe.result.retry_after(
                AGAIN_S
                if reading.of_recipient
                else self._host.tolerance.budget.rate.refused(probe.mailbox, now)
            )

    def accepted_untested(self, probe: Probe, now: float) -> None:
        """A recipient was accepted whose domain is still to be tested."""
        self.treatments.note_untested(
            probe, now, takes_few=self._host.terms.limits.limits_connection
        )
        self.see(_ACCEPTED)

    def name_refused(self, now: float) -> None:
        """A random name was refused as unknown."""
        self.treatments.note_refused(now, is_control=True)
        self.see(_REFUSED)

    def see(self, treatment: Treatment) -> None:
        """A recipient was treated this way, which confirms the verdicts of the other kind."""
        if not self.treatments.is_contradicted:
            self._host.controls.note_seen(treatment)
            if self.verdicts and self._treatment is not treatment:
                self.release()

    def _awaits_proof(self, probe: Probe, now: float) -> bool:
        """Does its list wait for a proof that the host, which has accepted none, judges?"""
        return probe.has_patience and self._host.controls.unconfirmed_s(now) > 0

    def _must_hold(self, probe: Probe, treatment: Treatment, now: float) -> bool:
        """Must the verdict wait? Not if no control could confirm it."""
        self.see(treatment)
        controls = self._host.controls
        domain: DomainAcceptance = probe.target.domain
        if (
            self.treatments.is_contradicted
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
            self.treatments.note_accepted(probe.mailbox, domain, now)
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

    # -- controls --------------------------------------------------------------------------------

    @property
    def expects_acceptance(self) -> bool:
        """Is the control that is due one that the host accepted before?"""
        return self._treatment is _REFUSED

    def next_control(self, now: float) -> Control | None:
        """The control that would confirm the verdicts; None if there is none, or no need."""
        controls = self._host.controls
        self.verdicts = [each for each in self.verdicts if not self._drop(each[0])]
        if (
            not self.verdicts
            or self.treatments.is_contradicted
            or controls.changed_at >= self._since
        ):
            return None
        expected = self._treatment.opposite
        if controls.seen_at[expected] > self._latest:  # by another session
            self.release()
            return None
        return confirming_control(self._host, self.verdicts[0][0], expected, now)

    def has_control(self, now: float) -> bool:
        """Is there an address that could confirm the verdicts?"""
        return bool(self.verdicts) and is_control_known(
            self._host, self.verdicts[0][0], self._treatment.opposite, now
        )

    def _drop(self, probe: Probe) -> bool:
        if probe.settled:
            self._emit(HeldBack(-1))
        return probe.settled

    def control_answered(
        self, control: Control, reply: SmtpReply, reading: ReplyMeaning, now: float
    ) -> None:
        controls, treatments = self._host.controls, self.treatments
        controls.known.proof_answered(accepted=reply.positive)
        if reply.positive:
            treatment = _ACCEPTED
        elif reply.code >= 500 and reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED):
            treatment = _REFUSED
        elif control.is_postmaster:
            return
        else:  # it says openly that it does not judge now, which is not a contradiction
            self.release()
            return
        if treatment is control.expected:
            if treatment is _REFUSED:
                treatments.note_refused(now, is_control=True)
            else:
                treatments.note_accepted(control.mailbox, control.domain, now)
            self.see(treatment)
            return
        if treatment is _REFUSED:
            treatments.note_refused(now)
        if control.is_postmaster:  # many domains have none
            controls.known.note_postmaster_refused(now)
            if not controls.comparable:
                self._host.tolerance.known.proofs_lack()
            return
        treatments.contradict()
        hour = controls.contradict(control.known, treatment, now)
        self.end(now)
        words = f"answered otherwise than before: {reply.code} {reply.text[:80]}"
        cause = Cause(Outcome.HOST_CHANGED, CHANGED_RULE, words, about_us=True)
        self._emit(HostChanged(cause, hour))

    def withdraw_refusals(self, now: float) -> list[Probe]:
        """The probes whose refusal is not confirmed here, and which the next session holds."""
        if (
            self._treatment is not _REFUSED
            or not self._host.controls.comparable
            or self.treatments.is_contradicted
        ):
            return []
        for probe, outcome, rule in self.verdicts:
            if probe.result.refused is None:
                probe.result.wait_for_session(outcome, rule, self._host, self._latest)
        again = [
            each
            for each in self.verdicts
            if not each[0].settled and now - each[0].result.refused_at <= BRACKET_S
        ]
        self.verdicts = [each for each in self.verdicts if each not in again]
        self._emit(HeldBack(-len(again)))
        return [probe for probe, _, _ in again]

    def holds_again(self, probe: Probe, now: float) -> bool:
        """Hold the refusal by an earlier session, if an acceptance in this one may prove it.

        Else the probe is sent again, and held by no further session.
        """
        result = probe.result
        if result.refused is None:
            return False
        is_here = result.refused_by is self._host and now - result.refused_at <= BRACKET_S
        if not is_here or (self.verdicts and not self.expects_acceptance):
            result.wait_for_session(*result.refused, None, NEVER)
            return False
        probe.attempts.begin()
        self._hold(probe, *result.refused, _REFUSED, result.refused_at)
        return True

    # -- the end ---------------------------------------------------------------------------------

    def end(self, now: float) -> None:
        """No control was answered: settle the verdicts, as unknown if the host has changed."""
        controls = self._host.controls
        if self.verdicts and self._treatment is _REFUSED:
            controls.record.doubt(self._since)
        if not (
            self.treatments.is_contradicted
            or controls.has_changed(now)
            or (self.verdicts and controls.is_doubted(self._treatment, now))
        ):
            as_unconfirmed = (
                unconfirmed_acceptance if self._treatment is _ACCEPTED else unconfirmed_refusal
            )
            self._settle([as_unconfirmed(self._host, each, now) for each in self._pop()])
            return
        self._settle([(probe, Outcome.HOST_CHANGED, CHANGED_RULE) for probe, _, _ in self._pop()])

    def release(self) -> None:
        """Settle the verdicts as they are: they are confirmed, or nothing can confirm them."""
        verdicts = self._pop()
        if self._treatment is _ACCEPTED:
            for probe, outcome, _ in verdicts:
                self.treatments.note_accepted(
                    probe.mailbox,
                    probe.target.domain,
                    self._since,
                    of_all=outcome is _CATCH_ALL,
                )
        self._settle(verdicts)

    def _pop(self) -> list[ProbeVerdict]:
        verdicts, self.verdicts = self.verdicts, []
        return verdicts

    def _settle(self, verdicts: list[ProbeVerdict]) -> None:
        if verdicts:
            self._emit(HeldBack(-len(verdicts)))
        for verdict in verdicts:
            self._emit(Settled(*verdict))


def unconfirmed_acceptance(host: SessionHost, verdict: ProbeVerdict, now: float) -> ProbeVerdict:
    """The verdict of an accepted address whose host may have turned: it has refused none since.

    A list gets no verdict and asks again; for a request a refusal of the last minutes is enough.
    """
    probe, outcome, _ = verdict
    controls, tolerance, domain = host.controls, host.tolerance, probe.target.domain
    takes_few = host.terms.limits.limits_connection
    if probe.has_patience:
        if (
            tolerance.is_spent(Kind.LIST, probe.asker, now)
            and controls.record.count(now) <= controls.row_takes
        ):
            return verdict
        # The names of a domain that accepts all are never refused, so they cannot prove more.
        if (
            outcome is _CATCH_ALL
            and takes_few
            and not domain.at.unknown_mailbox
            and now - controls.seen_at[_REFUSED] <= BRACKET_S
        ):
            return verdict
        wait_s = max(
            tolerance.next_room_s(Kind.NAME, probe.asker, now, probe.patience_s),
            list_wait_s(probe.patience_s),
        )
        if domain.known(now) not in (Acceptance.ALL, Acceptance.SOME):
            # The same name is asked again then.
            wait_s = max(wait_s, min(domain.known_until - now, probe.patience_s / PATIENCE_SHARE))
        # Its random name was accepted by such a host, too. Or a connection is too short for a
        # control: then a new name, for which accepted addresses wait, has one of its own.
        elif outcome is _CATCH_ALL or takes_few:
            domain.forget()
        probe.result.retry_after(wait_s, tolerance.known.tolerance)
        return probe, Outcome.UNCONFIRMED, UNCONFIRMED_RULE
    if outcome is not Outcome.DELIVERABLE or now - controls.seen_at[_REFUSED] <= REFUSES_S:
        return verdict
    if probe.deferred_start and controls.accepted_all(now):
        return probe, Outcome.UNCONFIRMED, UNCONFIRMED_RULE
    return probe, Outcome.DELIVERABLE_UNTESTED, RANDOM_UNASKED


def unconfirmed_refusal(host: SessionHost, verdict: ProbeVerdict, now: float) -> ProbeVerdict:
    """The verdict of a refused address whose host may refuse everything.

    A list does not condemn it in the first hour of a host that has accepted none, nor after more
    refusals than ever before an acceptance, until an accepted address may be sent again.
    """
    probe, controls = verdict[0], host.controls
    wait_s = controls.unconfirmed_s(now)
    free_s = controls.known.acceptance_free_s(now) if controls.comparable else None
    if not probe.has_patience or (wait_s <= 0 and free_s is None):
        return verdict
    probe.result.retry_after(max(wait_s, free_s or 0.0, list_wait_s(probe.patience_s)))
    return probe, Outcome.UNCONFIRMED, UNCONFIRMED_RULE
