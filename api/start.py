"""Where the console script begins: a Ctrl-C works from here on (see api.interrupts)."""

import signal

from api.interrupts import end_at_once


def main() -> None:
    signal.signal(signal.SIGINT, end_at_once)
    from api.cli import main as command

    try:
        command()
    finally:
        signal.signal(signal.SIGINT, end_at_once)  # the interpreter's end is no better a moment
