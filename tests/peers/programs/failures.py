"""The counts of Debian's fail2ban, by its own code, which takes its times from the caller.

It does not count in a sliding window: a failure after the first one has left the window is added to
the rate of those before it, until the last one has left.
"""

import sys

from tests.peers.programs.process import ROOT

sys.path.append(str(ROOT / "usr/lib/python3/dist-packages"))

from fail2ban.server.failmanager import FailManager  # type: ignore[import-not-found]
from fail2ban.server.ticket import FailTicket  # type: ignore[import-not-found]

CLEANED_S = 5.0  # it forgets clients that often
EPOCH_S = 1_700_000_000.0  # of the first failure


class FailureCounts:
    """One client at one jail. Times are in seconds from any moment on; they never go back."""

    def __init__(self, maxretry: int = 5, findtime_s: float = 600.0) -> None:
        self._manager = FailManager()
        self._manager.setMaxRetry(maxretry)
        self._manager.setMaxTime(findtime_s)
        self._maxretry = maxretry

    def bans_after(self, at_s: float) -> bool:
        """Count a failure; say whether it bans. The clients were cleaned as long ago as may be."""
        now = EPOCH_S + at_s
        self._manager.cleanup(now - CLEANED_S)
        attempts: int = self._manager.addFailure(FailTicket("192.0.2.1", now))
        return attempts >= self._maxretry
