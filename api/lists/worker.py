"""Verifies lists: claims their chunks, and finishes a list when all are answered.

Every process takes chunks by lease, so the machines of one database share a list. The
limits of the key pace it: a chunk waits while they refuse it for a while, and what they
refuse for good pauses the list with the error's code.
"""

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

import msgspec
import trio

from mailprobe.engine import paused_among
from mailprobe.engine.background import running_loops
from mailprobe.storage.base.lease_holders import new_holder
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_records import ListChunk, ListClaim, ListShare, StoredList

from ..alerts.list_mail import DoneList
from ..error_table import row_of
from ..jobs.worker import RECHECK_S
from ..observability.spans import start_span
from ..outbox.worker import AttemptResult, Batch, Pace, Worker, WorkQueue, open_workers
from ..quota.charge import charge
from ..quota.list_charge import (
    ChunkAddresses,
    ChunkRecheck,
    Note,
    store_callback,
    units_for_list,
)
from ..quota.list_limits import CHUNKS_AT_ONCE
from ..quota.pauses import PAUSED_CODE
from ..quota.self_protection import PROBE_EVERY_S
from ..quota.service import QuotaService
from ..quota.set_aside import PAUSED_S, ReturnTurns, SetAside, patience_of
from ..refusals import NeverFits, Overloaded, ProbingUnavailable, RateLimited, Refusal
from ..results.advice import ANSWERS
from ..results.chunk_lines import addresses_of, passing_of
from .callbacks import callback_of
from .conversations import ConversationLog
from .lease_extension import SHARED_S, LeaseExtension
from .shares import ClaimSize, WaitingAccounts, claim_room, last_in_turn
from .table import read_marks

log = logging.getLogger("mailprobe.lists")

LEASE_S = 15.0  # after a crash, another process may claim the chunk
EXTEND_EVERY_S = 4.0
POLL_S = 5.0
CLAIM_EVERY_S = 0.1  # places that are free by then are filled by one claim
PAUSE_S = 1.0  # while the store is unavailable
DRAIN_S = 4.0
MINUTE_CODE = "rate_limit_exceeded"  # what a request would be refused with
OVERLOADED_S = 1.0  # until a chunk that found no capacity tries again
WAIT_S_MIN, WAIT_S_MAX = 1.0, 60.0  # for units of the key's minute

SHORT_CHARACTERS = 32 * 1024  # of a chunk, decoded in half a millisecond; most have some 10,000

T = TypeVar("T")


async def decoded(decode: Callable[[ListChunk], T], chunk: ListChunk) -> T:
    """Decode a chunk; a long one in a thread, where it delays no other request."""
    if len(chunk.rows) + len(chunk.results) <= SHORT_CHARACTERS:
        return decode(chunk)
    return await trio.to_thread.run_sync(decode, chunk)


