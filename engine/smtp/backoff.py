"""Back-off of a mail host after failures: each further one in a row doubles it.

`HostBackoff` and `Silence` are frozen values: an event returns a new one.
"""

from msgspec import Struct
from msgspec.structs import replace

BACKOFF_AFTER = 2  # failures in a row: one may be chance
FAILURES_APART_S = 1.0  # failures of one outage come together and count once
UNREACHABLE_BACKOFF_S = 5.0
UNREACHABLE_BACKOFF_S_MAX = 300.0
REFUSAL_BACKOFF_S = 60.0
REFUSAL_BACKOFF_S_MAX = 3600.0

SILENT_SESSIONS_MAX = 5  # sessions in a row without a reply to a recipient. A tarpit delays some
SILENT_S = 2.0  # replies only, so silence shorter than three read deadlines causes no back-off

NEVER = float("-inf")


class HostBackoff(Struct, frozen=True):
    """A host's failures in a row, and until when to back off. Times are of the caller's clock."""

    failures: int = 0
    until: float = NEVER
    struck_at: float = NEVER

    def after_failure(self, now: float, *, refused: bool) -> "HostBackoff":
        """`refused`: the host refused because of us; otherwise it could not be reached."""
        if not refused and now - self.struck_at < FAILURES_APART_S:
            return self
        failures = self.failures + 1
        if failures < BACKOFF_AFTER:
            return HostBackoff(failures, struck_at=now)
        first, most = (
            (REFUSAL_BACKOFF_S, REFUSAL_BACKOFF_S_MAX)
            if refused
            else (UNREACHABLE_BACKOFF_S, UNREACHABLE_BACKOFF_S_MAX)
        )
        doublings = min(failures - BACKOFF_AFTER, 16)
        return HostBackoff(failures, now + min(first * 2**doublings, most), now)

    def without_pause(self, now: float) -> "HostBackoff":
        """The next failure counts, however soon it comes; a back-off that has begun stays."""
        return self if self.active(now) else replace(self, struck_at=NEVER)

    def active(self, now: float) -> bool:
        return now < self.until

    def doubtful(self, now: float) -> bool:
        """True during a back-off, and just after a failure: a caller that can wait should."""
        return now < self.until or now - self.struck_at < FAILURES_APART_S


class RestingHost(Struct, frozen=True):
    """A mail host that is left alone now, for the operator."""

    name: str
    words: str  # why
    about_us: bool  # it refused because of this machine
    left_s: float


class Silence(Struct, frozen=True):
    """Sessions in a row in which no recipient was answered before the read deadline."""

    sessions: int = 0
    since: float = NEVER

    def after_session(self, now: float) -> "Silence":
        return Silence(self.sessions + 1, self.since if self.sessions else now)

    def lasting(self, now: float) -> bool:
        return self.sessions >= SILENT_SESSIONS_MAX and now - self.since >= SILENT_S


NO_SILENCE = Silence()
