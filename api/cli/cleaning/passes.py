"""Asks about the addresses of a list: a first time, and again after temporary failures.

The first answers come from the list's first domains. If nothing outside can be reached
they say so within seconds, not after the whole list. An early end is recorded in the
journal: the run that resumes it ends early only after twice as many failures.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, NoReturn

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mailprobe.engine.verdict import Reason

from ...errors import CommandError, print_error
from ...listfile.journal import Journal
from ...results.counts import FAILED_HOSTS_MIN, ResultCounts
from ...results.lights import ANSWERED, WORDS
from ...results.row_result import RowResult, row_result
from ...terminal import plain
from ..source import ACCOUNT, AnswerSource, PatientSource, in_request_order
from .addresses import FINAL, NOT_VERIFIED, TOGETHER_S, DistinctAddresses, first_of_domains
from .earlier_refusals import EarlierRefusals
from .early_end import FailuresInARow, is_failure
from .waiting import clock, words_of_results

if TYPE_CHECKING:  # the engine imports DNS, HTTP and SMTP
    from mailprobe.engine.stream.answers import Answer

LONG = 1_000  # addresses: before so many, the first domains are asked alone
FIRST_DOMAINS_MAX = 30
FAILURES_IN_A_ROW_MAX = 200
DOUBLINGS_MAX = 16  # of these limits, one for each earlier run that ended early
# An address waits for its mail host at least so long the first time, the second time, and so on.
WAITS_S = (60.0, 120.0, 240.0, 480.0, 960.0, 1800.0)
PATIENCE_S = 900.0  # of a list at the command line
ANSWER_RECENT_S = 3600.0  # an answer of an earlier run shows for so long that hosts are reached

NOT_ASKED: Reason = "not_asked"

# Reasons of results that may wait for their mail host.
WAITED_FOR: tuple[Reason, ...] = (
    *("host_budget", "untested", "unconfirmed", "host_changed", "blocked_us"),
)


def patience_of_clean(kept_s: float | None) -> float:
    """How long a list of the command line waits: as MAILPROBE_PATIENCE says, if it does."""
    return PATIENCE_S if kept_s is None else kept_s


# Shows progress while addresses are verified; takes the counts and the number of addresses.
ShowProgress = Callable[[ResultCounts, int], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def no_progress(counts: ResultCounts, total: int) -> AsyncIterator[None]:
    yield


class Recheck(Struct, frozen=True):
    """How often, and how long after its last answer, an address is asked about again.

    Each pass has its own wait; the last of the waits is that of all further passes.
    """

    passes: int = 2
    after_s: tuple[float, ...] = (300.0,)
    is_patient: bool = True  # slow hosts have more time then
    patience_s: float = PATIENCE_S  # after the first pass, for what mail hosts take from us

    def due_at(self, result: RowResult, patience_until: float) -> float:
        """When the address is to be asked about again, in Unix time; FINAL if never."""
        if result.retry_at:
            if max(result.retry_at, result.answered_at + TOGETHER_S) > patience_until:
                return FINAL
            # Once more when the patience ends, if not before.
            longer = result.answered_at + _least_wait_s(result)
            return min(max(result.retry_at, longer), patience_until)
        asked = result.attempts - result.waits
        if not result.is_passing or asked > self.passes:
            return FINAL
        return result.answered_at + self.after_s[min(asked, len(self.after_s)) - 1]


def _least_wait_s(result: RowResult) -> float:
    """How long its mail host is left alone at least: longer each time that it was asked in vain."""
    if not result.waits or result.reason == "host_budget":  # then it was not asked
        return 0.0
    return WAITS_S[min(result.waits, len(WAITS_S)) - 1]


NO_RECHECK = Recheck(passes=0, patience_s=0.0)


class Passes(Struct):
    """The passes over one list. `counts` has the addresses, each by its present answer.

    `write` writes the output with what is known, in a thread: before each wait.
    """

    addresses: DistinctAddresses
    journal: Journal
    recheck: Recheck = NO_RECHECK
    show: ShowProgress = no_progress
    now: Callable[[], float] = time.time
    write: Callable[[], None] | None = None
    asks_hosts: bool = True
    counts: ResultCounts = field(default_factory=ResultCounts)
    asked: int = 0  # answers in this run
    earlier: EarlierRefusals | None = None  # what mail hosts have refused to an earlier run
    is_rechecking: bool = False  # every address has an answer
    _patience_until: float = inf  # Unix time; the patience begins after the first pass
    _shown: ResultCounts | None = None  # of what is under way
    _failures: FailuresInARow = field(
        default_factory=lambda: FailuresInARow(FAILURES_IN_A_ROW_MAX, FAILED_HOSTS_MIN)
    )

    def replay(self) -> None:
        """Load the answers of an earlier run. One without mail hosts has not answered where they are asked now."""
        since = self.now() - ANSWER_RECENT_S
        reached, left_out = False, set[int]()
        self.earlier = EarlierRefusals(ACCOUNT, self.now)
        for offset, result in self.journal.answers():
            self.earlier.add(result)
            if (number := self.addresses.numbers.get(result.email)) is not None:
                if self.asks_hosts and not self.journal.asks_hosts and result.reason == NOT_ASKED:
                    left_out.add(number)
                    continue
                self._record(offset, result)
                reached = reached or (result.reason in ANSWERED and result.answered_at >= since)
        more = 2 ** min(self.journal.early_ends, DOUBLINGS_MAX)
        self._failures = FailuresInARow(
            FAILURES_IN_A_ROW_MAX * more, FAILED_HOSTS_MIN * more, reached
        )
        if self.journal.damaged:
            lines = "lines are" if self.journal.damaged > 1 else "line is"
            print_error(
                f"{self.journal.damaged:,} {lines} damaged in {self.journal.name} and ignored; "
                "their addresses are verified again"
            )
        self.journal.record_hosts_asked(self.asks_hosts)
        if again := sum(self.addresses.offsets[number] == NOT_VERIFIED for number in left_out):
            print_error(
                f"the earlier run asked no mail host; {again:,} of its answers are asked for again"
            )

    async def run(self, source: AnswerSource) -> None:
        """Ask until every address has an answer, and again after temporary failures.

        Raises CommandError where nothing but this machine or its network is to blame.
        """
        if isinstance(source, PatientSource):
            source.wait_up_to(self._patience_left_s, self._note_wait)
        unanswered = self.addresses.unanswered()
        async with self.show(self.counts, len(self.addresses.numbers)):
            if len(unanswered) >= LONG and not (self.addresses.answered or self.journal.early_ends):
                await self._probe_first_domains(source, unanswered)
                unanswered = self.addresses.unanswered()
            await self._verify(source, unanswered, self.counts)
        if self.addresses.answered < len(self.addresses.numbers):
            raise CommandError("the answers ended early")
        self.is_rechecking = True
        self._patience_until = self.now() + self.recheck.patience_s
        self._drop_late()
        while again := self.addresses.next_pass():
            if self.write is not None:
                await trio.to_thread.run_sync(self.write)
            await self._wait_until_due(again)
            known = ResultCounts()
            async with self.show(known, len(again)):
                await self._verify(source, again, known, patient=self.recheck.is_patient)
            cured = known.done - known.statuses["unknown"]
            print_error(f"asked again: {cured:,} of {len(again):,} are known now")

    def _patience_left_s(self) -> float:
        return min(self.recheck.patience_s, max(0.0, self._patience_until - self.now()))

    def _note_wait(self, goes_on_at: datetime | None) -> None:
        if self._shown is not None:
            self._shown.note_wait(goes_on_at)

    def _drop_late(self) -> None:
        """Of what waits for its mail host, some would wait for longer than the patience."""
        for address in self.addresses.passing():
            offset = self.addresses.offset(address)
            if offset is not None:
                self._record(offset, self.journal.answer(offset))

    async def _probe_first_domains(self, source: AnswerSource, unanswered: list[str]) -> None:
        first = first_of_domains(unanswered, FIRST_DOMAINS_MAX)
        await self._verify(source, first, self.counts)
        if any(self.counts.reasons[key] for key in ANSWERED):
            return
        results = [self.journal.answer(offset) for offset in self.addresses.offsets if offset >= 0]
        failed = [result for result in results if is_failure(result, reached=False)]
        if len({result.host for result in failed}) >= FAILED_HOSTS_MIN:
            reasons = Counter(result.reason for result in failed)
            self._stop(0, f"none of the list's first {len(first)} domains could be asked", reasons)

    async def _verify(
        self, source: AnswerSource, texts: list[str], shown: ResultCounts, *, patient: bool = False
    ) -> None:
        if not texts:
            return
        self._shown = shown
        async with source.open_answers(in_request_order(texts), patient=patient) as answers:
            async for answer in answers:
                email = answer.verdict.email
                # The source's mistake: asking again does not help.
                if email not in self.addresses.numbers:
                    raise CommandError(
                        f"received an answer about {plain(email[:100])}, which was not requested"
                    )
                earlier = self.addresses.offset(email)
                before = None if earlier is None else self.journal.answer(earlier)
                result = _result_after(before, answer, self.now())
                self.asked += 1
                offset = self.journal.append(result)
                self._record(offset, result)
                if shown is not self.counts:
                    shown.count(result)
                elif not self.is_rechecking:
                    self._watch(offset, result)

    def _record(self, offset: int, result: RowResult) -> None:
        email = result.email
        earlier = self.addresses.offset(email)
        if earlier is not None:
            self.counts.count(self.journal.answer(earlier), -1)
        due_at = self._due_at(result)
        waits = result.retry_at > 0
        asked = result.attempts - result.waits
        self.addresses.record(email, offset, due_at, asked, waits=waits)
        self.counts.count(result)

    def _due_at(self, result: RowResult) -> float:
        ahead_s = result.answered_at - self.now()
        if ahead_s > 0:  # the clock was set back since: an earlier run may have had a wrong one
            retry_at = result.retry_at and result.retry_at - ahead_s
            result = replace(result, answered_at=result.answered_at - ahead_s, retry_at=retry_at)
        return self.recheck.due_at(result, self._patience_until)

    def _watch(self, offset: int, result: RowResult) -> None:
        """Stop after too many failures in a row, unless that would lose answers."""
        failures = self._failures
        failures.add(offset, result)
        if failures.are_enough and (self.journal.is_kept or not failures.reached):
            words = "results in a row failed because of this machine or its network"
            self._stop(failures.since, f"{failures.results:,} {words}", failures.reasons)

    def _stop(self, since: int, what: str, reasons: Mapping[Reason, int]) -> NoReturn:
        """Forget what failed, so that --resume asks about it again."""
        self.journal.cut(since)
        self.journal.record_early_end()
        self.addresses.forget(since)
        often = max(reasons, key=lambda key: reasons[key])
        raise CommandError(f"{what} (most often: {WORDS[often]}); run mailprobe doctor to see why")

    async def _wait_until_due(self, again: list[str]) -> None:
        last_s, number = self.addresses.last_due_at(again), len(again)
        wait_s = last_s - self.now()
        if wait_s <= 0:
            return
        results = self._answers(again)
        until = f"{datetime.fromtimestamp(last_s).astimezone():%H:%M:%S}"
        if all(result.retry_at for result in results):
            waiting = self._answers(self.addresses.waiting())
            total = len(self.addresses.numbers)
            print_error(
                f"{words_of_results(waiting, total, self.counts.refused_share)}; "
                f"waiting until {until}, at most until "
                f"{clock(self._patience_until)}; Ctrl-C ends with what is known"
            )
        else:
            noun = "address" if number == 1 else "addresses"
            reasons = Counter(result.reason for result in results)
            parts = [f"{count:,} {WORDS[key]}" for key, count in reasons.most_common()]
            print_error(
                f"waiting until {until} to ask about {number:,} {noun} again "
                f"({', '.join(parts)}); Ctrl-C ends with what is known"
            )
        await trio.sleep(wait_s)

    def _answers(self, addresses: Iterable[str]) -> list[RowResult]:
        offsets = (self.addresses.offset(address) for address in addresses)
        return [self.journal.answer(offset) for offset in offsets if offset is not None]

    def left_waiting(self) -> list[RowResult]:
        """The answers to addresses whose mail host takes more only after the patience."""
        counted = self.counts.reasons
        if not any(counted[reason] for reason in WAITED_FOR):
            return []
        found = self._answers(self.addresses.numbers)
        return [result for result in found if result.retry_at]


def _result_after(before: RowResult | None, answer: "Answer", now: float) -> RowResult:
    """The result of an answer about an address that had this one before."""
    attempts, waits = (0, 0) if before is None else (before.attempts, before.waits)
    is_counted = attempts == 0 or answer.cause.reason != "host_budget"
    attempts += is_counted
    waits += is_counted and answer.retry_s is not None
    result = replace(row_result(answer, attempts, now), waits=waits)
    if before is None or not before.valid:
        return result
    if result.status != "unknown" or result.reason == "host_changed":
        return result
    # It was accepted before; only the test of its domain was repeated. A host that
    # has changed says nothing of what it accepted before, either.
    kept = replace(before, attempts=attempts, waits=waits, answered_at=now)
    return replace(kept, retry_at=result.retry_at, takes=result.takes)
