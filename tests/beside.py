"""Cases that mostly wait, run beside one another, each still reported as a test of its own.

A test that waits for another process, or for a real clock, leaves the machine idle. Where
a file has many, all of them begin as soon as the first is wanted, some at a time, each in
a thread; the test of a case waits for its end, and fails as it did.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest


@contextmanager
def run_beside(
    request: pytest.FixtureRequest, cases: Mapping[str, Callable[[], None]], *, at_once: int
) -> Iterator[Callable[[str], None]]:
    """Begin the cases whose ids pytest has selected; calling with an id waits for that one.

    For a fixture of a file's scope. The cases begin in their order, so the longest one
    belongs at the head.
    """
    wanted = {
        item.callspec.id
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    threads = ThreadPoolExecutor(at_once)
    begun = {name: threads.submit(run) for name, run in cases.items() if name in wanted}
    try:
        yield lambda name: begun[name].result()
    finally:
        threads.shutdown(cancel_futures=True)
