"""Spends the units of a list: those of one chunk, as its answers come.

    async with charge(quota, claim.caller, ChunkAddresses(claim, addresses)) as charged:
        while ready := await charged.next_answers():
            await charged.store(ready)

Each call of `store` counts answers and stores them in one transaction, so that what a killed
process has stored is counted, and nothing else. A limit is not a failure of a list but a wait:
the refusal is raised and not logged.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType

import trio
from msgspec import Struct

from mailprobe.engine import Answer, Answers, open_answers
from mailprobe.engine.evidence import Evidence
from mailprobe.engine.verdict import PASSING, Status
from mailprobe.storage.list_records import ChunkPart, ListClaim
from mailprobe.storage.records import Caller, JobOrder, Reservation

from ..http.received_request import NO_ADMISSION
from ..refusals import Overloaded, Refusal
from ..results.chunk_lines import encode_results
from ..results.marks import mark_of
from ..sandbox.addresses import refusal_for
from ..sandbox.stream import open_sandbox_answers
from .limits import LimitsLeft
from .reservation import Charge, UsageName, row_of, settle
from .service import LEASE_S, QuotaService
from .set_aside import SetAside

GATHER_S = 0.25  # answers of so long are stored together
FREE_SHARE = 0.1  # of the key's minute: left to its other requests

USAGE_NAME: UsageName = "list"
Note = Callable[[Mapping[int, Evidence | None]], None]  # evidence by the numbers of the addresses


class ChunkAddresses(Struct, frozen=True):
    """Addresses of a claimed chunk, by their numbers there: a unit each.

    `is_rest`: the chunk is answered with these addresses. What cannot be answered now is added
    to those that are `aside`. `note` gets the evidence of each answer that is stored.
    """

    claim: ListClaim
    addresses: Mapping[int, str]
    is_rest: bool
    aside: SetAside
    note: Note


class ChunkRecheck(Struct, frozen=True):
    """Addresses of a claimed chunk that time may have cured, each with its status before."""

    claim: ListClaim
    passing: Mapping[int, tuple[str, Status]]
    note: Note


def units_for_list(limits: LimitsLeft) -> int:
    """The units that a list may take of the key's minute now."""
    return limits.minute_left - int(limits.minute * FREE_SHARE)


async def store_callback(quota: QuotaService, claim: ListClaim, order: JobOrder) -> None:
    """Store the callback of a list, whose units are counted; a repetition changes nothing."""
    with suppress(ValueError):  # a process was killed after it had stored it
        await quota.store.create_job(claim.caller, order, lambda ledger: None)


def marks_of(numbers: Sequence[int], answers: Sequence[Answer]) -> dict[int, str]:
    return {
        numbers[answer.position]: mark_of(answer.verdict, answer.cause.reason) for answer in answers
    }


class ChargedChunk(Charge):
    """The answers to some addresses of a chunk, each counted in the transaction that stores it.

    Entering raises a Refusal, StoreUnavailable.
    """

    def __init__(self, quota: QuotaService, caller: Caller, spending: ChunkAddresses) -> None:
        super().__init__(quota, caller, USAGE_NAME, NO_ADMISSION)
        self._claim = spending.claim
        self._numbers = list(spending.addresses)
        self._texts = list(spending.addresses.values())
        self._is_rest = spending.is_rest
        self._left = self._unread = len(spending.addresses)
        self._aside = spending.aside
        self._note = spending.note
        self._under_way = 0  # of the process's capacity
        self._parts = 0
        self._block: AbstractAsyncContextManager[Answers]
        self._answers: Answers
        self._reservation: Reservation

    async def __aenter__(self) -> "ChargedChunk":
        self._block = self._open_sandbox() if self._caller.key.is_test else self._open()
        self._answers = await self._block.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._block.__aexit__(kind, error, trace)

    async def next_answers(self) -> list[Answer]:
        """Answers of up to GATHER_S, without those of addresses set aside; none at the end."""
        found: list[Answer] = []
        while not found and self._unread:
            ready = await self._answers.next_ready()
            with trio.move_on_after(GATHER_S):
                while len(ready) < self._unread:
                    ready += await self._answers.next_ready()
            self._unread -= len(ready)
            found = [answer for answer in ready if not self._is_aside(answer)]
        return found

    def _is_aside(self, answer: Answer) -> bool:
        """Set aside what can't be answered now. A host that bans this machine is noted at once."""
        number = self._numbers[answer.position]
        if not self._aside.takes(number, answer, self._quota.now()):
            return False
        if answer.cause.blame == "us":
            self._quota.protection.note(self._caller.account.id, [answer])
        return True

    async def store(self, answers: Sequence[Answer]) -> None:
        """Store answers and count them, in one transaction. Durable on return."""
        self._left -= len(answers)
        self._release_capacity(len(answers))
        quota, now = self._quota, self._quota.now()
        if not self._caller.key.is_test:
            quota.protection.note(self._caller.account.id, answers)
        rows = [row_of(now, USAGE_NAME, answer.verdict) for answer in answers]
        chunk = ChunkPart(
            self._claim.list.id,
            self._claim.chunk.place,
            self._claim.fence,
            encode_results((self._numbers[answer.position], answer) for answer in answers),
            Counter(answer.verdict.status for answer in answers),
            ends=self._is_rest and not self._left,
            passing=sum(answer.cause.reason in PASSING for answer in answers),
            has_waited=self._claim.chunk.waits_since is not None,
            marks=marks_of(self._numbers, answers),
        )
        part = self._parts
        self._parts += 1
        await quota.background_writes.write_shielded(
            lambda: settle(
                quota, self._reservation, [] if self._caller.key.is_test else rows,
                part=part, ends=not self._left, chunk=chunk,
            )
        )  # fmt: skip
        self._note({self._numbers[answer.position]: answer.evidence for answer in answers})

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Answers]:
        quota, account, units = self._quota, self._caller.account.id, len(self._texts)
        with quota.list_capacity.requesting(account, units) as capacity:
            if not capacity.is_free:
                raise Overloaded
            self._keep(await self._reserve(units, lease_s=LEASE_S, capacity=capacity))
        quota.list_capacity.enter(units, account)
        self._under_way = units
        try:
            with quota.holding(self._reservation):
                bounced = await quota.bounced.among(self._caller, self._texts)
                async with open_answers(
                    quota.engine,
                    self._texts,
                    account=account,
                    deferred_start=True,
                    explain=True,
                    asks_hosts=self._claim.list.asks_hosts,
                    bounced=bounced,
                    patience_s=self._aside.patience.left_s(quota.now()),
                ) as answers:
                    yield answers
        finally:
            self._release_capacity(self._under_way)
            self._release_rest()

    def _release_capacity(self, addresses: int) -> None:
        """So many addresses are answered: others may begin, also of other chunks."""
        released = min(addresses, self._under_way)  # a test key's are none of its capacity
        self._under_way -= released
        self._quota.list_capacity.release(released, self._caller.account.id)

    @asynccontextmanager
    async def _open_sandbox(self) -> AsyncIterator[Answers]:
        """Count the units of the minute; the texts may ask for a refusal."""
        counted = await self._count_minute(
            len(self._texts), also=lambda ledger: refusal_for(self._texts, ledger.asked_at)
        )
        self._keep(counted)
        async with open_sandbox_answers(
            self._quota.engine.lists, self._texts, asks_hosts=self._claim.list.asks_hosts
        ) as answers:
            yield answers

    def _keep(self, reserved: Reservation | Refusal) -> None:
        """Raise a refusal; it is not logged, as the list waits."""
        if isinstance(reserved, Refusal):
            raise reserved
        self._reservation = reserved

    def _release_rest(self) -> None:
        """Give back the units of addresses without an answer."""
        if self._left:
            part, reservation, quota = self._parts, self._reservation, self._quota
            quota.background_writes.write_until_durable(
                lambda: settle(quota, reservation, [], part=part)
            )


