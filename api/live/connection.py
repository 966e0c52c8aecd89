"""One client's live socket: reads addresses, verifies them, and sends their results.

Addresses are verified in batches of what has come, each charged as a stream's are. How many
a client may have without a result is its credit; one that sends more is not read until there
is room. The limit per minute is a wait. What refuses for good (quota, cap, a revoked key) ends
the socket with the error's body, after the results under way.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from math import inf

import trio
from trio_websocket import ConnectionClosed

from mailprobe.engine.evidence import EvidenceBudget
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_records import ENDED, NO_WAITS, ListWaits, StoredList
from mailprobe.storage.records import Caller

from ..error_table import body_of, row_of
from ..observability.request_context import RequestContext
from ..operations.list_jobs import response_of, waits_of
from ..operations.verify import result_of
from ..quota.charge import ChargedAnswers, Verifications, charge
from ..refusals import (
    InvalidRequest,
    ListNotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Refusal,
    UsageUnknown,
)
from ..service import Service
from .handshake import LiveSocket
from .messages import (
    EndOfInput,
    LiveAddress,
    WatchedList,
    message_of,
    plain_line,
    read_message,
    result_line,
    typed_line,
)

CREDIT = 400  # addresses without a result
CREDIT_SHARE = 4  # of them are announced together
BATCH_MAX = 50
BATCHES_MAX = 8  # at a time
GATHER_S = 0.004  # for more addresses, while others are under way
WATCHES_MAX = 4
WATCH_EVERY_S = 1.0
PING_EVERY_S = 20.0
PONG_S = 20.0
IDLE_S = 600.0  # without an address, while none is under way
CLOSE_S = 2.0
OVERLOADED_S = 1.0
WAIT_S_MIN, WAIT_S_MAX = 1.0, 60.0

NORMAL, GOING_AWAY = 1000, 1001  # RFC 6455 7.4.1
CLOSE_CODES = 4000  # an error closes with this and its HTTP status


class LiveConnection:
    """A live socket that is open. `identify` returns its caller, or refuses a revoked key."""

    def __init__(
        self,
        service: Service,
        identify: Callable[[], Awaitable[Caller]],
        socket: LiveSocket,
        record: RequestContext,
        *,
        explain: bool = False,
        advises: bool = False,
    ) -> None:
        self._service = service
        self._explain, self._advises = explain, advises
        self._identify = identify
        self._socket = socket
        self._record = record
        self._scope = trio.CancelScope()
        self._waiting: deque[LiveAddress] = deque()
        self._outstanding = 0  # addresses without a result
        self._answered = 0
        self._credit_owed = 0
        self._watches = 0
        self._slots = trio.Semaphore(BATCHES_MAX)
        self._changed = trio.Event()
        self._is_paused = False  # reads nothing: the client has sent more than its credit
        self._has_ended = False  # no more addresses come
        self._close_code = NORMAL
        self._refusal: Refusal | None = None

    async def run(self, drain: trio.Event) -> None:
        """Serve the client until either side ends. Raises nothing of the client's making."""
        with self._scope:
            async with trio.open_nursery() as beside:
                for run in (self._check_alive, self._end_idle):
                    beside.start_soon(self._until_gone, run)
                beside.start_soon(self._end_at, drain)
                beside.start_soon(self._until_gone, self._receive, beside)
                await self._until_gone(self._dispatch)
                beside.cancel_scope.cancel()
            await self._until_gone(self._close)

    async def _until_gone(self, run: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Await one part of the work; the client's end is the end of all."""
        try:
            await run(*arguments)
        except* ConnectionClosed:
            self._scope.cancel()
        except* StoreUnavailable:
            self._end(UsageUnknown())
        except* Refusal as refused:
            self._end(_first_of(refused))

    def _end(self, refusal: Refusal | None = None, *, code: int = NORMAL) -> None:
        """Take no more addresses; close when those under way have their results."""
        if not self._has_ended:
            self._has_ended, self._close_code = True, code
        self._refusal = self._refusal or refusal  # after the client's end, too
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _close(self) -> None:
        if self._refusal is not None:
            row = row_of(self._refusal)
            self._record.code, self._close_code = row.code, CLOSE_CODES + row.status
            await self._send([typed_line("error", body_of(self._refusal, self._service.links))])
        elif self._outstanding:  # the client has ended its input, and now the process ends
            self._close_code = GOING_AWAY
        elif self._close_code == NORMAL:
            await self._send([plain_line("done", answered=self._answered)])
        with trio.move_on_after(CLOSE_S):
            await self._socket.aclose(self._close_code)

    async def _send(self, lines: list[bytes]) -> None:
        await self._socket.send_message(message_of(lines))

    # -- the client

    async def _receive(self, beside: trio.Nursery) -> None:
        """Read messages until the client ends its input, or has sent more than its credit."""
        await self._send([plain_line("credit", more=CREDIT)])
        while not self._has_ended:
            message = await self._socket.get_message()
            for read in read_message(message):
                match read:
                    case LiveAddress():
                        self._waiting.append(read)
                        self._outstanding += 1
                        self._record.addresses += 1
                    case WatchedList(list_id=list_id):
                        self._begin_watch(beside, list_id)
                    case EndOfInput():
                        self._end()
            self._notify()
            self._is_paused = self._outstanding >= CREDIT
            while self._outstanding >= CREDIT and not self._has_ended:
                await self._changed.wait()
            self._is_paused = False

    def _begin_watch(self, beside: trio.Nursery, list_id: str) -> None:
        if self._watches >= WATCHES_MAX:
            raise InvalidRequest(f"A socket watches at most {WATCHES_MAX} lists.", "live")
        self._watches += 1
        beside.start_soon(self._until_gone, self._watch, list_id)

    async def _watch(self, list_id: str) -> None:
        """Send how far a list is, whenever that changes, until it ends."""
        store, caller = self._service.store, await self._identify()
        sent: tuple[StoredList, ListWaits] | None = None
        while True:
            found = await store.stored_list(list_id.lower())
            if found is None or not caller.may_see(found.account_id, is_test=found.is_test):
                raise ListNotFound
            waits = (await waits_of(self._service, [found])).get(found.id, NO_WAITS)
            if (found, waits) != sent:
                limit = self._service.plans[caller.account.tier].rate_limit_per_min
                now = self._service.now()
                await self._send([typed_line("list", response_of(found, waits, now, limit))])
                sent = found, waits
            if found.state in ENDED:
                self._watches -= 1
                return
            await trio.sleep(WATCH_EVERY_S)
            await self._identify()

    async def _check_alive(self) -> None:
        """Ping; a client without a pong is gone."""
        while True:
            await trio.sleep(PING_EVERY_S)
            with trio.move_on_after(PONG_S) as waiting:
                await self._socket.ping()
            if waiting.cancelled_caught and not self._is_paused:
                self._scope.cancel()

    async def _end_idle(self) -> None:
        """End a socket that has had nothing to do for IDLE_S."""
        while True:
            changed = self._changed
            idle_s = inf if self._outstanding or self._watches else IDLE_S
            with trio.move_on_after(idle_s) as waiting:
                await changed.wait()
            if waiting.cancelled_caught:
                self._end()
                return

    async def _end_at(self, drain: trio.Event) -> None:
        """The process ends: addresses that are not under way stay without a result."""
        await drain.wait()
        self._waiting.clear()
        self._end(code=GOING_AWAY)

    # -- verification

    async def _dispatch(self) -> None:
        """Verify what comes, in batches, until the input has ended and all is answered."""
        async with trio.open_nursery() as batches:
            while await self._has_next():
                await self._slots.acquire()
                is_alone = self._slots.value == BATCHES_MAX - 1
                if not is_alone and len(self._waiting) < BATCH_MAX:
                    with trio.move_on_after(GATHER_S):
                        await self._changed.wait()
                reserved = await self._reserved()
                if reserved is None:
                    self._slots.release()
                    continue
                batches.start_soon(self._answer, *reserved)

    async def _has_next(self) -> bool:
        while not self._waiting:
            if self._has_ended:
                return False
            await self._changed.wait()
        return True

    async def _reserved(self) -> tuple[ChargedAnswers, list[LiveAddress]] | None:
        """Reserve units for some that wait; None after a wait, or after a refusal for good."""
        units_max = BATCH_MAX
        while self._waiting:
            taken = [self._waiting[place] for place in range(min(units_max, len(self._waiting)))]
            try:
                caller = self._record.caller = await self._identify()
                texts = [each.email for each in taken]
                charged = charge(
                    self._service.quota,
                    caller,
                    Verifications("live", texts, self._explain, in_parts=True, waits=True),
                )
                await charged.reserve()
            except (RateLimited, QuotaExhausted, Overloaded) as refusal:
                left = _units_left(refusal, charged)
                if 0 < left < len(taken):
                    units_max = left
                    continue
                if isinstance(refusal, QuotaExhausted):
                    self._stop(refusal)
                else:
                    await self._wait(refusal, charged)
                return None
            except Refusal as refusal:
                self._stop(refusal)
                return None
            except StoreUnavailable:
                self._stop(UsageUnknown())
                return None
            for _ in taken[: len(self._waiting)]:  # a stop may have emptied the queue meanwhile
                self._waiting.popleft()
            return charged, taken
        return None

    def _stop(self, refusal: Refusal) -> None:
        """Verify nothing more."""
        self._waiting.clear()
        self._end(refusal)

    async def _wait(self, refusal: Refusal, charged: ChargedAnswers) -> None:
        """Wait for a limit; the client learns for how long."""
        seconds = OVERLOADED_S
        if isinstance(refusal, RateLimited):
            until_s = (refusal.reset_at - refusal.asked_at).total_seconds()
            more_s = charged.limits.minute_more_s if charged.limits else until_s
            seconds = min(max(WAIT_S_MIN, min(until_s, more_s)), WAIT_S_MAX)
            code = row_of(refusal).code
            await self._send([plain_line("wait", seconds=round(seconds, 1), code=code)])
        with trio.move_on_after(seconds):
            while self._waiting:  # at the process's end they are dropped
                await self._changed.wait()

    async def _answer(self, charged: ChargedAnswers, taken: list[LiveAddress]) -> None:
        """Send the results of a batch as they come."""
        try:
            async with charged:
                while answers := await charged.next_ready():
                    budget = EvidenceBudget()
                    lines = [
                        result_line(
                            taken[answer.position].ref,
                            result_of(answer, budget, advises=self._advises),
                        )
                        for answer in answers
                    ]
                    self._count(len(answers))
                    if credit := self._next_credit():
                        lines.append(plain_line("credit", more=credit))
                    await self._send(lines)
        finally:
            self._slots.release()

    def _count(self, answers: int) -> None:
        self._answered += answers
        self._outstanding -= answers
        self._credit_owed += answers
        self._record.lines = self._answered
        self._notify()

    def _next_credit(self) -> int:
        """The credit to announce now: some at a time, and all when nothing is under way."""
        if self._outstanding and self._credit_owed < CREDIT // CREDIT_SHARE:
            return 0
        credit, self._credit_owed = self._credit_owed, 0
        return credit


def _first_of(group: BaseExceptionGroup[Refusal]) -> Refusal:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Refusal)
    return found


def _units_left(refusal: Refusal, charged: ChargedAnswers) -> int:
    """The units that would be granted now."""
    if isinstance(refusal, QuotaExhausted):
        return refusal.limit - refusal.used
    if isinstance(refusal, RateLimited) and charged.limits is not None:
        return charged.limits.minute_left
    return 0
