"""Writes the lines of a session into the notes of the probes that are to be explained."""

from collections.abc import Iterable

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.probe import Probe, ProbeNotes
from mailprobe.engine.smtp.session.batch import PendingProbe
from mailprobe.engine.smtp.wire import CommandReply


class SessionRecorder:
    """Writes nothing for a probe without notes."""

    __slots__ = ("_connection", "preamble")

    def __init__(self, connection: SmtpConnection, preamble: list[tuple[float, bool, str]]) -> None:
        """`preamble`: lines before the first recipient, as (trio's clock, sent by us, text)."""
        self._connection = connection
        self.preamble = preamble

    def record_start(self, notes: ProbeNotes, attempt: ConnectionAttempt, *, reused: bool) -> None:
        """The probe is sent on this session."""
        if notes.session is not self:
            notes.tried.append(attempt)
            if reused:
                notes.cached.append("connection")
        self.record_preamble(notes)

    def record_preamble(self, notes: ProbeNotes) -> None:
        """Add the lines of the preamble that these notes do not have yet."""
        if notes.session is not self:
            notes.session, notes.session_lines = self, 0
        for at, by_us, text in self.preamble[notes.session_lines :]:
            notes.add_line(at, by_us, text)
        notes.session_lines = len(self.preamble)

    def record_opening(self, probes: Iterable[PendingProbe], turn: CommandReply) -> None:
        """A reply to a command that is sent for all of these."""
        for probe in probes:
            if isinstance(probe, Probe):
                self.record_exchange(probe, turn)

    def record_exchange(self, probe: Probe, turn: CommandReply) -> None:
        if probe.notes is not None:
            for at, by_us, text in self._connection.lines_of(turn):
                probe.notes.add_line(at, by_us, text)
