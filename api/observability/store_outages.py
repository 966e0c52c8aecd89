"""Outages of the store, as a loop that calls it again and again logs them: each once."""

import logging
from collections.abc import Awaitable, Callable

from mailprobe.engine.background import log_fault
from mailprobe.storage.contract import StoreUnavailable


class RepeatedCalls:
    """The calls of one queue. Of several that fail in a row only the first is logged."""

    def __init__(self, queue: str, log: logging.Logger) -> None:
        self._queue = queue
        self._log = log
        self._is_store_away = False  # at the last call

    async def try_call(self, call: Callable[[], Awaitable[None]]) -> bool:
        """Await the call; False if the store was not available, or a bug was logged."""
        try:
            await call()
        except StoreUnavailable as error:
            if not self._is_store_away:
                self._log.warning("store unavailable: queue=%s error=%s", self._queue, error)
            self._is_store_away = True
            return False
        except Exception:
            log_fault(call)
            return False
        self._is_store_away = False
        return True
