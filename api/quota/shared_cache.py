"""The shared cache: processes that share a store share what they learn of domains and mail hosts.

Once a second, a process writes what its engine has learned since, and reads what the others have
written: a fact arrives about two seconds after it was learned, at the latest. A refusal is written
at once, and a process that meets one reads again after a quarter of a second. Before a process
uses its first permit of an address it reads what refused others: nothing else waits for this,
and while the store is unavailable each process knows only its own.

Durations cross the store, not instants: the end of a fact is by the store's clock there, and by
trio's clock here, so no machine's clock matters. A process never writes what it has read.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import trio
from msgspec import Struct

from mailprobe.engine.background import running_loops
from mailprobe.engine.shared_cache import Fact, FactKind, Listener, heed
from mailprobe.storage.base.lease_holders import new_holder
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.shared_cache import NewFact, is_sound
from mailprobe.storage.store import Store

log = logging.getLogger("mailprobe.facts")

EXCHANGE_S = 1.0  # between two writes, and two reads
# Between them if there is something urgent. A refusing host costs each process that meets it
# before it knows two refusals; hosts that refuse all the time cost the store four times as much.
URGENT_S = 0.25
URGENT: frozenset[FactKind] = frozenset({"backoff", "strike"})
START_S = 1.0  # that a start waits for what keeps it from a host's next refusal
REFRESH_S = 0.25  # and the use of a permit
WRITTEN_MAX = 200  # facts in a second: 29 processes write less than one of them can read
PENDING_MAX = 2_000  # of a kind; ten seconds of a store that is away
PAGE = 500  # rows of one read: less than 10 ms of this process
PAGES_MAX = 20  # in a second
# The most urgent first. Routes come last: a process that lacks one makes a query.
KINDS: tuple[FactKind, ...] = ("backoff", "strike", "acceptance", "route")
AT_START: tuple[FactKind, ...] = ("backoff", "strike")

Count = Callable[[str, int], None]  # facts of a kind


def count_nothing(_: str, __: int) -> None:
    """For a service without metrics."""


class _Pending(Struct, frozen=True, eq=False):
    """A fact to be written. `until` is on trio's clock."""

    fact: Fact
    until: float


class StoredSharedCache:
    """One process's side; implements mailprobe.engine.shared_cache.SharedCache."""

    def __init__(
        self, store: Store, shared: Count = count_nothing, absorbed: Count = count_nothing
    ) -> None:
        self._store = store
        self._count_shared = shared
        self._count_absorbed = absorbed
        self._process = new_holder()
        self._listeners: dict[str, list[Listener]] = defaultdict(list)
        self._pending: dict[str, dict[str, _Pending]] = {kind: {} for kind in KINDS}
        self._after = 0
        self._after_of = dict.fromkeys(AT_START, 0)  # likewise, of one kind
        self._urgent = trio.Event()
        self._is_store_away = False

    def share(self, fact: Fact) -> None:
        if not fact.is_sound:
            return
        pending = self._pending[fact.kind]
        pending.pop(fact.key, None)
        pending[fact.key] = _Pending(fact, trio.current_time() + fact.kept_s)
        if len(pending) > PENDING_MAX:
            del pending[next(iter(pending))]
        if fact.kind in URGENT:
            self._urgent.set()

    def listen(self, kinds: tuple[FactKind, ...], listener: Listener) -> None:
        for kind in kinds:
            self._listeners[kind].append(listener)

    async def start(self) -> None:
        """Read what is most urgent, within START_S. The rest follows with `exchange`."""
        with trio.move_on_after(START_S):
            try:
                for kind in AT_START:
                    self._after_of[kind] = await self._read(0, kind)
            except StoreUnavailable as error:
                self._note_unavailable(error)

    async def refresh(self) -> None:
        """Read what is urgent, within REFRESH_S: a host may have refused others this moment."""
        with trio.move_on_after(REFRESH_S):
            with suppress(StoreUnavailable):
                for kind in URGENT:
                    after = max(self._after, self._after_of[kind])
                    self._after_of[kind] = await self._read(after, kind)

    async def exchange(self) -> None:
        """Write and read every second, or sooner if there is something urgent. Runs until cancelled."""
        while True:
            self._urgent = trio.Event()
            try:
                await self._write()
                self._after = await self._read(self._after)
                self._is_store_away = False
            except StoreUnavailable as error:
                self._note_unavailable(error)
            await trio.sleep(EXCHANGE_S if self._is_store_away else URGENT_S)
            with trio.move_on_after(EXCHANGE_S - URGENT_S):
                await self._urgent.wait()

    def _note_unavailable(self, error: StoreUnavailable) -> None:
        if not self._is_store_away:
            log.warning("store unavailable: queue=shared cache error=%s", error)
        self._is_store_away = True

    async def _write(self) -> None:
        now = trio.current_time()
        for pending in self._pending.values():
            for key in [key for key, each in pending.items() if each.until <= now]:
                del pending[key]
        chosen = [each for pending in self._pending.values() for each in pending.values()]
        del chosen[WRITTEN_MAX:]
        facts = [
            NewFact(each.fact.kind, each.fact.key, each.fact.value, each.until - now)
            for each in chosen
        ]
        if not facts:
            return
        await self._store.write_facts(list(filter(is_sound, facts)), by_process=self._process)
        for each in chosen:
            pending = self._pending[each.fact.kind]
            if pending.get(each.fact.key) is each:  # else a newer one is still to be written
                del pending[each.fact.key]
            self._count_shared(each.fact.kind, 1)

    async def _read(self, after: int, kind: FactKind | None = None) -> int:
        """Read what is newer; return how far."""
        for _ in range(PAGES_MAX):
            began = trio.current_time()
            read = await self._store.read_facts(after, not_by=self._process, kind=kind, limit=PAGE)
            after, took_s = read.last, trio.current_time() - began
            for each in read.facts:
                self.heed(Fact(each.kind, each.key, each.value, each.left_s - took_s))
            if not read.more:
                break
        return after

    def heed(self, fact: Fact) -> None:
        for listener in self._listeners.get(fact.kind, ()):
            if heed(fact, listener):
                self._count_absorbed(fact.kind, 1)


@asynccontextmanager
async def exchanging(facts: StoredSharedCache | None) -> AsyncIterator[None]:
    """Exchange facts for the length of the block: open the engine first, which listens."""
    if facts is None:
        yield
        return
    await facts.start()
    async with running_loops(facts.exchange):
        yield