class ListQueue:
    """Verifies lists; made by `open_lists()`."""

    def __init__(
        self,
        quota: QuotaService,
        *,
        rng: random.Random,
        wake_jobs: Callable[[], None],
        chunks_at_once: int,
    ) -> None:
        self._store = quota.store
        self._quota = quota
        self._now = quota.now
        self._wake_jobs = wake_jobs
        self._places = chunks_at_once
        self._holder = new_holder()  # of the chunks' claims
        self._claim_size = ClaimSize()
        self._waiting = WaitingAccounts()
        self._turns = ReturnTurns()
        self.conversations = ConversationLog(self._store)
        self._after = ""  # the account whose turn was last
        self._extension = LeaseExtension(
            partial(self._store.extend_chunks, lease_s=LEASE_S), lambda: self.worker.held()
        )
        pace = Pace(
            chunks_at_once, lease_s=LEASE_S - SHARED_S, extend_every_s=EXTEND_EVERY_S, poll_s=POLL_S,
            store_pause_s=PAUSE_S, drain_s=DRAIN_S, claim_every_s=CLAIM_EVERY_S,
        )  # fmt: skip
        queue = WorkQueue(
            "chunks of lists",
            pace,
            claim=self._claim,
            extend=self._extension.extend,
            attempt=self._work,
            name_of=lambda claim: claim.name,
            logs_ended=True,
        )
        self.worker: Worker[ListClaim] = Worker(queue, chance=rng.random)

    def wake(self) -> None:
        """A list was stored or resumed."""
        self.worker.wake()

    def stop(self) -> None:
        """Claim no more chunks, and finish those in progress within DRAIN_S."""
        self.worker.stop()

    async def _claim(self, _: int) -> list[ListClaim]:
        protection = self._quota.protection
        # Chunks that would only wait here for capacity are left to other processes.
        most = self._claim_size.fitting(self._quota.list_capacity.free)
        if self._quota.pauses.drained:
            return []
        if protection.blind:  # one, of which an address is asked
            if not protection.lets_pass("list"):
                return []
            most = min(most, 1)
        if most <= 0:
            return []
        held = Counter(claim.list.account_id for claim in self.worker.held())
        room = claim_room(held, self._waiting.accounts(), self._places, claimed_max=most)
        none = {account: ListShare(held[account], 0) for account in self._quota.pauses.accounts}
        try:
            claims = await self._store.claim_chunks(
                limit=room.limit,
                lease_s=LEASE_S,
                each_max=room.each_max,
                shares={**room.shares, **none},
                after=self._after,
                holder=self._holder,
            )
        except StoreUnavailable:
            self._claim_size.failed()
            raise
        self._claim_size.succeeded([claim.chunk.units for claim in claims])
        self._after = last_in_turn(
            held, [claim.list.account_id for claim in claims], after=self._after
        )
        if claims and len(claims) == room.limit:  # there may be more
            self.worker.wake()
        return claims

    async def _work(self, claim: ListClaim, _: Batch[ListClaim]) -> AttemptResult:
        """Verify a chunk, or finish its list; while this process is blind, one address of it.

        Then other processes, which may see mail hosts, can claim it.
        """
        if claim.is_last:
            return AttemptResult(partial(self.finish, claim))
        protection = self._quota.protection
        if claim.caller.key.is_test or not claim.list.asks_hosts:
            return await self._verify_chunk(claim)
        if not protection.blind:
            with protection.seeing():
                return await self._verify_chunk(claim)
        elif await self._try_one(claim):
            return AttemptResult(self._nothing)
        until = self._now() + timedelta(seconds=2 * PROBE_EVERY_S)  # it is claimed again before
        await self._store.note_wait(claim.list.id, until, row_of(ProbingUnavailable()).code)
        return AttemptResult(partial(self._store.release_chunk, claim, self._now()))

    async def _try_one(self, claim: ListClaim) -> bool:
        """Verify the first address, so that its answer shows whether mail hosts answer.

        True if it was the last one without a result.
        """
        addresses = await decoded(addresses_of, claim.chunk)
        aside = SetAside(patience_of(claim, self._now()))
        aside.pause(await self._set_paused_aside(claim, addresses))
        if not addresses or claim.list.account_id in self._quota.pauses.accounts:
            return False
        first = next(iter(addresses))
        aside.pause(addresses.keys() - {first})
        tried = {first: addresses[first]}
        with suppress(Refusal):
            await self._verify(claim, tried, aside)
        return not tried and not aside

    async def _verify_chunk(self, claim: ListClaim) -> AttemptResult:
        """Verify a chunk, as a span of its own trace: a request's list may have 100,000 chunks."""
        noted: dict[str, str | int] = {
            "mailprobe.list.id": claim.list.id,
            "mailprobe.chunk": claim.chunk.place,
            "mailprobe.addresses": claim.chunk.units,
        }
        with start_span("verify chunk", "consumer", claim.list.trace or "", noted, linked=True):
            return await self._work_off(claim)

    async def _work_off(self, claim: ListClaim) -> AttemptResult:
        """Verify a chunk. Keep its claim while it waits for the key's rate limit, so that no other
        chunk of the key is claimed.
        """
        addresses = await decoded(addresses_of, claim.chunk)
        if not addresses:
            return await self._recheck(claim)
        aside = SetAside(patience_of(claim, self._now()))
        aside.hold_back(claim, addresses, self._now())
        aside.pause(await self._set_paused_aside(claim, addresses))
        if aside.paused and not addresses:
            await self._note_pause(claim)
        while addresses:
            if claim.list.account_id in self._quota.pauses.accounts:
                return self._release_paused(claim)
            try:
                wait_s = await self._verify(claim, addresses, aside)
            except Refusal as refusal:
                refused_s = self._wait_s(refusal)
                if refused_s is None:
                    code = row_of(refusal).code
                    log.info("list paused: list=%s code=%s", claim.list.id, code)
                    return AttemptResult(partial(self._pause, claim, code))
                wait_s = refused_s
            if addresses:
                await self._wait(claim, wait_s)
        if aside:
            return self._put_off(claim, aside)
        return AttemptResult(self._nothing)

    def _put_off(self, claim: ListClaim, aside: SetAside) -> AttemptResult:
        """Release the chunk until what was set aside may be asked."""
        now = self._now()
        due_at = self._turns.reserve(claim.list.account_id, aside.due_at(now), now)
        return AttemptResult(
            partial(self._store.release_chunk, claim, due_at, waits=aside.host_waits())
        )

    async def _note_pause(self, claim: ListClaim) -> None:
        """Nothing of the chunk may be asked now, because of a pause."""
        until = self._now() + timedelta(seconds=2 * PAUSED_S)  # it is claimed again before
        await self._store.note_wait(claim.list.id, until, PAUSED_CODE)

    def _release_paused(self, claim: ListClaim) -> AttemptResult:
        due_at = self._now() + timedelta(seconds=PAUSED_S)
        return AttemptResult(partial(self._store.release_chunk, claim, due_at))

    async def _set_paused_aside(self, claim: ListClaim, addresses: dict[int, str]) -> set[int]:
        """Take out the addresses that wait for the end of a pause; return their numbers."""
        if claim.caller.key.is_test or not claim.list.asks_hosts:
            return set()
        numbers, texts = list(addresses), list(addresses.values())
        engine, account = self._quota.engine, claim.list.account_id
        if not engine.pauses.value:
            return set()
        bounced = await self._quota.bounced.among(claim.caller, texts)
        places = await paused_among(engine, texts, account=account, bounced=bounced)
        paused = {numbers[place] for place in places}
        for number in paused:
            del addresses[number]
        return paused

    async def _wait(self, claim: ListClaim, wait_s: float) -> None:
        """Wait for units of the minute. Longer waits are kept, so that pages can say so."""
        if wait_s > WAIT_S_MIN:
            until = self._now() + timedelta(seconds=wait_s)
            await self._store.note_wait(claim.list.id, until, MINUTE_CODE)
        await self._sleep(claim, wait_s)

    async def _sleep(self, claim: ListClaim, wait_s: float) -> None:
        """Let a chunk wait; meanwhile its account gets no more than its floor."""
        with self._waiting.waits(claim.list.account_id):
            await trio.sleep(wait_s)

    async def _recheck(self, claim: ListClaim) -> AttemptResult:
        """Verify again what time may have cured. The units were counted the first time.

        A pass waits for the end of a pause: it would be used up, and no mail host asked.
        """
        passing = await decoded(passing_of, claim.chunk)
        texts = {number: text for number, (text, _) in passing.items()}
        if await self._set_paused_aside(claim, texts):
            await self._note_pause(claim)
            return self._release_paused(claim)
        spending = ChunkRecheck(claim, passing, self._note_of(claim))
        while True:
            try:
                async with charge(self._quota, claim.caller, spending) as charged:
                    await charged.verify()
            except Overloaded:
                await self._sleep(claim, OVERLOADED_S)
            else:
                return AttemptResult(self._nothing)

    async def _nothing(self) -> None:
        """The chunk's last results have ended its claim."""
        self.worker.wake()

    async def _verify(self, claim: ListClaim, addresses: dict[int, str], aside: SetAside) -> float:
        """Verify what the limits allow, and take it out; return how long to wait with the rest.

        What cannot be answered now is set aside. Raises Refusal, StoreUnavailable.
        """
        self._check_capacity(claim, len(addresses))
        limits = await self._quota.limits_of(claim.caller)
        units = len(addresses) if limits is None else units_for_list(limits)
        if limits is not None and limits.month is not None:
            units = min(units, max(1, limits.month_left))  # its refusal says why
        if units <= 0:
            assert limits is not None
            return min(max(float(limits.minute_more_s), WAIT_S_MIN), WAIT_S_MAX)
        taken = dict(list(addresses.items())[:units])
        is_rest = len(taken) == len(addresses) and not aside
        spending = ChunkAddresses(claim, taken, is_rest, aside, self._note_of(claim))
        async with charge(self._quota, claim.caller, spending) as charged:
            while answers := await charged.next_answers():
                await charged.store(answers)
        for number in taken:
            del addresses[number]
        return WAIT_S_MIN

    def _note_of(self, claim: ListClaim) -> Note:
        return partial(self.conversations.note, claim.list.id, claim.chunk.place)

    def _check_capacity(self, claim: ListClaim, units: int) -> None:
        """Raise Overloaded at once: chunks that wait for capacity must not burden the store."""
        capacity, account = self._quota.list_capacity, claim.list.account_id
        if not claim.caller.key.is_test and not capacity.fits(account, units):
            raise Overloaded

    @staticmethod
    def _wait_s(refusal: Refusal) -> float | None:
        """How long to wait after a refusal; None if waiting does not help."""
        match refusal:
            case NeverFits():
                return WAIT_S_MIN
            case RateLimited():
                wait_s = (refusal.reset_at - refusal.asked_at).total_seconds()
                return min(max(wait_s, WAIT_S_MIN), WAIT_S_MAX)
            case Overloaded():
                return OVERLOADED_S
        return None

    async def _pause(self, claim: ListClaim, code: str) -> None:
        await self._store.change_list(claim.list.id, "paused", before=["running"], cause=code)
        await self._store.release_chunk(claim, self._now())

    async def finish(self, claim: ListClaim) -> None:
        """Begin another pass; else store the callback and the mail, then end the list.

        A repetition finds both there. A claim that has ended does nothing, for instance
        after this process stood still: another one may have begun the pass, and the list goes on.
        """
        found = await self._store.stored_list(claim.list.id)
        if found is None or found.state != "running":
            return
        pause_s = RECHECK_S[-found.rechecks]
        begun = await self._store.begin_pass(claim, self._now() + timedelta(seconds=pause_s))
        if begun is None:
            return
        if begun:
            log.info("list rechecked: list=%s starts_in_s=%g", found.id, pause_s)
            return
        order = callback_of(found, claim.secret, self._now())
        if order is not None:
            await store_callback(self._quota, claim, order)
            self._wake_jobs()
        if found.mails:
            await self._mail(found)
        await self._store.change_list(found.id, "done", before=["running"])

    async def _mail(self, found: StoredList) -> None:
        """Store the mail that the list is done; a repetition changes nothing."""
        counts = Counter[str]()
        for kind, number in (await read_marks(self._store, found)).counts.items():
            counts[ANSWERS[kind.light].kind] += number
        done = DoneList(
            found.id, found.name, found.addresses, counts["keep"], counts["confirm"],
            counts["drop"], self._now(),
        )  # fmt: skip
        await self._store.enqueue_message(
            "alert", found.account_id, done.message_name, msgspec.json.encode(done),
            due_at=self._now(),
        )  # fmt: skip


@asynccontextmanager
async def open_lists(
    quota: QuotaService,
    *,
    rng: random.Random,
    wake_jobs: Callable[[], None],
    chunks_at_once: int = CHUNKS_AT_ONCE,
) -> AsyncIterator[ListQueue]:
    """Verify lists for the duration of the block; leaving it waits up to DRAIN_S for chunks."""
    queue = ListQueue(quota, rng=rng, wake_jobs=wake_jobs, chunks_at_once=chunks_at_once)
    async with running_loops(queue.conversations.write), open_workers(queue.worker):
        yield queue
