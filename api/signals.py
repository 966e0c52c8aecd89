"""The signals that end the service in good order."""

import signal


def drain_signals() -> set[signal.Signals]:
    """SIGTERM, SIGINT and SIGHUP; the last one not under nohup, which has it ignored."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    return {each for each in signals if signal.getsignal(each) is not signal.SIG_IGN}
