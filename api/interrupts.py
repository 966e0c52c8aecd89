"""What SIGINT does before a command begins.

Python's own answer is an exception. Raised while modules are imported it is a traceback,
or it is lost, since importlib's callbacks swallow it. Until a command begins there is
nothing to tidy up: the process ends at once.

The module `signal` makes enumerations as it is imported, which takes long enough for a
Ctrl-C to come meanwhile. What lies under it has the same functions and takes no time.
"""

import _signal  # type: ignore[import-not-found]
import os

INTERRUPTED = 130


def end_at_once(*_: object) -> None:
    os._exit(INTERRUPTED)


def end_at_interrupts() -> None:
    """Have SIGINT end the process at once, with exit code 130."""
    _signal.signal(_signal.SIGINT, end_at_once)


def raise_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt again: a command begins that has something to end."""
    if _signal.getsignal(_signal.SIGINT) is end_at_once:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
