"""Verdicts that wait until the host is seen to answer truly: see mailprobe.engine.smtp.controls.

All held verdicts of a session are of one kind, accepted or refused: the first reply of the
other kind confirms them. A control is sent when the session has nothing else to send, before
its share of refusals is used up, and at its end.
"""

from mailprobe.engine.smtp.catchall import DomainAcceptance
from mailprobe.engine.smtp.controls import CHANGED_RULE, TREATMENT, HostControls, Treatment
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import Meaning, ReplyMeaning
from mailprobe.engine.smtp.session.batch import Control
from mailprobe.engine.smtp.session.effects import (
    ClockSuspended,
    Emit,
    HeldBack,
    HostChanged,
    Settled,
)
from mailprobe.engine.smtp.wire import SmtpReply
from mailprobe.engine.verdict import Outcome

CONTROL_S = 0.2  # of silence before a control confirms a list's verdicts: more may be sent
_ACCEPTED, _REFUSED = Treatment.ACCEPTED, Treatment.REFUSED


class Confirmation:
    """The unconfirmed verdicts of one session."""

    __slots__ = ("_broken", "_controls", "_emit", "_since", "_treatment", "due_at", "verdicts")

    def __init__(self, controls: HostControls, emit: Emit) -> None:
        self._controls = controls
        self._emit = emit
        self.verdicts: list[tuple[Probe, Outcome, str]] = []
        self._treatment = _ACCEPTED  # of all of them
        self._since = 0.0  # when the first of them was read
        self.due_at = 0.0  # when a control is sent if there is nothing else to send
        self._broken = False  # a control of this session was contradicted

    def conclude(self, probe: Probe, outcome: Outcome, rule: str, now: float) -> None:
        """This verdict is proven to be the probe's: settle it, or hold it until it is confirmed."""
        treatment, controls = TREATMENT.get(outcome), self._controls
        if treatment is not None:
            watched = now < controls.watched_until
            if controls.is_shared:
                watched = controls.may_treat_all_alike(probe, treatment, now)
            if treatment is _REFUSED:
                controls.note_refused(now)
            elif not watched:
                controls.note_accepted(probe.mailbox, probe.domain_here, now)
                if self.verdicts:
                    self.see(treatment)
            if watched and self._must_hold(probe, treatment, now):
                self._hold(probe, outcome, rule, treatment, now)
                return
        self._emit(Settled(probe, outcome, rule))

    def _must_hold(self, probe: Probe, treatment: Treatment, now: float) -> bool:
        """The host is watched: must the verdict wait? Not if there is nothing to compare it with."""
        self.see(treatment)
        controls = self._controls
        domain: DomainAcceptance = probe.domain_here
        if (
            self._broken
            or controls.has_changed(now)
            or controls.find(treatment.opposite, domain, now)
        ):
            return True
        if treatment is _ACCEPTED:
            controls.note_accepted(probe.mailbox, domain, now)
        return False

    def _hold(
        self, probe: Probe, outcome: Outcome, rule: str, treatment: Treatment, now: float
    ) -> None:
        if not self.verdicts:
            self._treatment, self._since, self.due_at = treatment, now, now
        if probe.deferred_start:
            self._emit(ClockSuspended(probe))
            self.due_at = now + CONTROL_S
        if treatment is _ACCEPTED:
            probe.wait_for_control(outcome, rule)
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
        if not self._controls.is_watched(probe, now):
            self._controls.note_accepted(probe.mailbox, probe.domain_here, now)
        self.see(_ACCEPTED)

    def is_urgent(self) -> bool:
        """Are there more refusals in a row than the host has shown?"""
        return self._treatment is _REFUSED and self._controls.is_improbable(len(self.verdicts))

    def next_control(self, now: float) -> Control | None:
        """The control that would confirm the verdicts; None if there is none, or no need."""
        self.verdicts = [each for each in self.verdicts if not self._drop(each[0])]
        if not self.verdicts or self._broken or self._controls.changed_at >= self._since:
            return None
        expected = self._treatment.opposite
        known = self._controls.find(expected, self.verdicts[0][0].domain_here, now)
        if known is None:
            return None
        return Control(known.domain, known.mailbox, known=known, expected=expected)

    def _drop(self, probe: Probe) -> bool:
        if probe.settled:
            self._emit(HeldBack(-1))
        return probe.settled

    def control_answered(
        self, control: Control, reply: SmtpReply, reading: ReplyMeaning, now: float
    ) -> None:
        if reply.positive:
            treatment = _ACCEPTED
        elif reply.code >= 500 and reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED):
            treatment = _REFUSED
            self._controls.note_refused(now)
        else:  # it says openly that it does not judge now, which is no contradiction
            self.release()
            return
        if treatment is control.expected:
            self.see(treatment)
            return
        self._broken = True
        self._controls.contradict(control.known, treatment, now)
        self.end(now)
        words = f"answered otherwise than before: {reply.code} {reply.text[:80]}"
        cause = Cause(Outcome.HOST_CHANGED, CHANGED_RULE, words, about_us=True)
        self._emit(HostChanged(cause))

    def withdraw_refusals(self) -> list[Probe]:
        """The probes whose refusal is not confirmed and which may be asked again, once."""
        if self._treatment is not _REFUSED or self._broken:
            return []
        again = [each for each in self.verdicts if not (each[0].settled or each[0].unproven)]
        self.verdicts = [each for each in self.verdicts if each not in again]
        self._emit(HeldBack(-len(again)))
        for probe, _, _ in again:
            probe.doubt()
        return [probe for probe, _, _ in again]

    def end(self, now: float) -> None:
        """No control was answered: settle the verdicts, as unknown if the host has changed."""
        if not self._broken and not self._controls.has_changed(now):
            self.release()
            return
        verdicts, self.verdicts = self.verdicts, []
        self._settle([(probe, Outcome.HOST_CHANGED, CHANGED_RULE) for probe, _, _ in verdicts])

    def release(self) -> None:
        """Settle the verdicts as they are."""
        verdicts, self.verdicts = self.verdicts, []
        if self._treatment is _ACCEPTED:
            for probe, _, _ in verdicts:
                self._controls.note_accepted(probe.mailbox, probe.domain_here, self._since)
        self._settle(verdicts)

    def _settle(self, verdicts: list[tuple[Probe, Outcome, str]]) -> None:
        if verdicts:
            self._emit(HeldBack(-len(verdicts)))
        for verdict in verdicts:
            self._emit(Settled(*verdict))
