"""Can the store be written? Checked at most once a second."""

import logging
from math import inf

import trio

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.store import Store

from .quota.background_writes import BackgroundWrites

log = logging.getLogger("mailprobe.health")

CHECK_EVERY_S = 1.0
ANSWER_S = 1.0  # a store that takes longer counts as unavailable


class StoreCheck:
    """The result of the last check of the store."""

    def __init__(self, store: Store, background_writes: BackgroundWrites) -> None:
        self._store = store
        self._background_writes = background_writes
        self._ok = False
        self._begun_at = -inf
        self._ended = trio.Event()

    async def ok(self) -> bool:
        """Was the last check, about a second old at most, a success? Returns within ANSWER_S."""
        now = trio.current_time()
        if now - self._begun_at >= CHECK_EVERY_S and (
            self._begun_at == -inf or self._ended.is_set()
        ):
            self._begun_at, self._ended = now, trio.Event()
            self._background_writes.run_beside(self._check)
        with trio.move_on_after(ANSWER_S):
            await self._ended.wait()
        return self._ok and self._ended.is_set()

    async def _check(self) -> None:
        """Runs in a task of the service, so that it ends even if the client hangs up."""
        try:
            await self._store.check()
        except StoreUnavailable as error:
            if self._ok:
                log.error("store not writable: error=%s", error)
            self._ok = False
        else:
            self._ok = True
        finally:
            self._ended.set()
