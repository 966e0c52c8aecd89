"""How long a session may go on: until it leaves, is spent, or its permit is needed elsewhere."""

import trio

from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.session.agenda import Agenda
from mailprobe.engine.smtp.session.host import SessionHost
from mailprobe.engine.smtp.session.limited import RECIPIENTS_MAX, SessionLimits

TURN_S = 0.5  # of a connection while another pool waits for a permit of its address
TURN_CHECK_S = 0.1  # after that, between two checks whether any does


class Tenure:
    """Whether one session may send more, and whether it is to leave."""

    __slots__ = (
        *("_address", "_agenda", "_connection", "_host", "_leaving", "_limits", "_now"),
        *("_turn_ends", "permit_lost"),
    )

    def __init__(
        self,
        host: SessionHost,
        connection: SmtpConnection,
        address: str,
        limits: SessionLimits,
        agenda: Agenda,
    ) -> None:
        self._host = host
        self._connection = connection
        self._address = address
        self._limits = limits
        self._agenda = agenda
        self._now = trio.lowlevel.current_clock().current_time
        self._leaving = False
        self._turn_ends = self._now() + TURN_S
        self.permit_lost = False  # its task is about to be cancelled

    @property
    def is_leaving(self) -> bool:
        """It sends QUIT as soon as nothing is unanswered."""
        return self._leaving or self._agenda.is_over

    def leave(self) -> None:
        self._leaving = True

    def lose_permit(self) -> None:
        self._leaving = self.permit_lost = True

    @property
    def spent(self) -> bool:
        """No more recipients may be sent on this connection."""
        limits = self._limits
        return (
            limits.refusals_left(self._now()) <= 0
            or limits.recipients >= limits.of_host.per_connection
            or limits.recipients
            >= RECIPIENTS_MAX - (not self._agenda.tests)  # the last is a test's
            or not self._connection.usable
        )

    @property
    def may_send_control(self) -> bool:
        """Is there room for one more recipient, which may be refused?"""
        limits = self._limits
        within_limits = limits.refusals_allowed > 0 and limits.recipients < limits.recipients_max
        within_budget = self._host.budget.left(self._now()) > 0
        return within_limits and within_budget and not self.permit_lost

    def may_continue(self, now: float) -> bool:
        """May it send another batch? Leaves if the permit is needed elsewhere."""
        if now > self._turn_ends:
            self._end_turn(now)
        return not (self._leaving or self._agenda.is_over or self.spent)

    def _end_turn(self, now: float) -> None:
        """Leave if the permit is needed elsewhere; else go on, and check again in TURN_CHECK_S."""
        self._turn_ends = now + TURN_CHECK_S
        if not self.is_leaving and self._host.is_needed_elsewhere(self._address):
            self._leaving = True

    def may_send_one(self, now: float) -> bool:
        """May a listed recipient go next by itself, before any test or control?"""
        if now > self._turn_ends:
            self._end_turn(now)
        agenda, limits, budget = self._agenda, self._limits, self._host.budget
        return (
            not (self._leaving or agenda.is_over)
            and not (agenda.tests and agenda.must_test(now))
            and limits.refusals_left(now) > len(agenda.tests)
            and (not budget.is_bounded or budget.left(now) > 0)
            and limits.recipients < RECIPIENTS_MAX - 1
            and limits.recipients < limits.of_host.per_connection - 1
        )