class ChargedRecheck(Charge):
    """Another answer to addresses of a chunk. It costs no units.

    Entering raises Overloaded. Leaving stores the better answers; it raises StoreUnavailable.
    """

    def __init__(self, quota: QuotaService, caller: Caller, spending: ChunkRecheck) -> None:
        super().__init__(quota, caller, USAGE_NAME, NO_ADMISSION)
        self._claim = spending.claim
        self._numbers = list(spending.passing)
        self._texts = [text for text, _ in spending.passing.values()]
        self._before = [status for _, status in spending.passing.values()]
        self._better: list[Answer] = []
        self._note = spending.note

    async def __aenter__(self) -> "ChargedRecheck":
        if not self._caller.key.is_test:
            account, count = self._caller.account.id, len(self._texts)
            with self._quota.list_capacity.requesting(account, count) as capacity:
                if not capacity.is_free:
                    raise Overloaded
                capacity.use()
            self._quota.list_capacity.enter(count, account)
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._caller.key.is_test:
            self._quota.list_capacity.release(len(self._texts), self._caller.account.id)
        if error is None:
            await self._store()

    async def verify(self) -> None:
        """Verify all addresses again; a test key's keep their answers."""
        if self._caller.key.is_test:
            return
        patient = not self._claim.list.strict_clocks
        account = self._caller.account.id
        bounced = await self._quota.bounced.among(self._caller, self._texts)
        async with open_answers(
            self._quota.engine,
            self._texts,
            account=account,
            deferred_start=True,
            explain=True,
            patient=patient,
            bounced=bounced,
            asks_hosts=self._claim.list.asks_hosts,
            patience_s=self._claim.list.patience_s,  # no host is pressed for the sake of a pass
        ) as answers:
            async for answer in answers:
                self._quota.protection.note(account, [answer])
                if self._is_better(answer):
                    self._better.append(answer)

    def _is_better(self, answer: Answer) -> bool:
        """An accepted address stays so: only its test was to be repeated."""
        was_accepted = self._before[answer.position] == "deliverable"
        return not (answer.is_passing or (was_accepted and answer.verdict.status == "unknown"))

    async def _store(self) -> None:
        better = self._better
        counts: Counter[str] = Counter(answer.verdict.status for answer in better)
        counts.subtract(self._before[answer.position] for answer in better)
        part = ChunkPart(
            self._claim.list.id,
            self._claim.chunk.place,
            self._claim.fence,
            encode_results((self._numbers[answer.position], answer) for answer in better),
            counts,
            ends=True,
            passing=-len(better),
            marks=marks_of(self._numbers, better),
        )

        async def write() -> None:
            await self._quota.store.record_part(part)

        await self._quota.background_writes.write_shielded(write)
        self._note({self._numbers[answer.position]: answer.evidence for answer in better})
