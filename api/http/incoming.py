"""The next thing that one connection expects from its client: its deadline, and a body's progress."""

from math import inf

import trio

HALF_CLOSED_S = 0.1  # for an answer that waits for nothing, to a client that sends no more
UPLOAD_PIECE_OCTETS_MIN = 1024  # of an upload, on average; smaller ones are an attack
PIECES_MAX = 4096  # of a body: a chunk costs some 20 us to parse, however small it is


class ReadDeadline:
    """The cancel scope that reading runs under.

    Its deadline moves with the conversation, so that one scope limits everything a client
    may be slow at:

        the head      `head_s`         408 if it has begun
        the body      `body_s`         408, or 413 where it is too large
        the answer    none             the application has its own limits
        idling        `keep_alive_s`   closed without an answer
    """

    __slots__ = ("_half_closed_at", "scope")

    def __init__(self, deadline: float) -> None:
        self.scope = trio.CancelScope(deadline=deadline)
        self._half_closed_at = inf  # since then the client sends no more

    def set(self, deadline: float) -> None:
        """Read until then, on trio's clock; no longer than HALF_CLOSED_S after a half-close."""
        self.scope.deadline = min(deadline, self._half_closed_at + HALF_CLOSED_S)

    def shorten(self, deadline: float) -> None:
        """Read until then, or until the present deadline if that is earlier."""
        self.set(min(self.scope.deadline, deadline))

    def half_close(self) -> None:
        """The client sends no more; this limits every deadline set from now on."""
        self._half_closed_at = min(self._half_closed_at, trio.current_time())

    @property
    def is_half_close_over(self) -> bool:
        """Has the time for a half-closed client run out?"""
        return trio.current_time() >= self._half_closed_at + HALF_CLOSED_S


class IncomingBody:
    """One request's body as it arrives. `declared` is its length; None: it comes in chunks.

    An upload has no total deadline, only a limit of `silence_s` between two pieces.
    """

    __slots__ = (
        "_octets",
        "_octets_max",
        "_pieces",
        "deadline",
        "is_discarded",
        "is_expected",
        "is_over_declared",
        "is_too_large",
        "silence_s",
        "whole",
    )

    def __init__(
        self,
        declared: int | None,
        octets_max: int,
        deadline: float,
        *,
        silence_s: float | None = None,
    ) -> None:
        self.deadline = deadline
        self.silence_s = silence_s
        self.whole = trio.Event()
        self.is_expected = declared is None or 0 < declared <= octets_max
        self.is_over_declared = declared is not None and declared > octets_max
        self.is_too_large = False  # and refused for it
        self.is_discarded = False  # the request has its answer
        self._octets = 0
        self._octets_max = octets_max
        self._pieces = 0

    def count(self, octets: int) -> bool:
        """Count a piece of so many octets; False if the body is too large now."""
        self._octets += octets
        self._pieces += 1
        if self.silence_s is None:
            return self._octets <= self._octets_max and self._pieces <= PIECES_MAX
        self.deadline = trio.current_time() + self.silence_s
        pieces_max = PIECES_MAX + self._octets // UPLOAD_PIECE_OCTETS_MIN
        return self._octets <= self._octets_max and self._pieces <= pieces_max
