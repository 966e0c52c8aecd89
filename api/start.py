"""Where the console script begins: a Ctrl-C works from here on (see api.interrupts)."""

# `signal` makes enumerations as it is imported: a Ctrl-C meanwhile would be a traceback.
import _signal  # type: ignore[import-not-found]
import os

INTERRUPTED = 130

_signal.signal(_signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def main() -> None:
    import signal

    from api.interrupts import end_at_once

    signal.signal(signal.SIGINT, end_at_once)
    from api.cli import main as command

    try:
        command()
    finally:
        signal.signal(signal.SIGINT, end_at_once)  # the interpreter's end is no better a moment
