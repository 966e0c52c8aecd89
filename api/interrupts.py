"""What SIGINT does before a command begins.

Python's own answer is an exception. Raised while modules are imported it is a traceback,
or it is lost, since importlib's callbacks swallow it. Until a command begins there is
nothing to tidy up: the process ends at once.
"""

import os
import signal
from typing import Any

INTERRUPTED = 130


def end_at_once(*_: Any) -> None:
    os._exit(INTERRUPTED)


def raise_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt again: a command begins that has something to end."""
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
