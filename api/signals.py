"""The signals that drain and end the service."""

import signal


def drain_signals() -> set[signal.Signals]:
    """SIGTERM, SIGINT and SIGHUP, without those that are ignored (as SIGHUP is under nohup)."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    return {each for each in signals if signal.getsignal(each) is not signal.SIG_IGN}
