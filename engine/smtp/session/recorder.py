"""Writes the lines of a session into the notes of the probes that are to be explained."""

from collections.abc import Iterable

from msgspec import Struct

from ...evidence import ConnectionAttempt, shown
from .. import wire
from ..probe import Probe, ProbeNotes
from ..wire import CommandReply, Conversation
from .batch import PendingProbe
from .host import SessionHost


class SessionRecorder(Struct, eq=False):
    """Writes nothing for a probe without notes."""

    _host: SessionHost
    _conversation: Conversation
    _address: str
    preamble: list[tuple[float, bool, str]]

    def record_start(self, probe: Probe, notes: ProbeNotes, *, reused: bool) -> None:
        """The probe, which has these notes, is sent on this session."""
        if notes.session is not self:
            notes.record_unanswered()
            notes.tried.append(
                ConnectionAttempt(self._host.identity.name, self._address, "answered")
            )
            if reused:
                notes.cached.append("connection")
        self.record_preamble(probe)

    def record_preamble(self, probe: Probe) -> None:
        """Add the lines of the preamble that the probe's notes do not have yet."""
        notes = probe.notes
        if notes is None:
            return
        known = notes.session_lines if notes.session is self else 0
        for at, by_us, text in self.preamble[known:]:
            notes.add_line(at, by_us, text)
        notes.follow(self, probe.mailbox, len(self.preamble))

    def record_opening(self, probes: Iterable[PendingProbe], turn: CommandReply) -> None:
        """A reply to a command that is sent for all of these."""
        for probe in probes:
            if isinstance(probe, Probe) and probe.notes is not None:
                self.record_exchange(probe, turn)

    def record_exchange(self, probe: Probe, turn: CommandReply) -> None:
        if (notes := probe.notes) is None:
            return
        is_elsewhere = notes.session is not self  # its reply was late, so it was sent again
        if not is_elsewhere and turn.command == wire.rcpt(notes.awaited):
            notes.note_answered()
        for at, by_us, text in self._conversation.lines_of(turn):
            if not (is_elsewhere and by_us and (at, by_us, shown(text)) in notes.lines):
                notes.add_line(at, by_us, text)

    def unanswered(self, recipient: str) -> list[tuple[float, bool, str]]:
        """The lines sent for this recipient, or for all, that have no reply yet."""
        return self._conversation.unanswered_lines(recipient)
