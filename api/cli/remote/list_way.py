"""A list at the service: a long list is sent whole, and fetched as it is answered.

The service keeps its own pace, and no request of ours has to be repeated. A run that ends early
pauses its list and keeps it, if it keeps a record of what it sends: the next one finds the list there and goes
on with it. Otherwise, and once all is answered, the list is deleted. A list waits at the
service until it is recorded, so that none runs that no later run knows of.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from math import inf

import httpx
import msgspec
import trio

from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import Blame, Reason, Verdict

from ...cells.unwrapping import read_cell
from ...errors import CommandError, print_error
from ...listfile.journal import SentList
from ...results.waiting import HostStanding, waiting_words
from ...settings import PATIENCE_S_MAX
from ..cleaning.waiting import clock
from ..source import NoteWait, SentRecord
from .http_responses import ANSWER_S, error_of, read_lines, reason_of, retry_after_s
from .result_lines import verdict_of
from .runs import (
    CUSHION_S,
    LIMITED_TIMEOUT_S,
    PASSING,
    RETRY_AFTER_S_MAX,
    LimitNotice,
    ServiceFailures,
    running,
)
from .service import RemoteService
from .stream_way import StreamRun

LISTS = "/v1/lists"
LONG = 1_000  # addresses: a longer list is sent whole
NAME = "mailprobe clean"
UNDER_WAY = ("reading", "loading", "running")  # "loading": of an older service
MONTH_IS_OVER = "monthly_quota_exceeded"  # a wait does not help
POLL_S = 2.0
FETCH_SHARE = 0.1  # of the list: results are fetched whenever so many more are answered
LIMIT_PAUSE_S = 5.0  # after a refusal that does not say how long
WAIT_PRINTED_S = 600.0  # so often it is said what the list waits for
DELETE_S = 5.0

_encode = msgspec.json.Encoder().encode_lines


class HostAtService(msgspec.Struct):
    """Addresses that wait for a mail host at the service."""

    host: str
    addresses: int
    refusals_in_10_min: int
    reason: str
    until: datetime


class WaitAtService(msgspec.Struct):
    cause: str
    addresses: int
    hosts_count: int = 0
    hosts: list[HostAtService] = []


class ListState(msgspec.Struct):
    list_id: str
    status: str
    addresses: int
    answered: int
    cause: str | None = None
    waits_until: datetime | None = None  # nothing is asked before
    counts: dict[str, int] = {}
    # A service of an earlier version has a text there, or nothing.
    waits_for: list[WaitAtService] | str | None = None

    def host_words(self) -> str:
        """How many addresses wait at which mail hosts; nothing if none does."""
        waits = self.waits_for if isinstance(self.waits_for, list) else []
        share = self.counts.get("undeliverable", 0) / self.answered if self.answered else 0.0
        for wait in waits:
            if wait.cause == "hosts":
                hosts = [
                    HostStanding(
                        each.host, each.reason, each.refusals_in_10_min, each.addresses, each.until
                    )
                    for each in wait.hosts
                ]
                return waiting_words(
                    wait.addresses,
                    self.addresses,
                    wait.hosts_count,
                    hosts,
                    clock=clock,
                    share=share,
                )
        return ""

    @property
    def goes_on_at(self) -> datetime | None:
        """When the first of what is left is asked, if all of it waits for its mail hosts."""
        return self.waits_until if self.host_words() else None


class _RowStart(msgspec.Struct):
    """Of a row of the results: null where there is none yet, and so is all else then."""

    mailprobe_email: str | None


class _Row(Verdict, frozen=True):
    """A row with its result."""

    email: str = msgspec.field(name="mailprobe_email")
    reason: Reason
    blame: Blame | None

    def answer(self, position: int) -> Answer:
        cause = VerdictCause(self.reason, self.blame)
        return Answer(position, verdict_of(self), known_cause=cause)


class ServiceLists(msgspec.Struct, frozen=True):
    """The lists of a service, those of earlier runs that `record` has included."""

    service: RemoteService
    record: SentRecord | None
    patience_left_s: Callable[[], float] | None

    @property
    def url(self) -> str:
        return self.service.url + LISTS

    async def find_or_send(self, texts: Sequence[str]) -> str | None:
        """The list of an earlier run, else a new one of these texts; None if they go another way.

        They do if they are few, and if the service takes no lists, or not this one.
        """
        list_id = await self._kept_list()
        # A list's reader would read some texts in another way, such as two addresses.
        is_list = len(texts) >= LONG and all(read_cell(text).addresses == (text,) for text in texts)
        if list_id is None and is_list:
            list_id = await self._sent(texts)
        return list_id

    async def _kept_list(self) -> str | None:
        """The list of an earlier run, if the service still has it."""
        lists = [] if self.record is None else self.record.sent
        for sent in [each for each in lists if isinstance(each, SentList)]:
            if sent.smtp != self.service.asks_hosts:
                continue  # that run was told otherwise
            if await self._exists(sent.list):
                return sent.list
            self.forget(sent.list)
        return None

    async def _exists(self, list_id: str) -> bool:
        """Whether the service has it; a service that does not say may have it."""
        try:
            return (await self.service.client.get(f"{self.url}/{list_id}")).status_code != 404
        except httpx.RequestError:
            return True

    def forget(self, list_id: str) -> None:
        """Record that no later run needs this list."""
        if self.record is not None:
            self.record.sent[:] = [
                each
                for each in self.record.sent
                if not isinstance(each, SentList) or each.list != list_id
            ]
            self.record.record_sent(SentList(list_id, done=True))

    async def _sent(self, texts: Sequence[str]) -> str | None:
        """Send the list; None if the service takes no lists, or not this one."""
        asks_hosts = self.service.asks_hosts
        url = f"{self.url}?name={NAME}&column=email&start=0" + ("" if asks_hosts else "&smtp=0")
        if self.patience_left_s is not None:
            url += f"&patience_s={round(min(self.patience_left_s(), PATIENCE_S_MAX))}"
        headers = {"Content-Type": "application/x-ndjson"}
        content = _encode([{"email": text} for text in texts])
        waits = _Waits()
        while True:
            try:
                response = await self.service.client.post(url, content=content, headers=headers)
            except httpx.RequestError:
                return None  # the stream says what is wrong, or it was for a moment
            if not await waits.for_limit(response):
                break
        if response.status_code != 202:
            return None
        try:
            state = msgspec.json.decode(response.content, type=ListState)
        except msgspec.DecodeError:
            return None
        if self.record is not None:
            self.record.record_sent(SentList(state.list_id, smtp=asks_hosts))
        print_error(f"the service verifies the list ({state.addresses:,} addresses)")
        return state.list_id


class _Waits:
    """Waits for the rate limit of the account, which others may use as well."""

    def __init__(self) -> None:
        self._notice = LimitNotice()
        self._since: float | None = None

    async def for_limit(self, response: httpx.Response) -> bool:
        """Wait if the response refuses for the limit of the minute; False if it does not.

        False as well once that lasts too long.
        """
        if response.status_code != 429 or error_of(response.content).error == MONTH_IS_OVER:
            self._since = None
            return False
        now = trio.current_time()
        self._since = now if self._since is None else self._since
        if now - self._since >= LIMITED_TIMEOUT_S:
            return False
        wait_s = retry_after_s(response)
        wait_s = min(LIMIT_PAUSE_S if wait_s is None else wait_s, RETRY_AFTER_S_MAX) + CUSHION_S
        self._notice.print_once(wait_s)
        await trio.sleep(wait_s)
        return True


class ListRun(msgspec.Struct):
    """See ServiceRun."""

    lists: ServiceLists
    list_id: str
    texts: Sequence[str]
    send: trio.MemorySendChannel[Answer]
    note_wait: NoteWait
    error: CommandError | None = None
    is_complete: bool = False  # the list has no answer that is not known here
    _waits: _Waits = msgspec.field(default_factory=_Waits)
    _is_started: bool = False
    _wait_printed_at: float = -inf
    _positions: dict[str, list[int]] = msgspec.field(default_factory=dict)  # without an answer
    _fetched: int = 0
    _failures: ServiceFailures = msgspec.field(
        default_factory=partial(ServiceFailures, has_responded=True)
    )

    @property
    def url(self) -> str:
        return f"{self.lists.url}/{self.list_id}"

    @property
    def client(self) -> httpx.AsyncClient:
        return self.lists.service.client

    async def run(self) -> None:
        for position, text in enumerate(self.texts):
            self._positions.setdefault(text, []).append(position)
        async with self.send:
            while self._positions and self.error is None and not self.is_complete:
                try:
                    if not self._is_started:
                        self._is_started = await self._start()
                        continue
                    await trio.sleep(POLL_S)
                    await self._poll()
                except httpx.RequestError as error:
                    await self._failed(f"cannot be reached ({reason_of(error)})")
            if self._positions and self.error is None:
                self.note_wait(None)
                await self._verify_others()

    async def _verify_others(self) -> None:
        """Ask about what the list does not have: an earlier run sent it for fewer addresses."""
        texts = list(self._positions)
        send, receive = trio.open_memory_channel[Answer](inf)
        run = StreamRun(self.lists.service, texts, send, self.lists.record)
        try:
            async with running(run, receive):
                async for answer in receive:
                    for position in self._positions.pop(texts[answer.position], ()):
                        self.send.send_nowait(msgspec.structs.replace(answer, position=position))
        except CommandError as error:
            self.error = error

    async def _start(self) -> bool:
        """Have the service verify the list. False if it is to be tried again."""
        response = await self.client.post(f"{self.url}/resume")
        if response.status_code == 404:  # it is over and deleted: all is asked anew
            self.is_complete = True
            return False
        return await self._is_good(response)

    async def _is_good(self, response: httpx.Response) -> bool:
        """Whether it is a 200; wait for what passes, and stop at what does not."""
        if response.status_code == 200:
            self._failures.clear()
            return True
        if await self._waits.for_limit(response):
            return False
        if response.status_code in PASSING:
            await self._failed(f"is unavailable ({response.status_code})")
        else:
            refused = error_of(response.content)
            self._stop(f"the service answers {response.status_code} {refused.error}")
        return False

    async def _poll(self) -> None:
        response = await self.client.get(self.url)
        if not await self._is_good(response):
            return
        state = msgspec.json.decode(response.content, type=ListState)
        self._print_wait(state)
        self.note_wait(state.goes_on_at)
        has_ended = state.status not in UNDER_WAY
        if has_ended or state.answered - self._fetched >= FETCH_SHARE * state.addresses:
            await self._fetch(state)
        if self.error is not None or self._fetched < state.answered:
            return
        if state.status == "done" or state.answered == state.addresses:
            self.is_complete = True
        elif state.status == "paused":
            self._stop(f"the service has paused the list: {state.cause or 'by request'}")
        elif has_ended and self._positions:
            self._stop(f"the service has ended the list: it is {state.status}")

    def _print_wait(self, state: ListState) -> None:
        """Say now and then what waits at the service for its mail hosts."""
        now, words = trio.current_time(), state.host_words()
        if words and now >= self._wait_printed_at + WAIT_PRINTED_S:
            self._wait_printed_at = now
            print_error(f"{words}; the service goes on by itself")

    async def _fetch(self, state: ListState) -> None:
        async with self.client.stream("GET", f"{self.url}/results") as response:
            if response.status_code != 200:
                await response.aread()
                await self._is_good(response)
                return
            with trio.CancelScope() as reading:  # a cancel ends the response well
                async for line in read_lines(response):
                    reading.deadline = trio.current_time() + ANSWER_S
                    try:
                        self._receive(line)
                    except (msgspec.DecodeError, UnicodeDecodeError):
                        what = "is not a result of a mailprobe service"
                        self._stop(f"the answer of {self.url} {what}")
                        reading.cancel()
            if reading.cancelled_caught:
                return
        self._fetched = state.answered

    def _receive(self, line: bytes) -> None:
        if msgspec.json.decode(line, type=_RowStart).mailprobe_email is not None:
            row = msgspec.json.decode(line, type=_Row)
            for position in self._positions.pop(row.email, ()):
                self.send.send_nowait(row.answer(position))

    async def _failed(self, what: str) -> None:
        if self._failures.last_too_long():
            self._stop(f"the service at {self.url} {what}")
        else:
            await trio.sleep(self._failures.next_pause_s())

    def _stop(self, line: str) -> None:
        self.error = self.error or CommandError(line)

    async def close(self, *, is_read: bool) -> None:
        """See ServiceRun. A list that a later run may need is paused, any other is deleted."""
        self.note_wait(None)
        is_done = is_read and self.is_complete
        with trio.move_on_after(DELETE_S, shield=True):
            if is_done or self.lists.record is None:
                await self._delete()
            else:
                await self._pause()
        if is_done:
            self.lists.forget(self.list_id)

    async def _pause(self) -> None:
        """Have nothing more asked until a later run goes on."""
        with suppress(httpx.RequestError):
            await self.client.post(f"{self.url}/pause")

    async def _delete(self) -> None:
        """Delete the list at the service; what is under way is not asked any more."""
        try:
            await self.client.delete(self.url)
        except httpx.RequestError:
            print_error("the list could not be deleted at the service")
