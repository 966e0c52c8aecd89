"""The effect of SIGINT before a command begins.

Python raises KeyboardInterrupt. While modules are imported, that prints a traceback, or is
lost, since importlib's callbacks swallow it. Before a command begins there is nothing to
clean up, so the process ends at once.

Importing `signal` builds enumerations, which takes long enough for a Ctrl-C to arrive
meanwhile. The C module below it has the same functions and imports at once.
"""

import _signal  # type: ignore[import-not-found]
import os

INTERRUPTED = 130


def end_at_once(*_: object) -> None:
    """End the process with exit code 130; a signal handler."""
    os._exit(INTERRUPTED)


def end_at_interrupts() -> None:
    """Make SIGINT end the process at once, with exit code 130."""
    _signal.signal(_signal.SIGINT, end_at_once)


def raise_interrupts() -> None:
    """Make SIGINT raise KeyboardInterrupt again; for commands that must clean up."""
    if _signal.getsignal(_signal.SIGINT) is end_at_once:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
