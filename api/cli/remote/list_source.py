"""A service's lists as a source: a long list is sent whole, and fetched as it is answered.

The service keeps its own pace, and no request of ours has to be repeated. Short lists, and
services that take none, are verified by `HttpSource`. Whatever ends the run, the list is
deleted: it holds nothing that the journal has not.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import msgspec
import trio

from mailprobe.api.cli.errors import CommandError, print_error
from mailprobe.api.cli.listfile.columns import address_in
from mailprobe.api.cli.remote.http_responses import (
    ANSWER_S,
    error_of,
    read_error_body,
    read_lines,
)
from mailprobe.api.cli.remote.http_source import PASSING, TIMEOUT_S, HttpSource
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import Blame, FailedCheck, Reason, Status, Verdict

LISTS = "/v1/lists"
LONG = 1_000  # addresses: a longer list is sent whole
NAME = "mailprobe clean"
POLL_S = 2.0
FETCH_SHARE = 0.1  # of the list: results are fetched whenever so many more are answered
PAUSE_S = 5.0  # after a failure
DELETE_S = 5.0
UNREAD_MAX = 1 << 30  # fewer than the texts, which the reader holds

_encode = msgspec.json.Encoder().encode_lines


class _State(msgspec.Struct):
    list_id: str
    status: str
    addresses: int
    answered: int
    cause: str | None = None


class _Row(msgspec.Struct):
    """A row of the results; all is null where there is none yet."""

    mailprobe_email: str | None
    valid: bool | None
    status: Status | None
    confidence: float | None
    failed_check: FailedCheck | None
    disposable: bool | None
    role: bool | None
    free_provider: bool | None
    catch_all: bool | None
    smtp_blocked: bool | None
    mx_found: bool | None
    mx_host: str | None
    suggestion: str | None
    latency_ms: int | None
    reason: Reason | None
    blame: Blame | None

    def answer(self, position: int) -> Answer:
        *fields, reason, blame = msgspec.structs.astuple(self)
        cause = None if reason is None else VerdictCause(reason, blame)
        return Answer(position, Verdict(*fields), known_cause=cause)


class RemoteLists:
    """An AnswerSource over both ways."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, stream: HttpSource) -> None:
        self._client = client
        self._url = base_url + LISTS
        self._stream = stream

    @asynccontextmanager
    async def open_answers(
        self, texts: Sequence[str], *, explain: bool = False
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Answer]]:
        """See AnswerSource. `explain` is ignored: lists have no evidence."""
        # A list's reader would read some texts in another way, such as two addresses.
        is_list = len(texts) >= LONG and all(address_in(text) == text for text in texts)
        list_id = await self._sent(texts) if is_list else None
        if list_id is None:
            async with self._stream.open_answers(texts, explain=explain) as answers:
                yield answers
            return
        send, receive = trio.open_memory_channel[Answer](UNREAD_MAX)
        run = _ListRun(self._client, f"{self._url}/{list_id}", texts, send)
        try:
            async with receive, trio.open_nursery() as nursery:
                nursery.start_soon(run.run)
                yield receive
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(DELETE_S, shield=True):
                await run.delete()
        if run.error is not None:  # raised after every answer was read
            raise run.error

    async def _sent(self, texts: Sequence[str]) -> str | None:
        """Send the list; None if the service takes no lists, or not this one."""
        url = f"{self._url}?name={NAME}&column=email"
        headers = {"Content-Type": "application/x-ndjson"}
        try:
            response = await self._client.post(
                url, content=_encode([{"email": text} for text in texts]), headers=headers
            )
        except httpx.RequestError:
            return None  # the stream says what is wrong, or it was for a moment
        if response.status_code != 202:
            return None
        try:
            state = msgspec.json.decode(response.content, type=_State)
        except msgspec.DecodeError:
            return None
        print_error(f"the service verifies the list ({state.addresses:,} addresses)")
        return state.list_id


@dataclass(slots=True)
class _ListRun:
    """One list at the service."""

    client: httpx.AsyncClient
    url: str
    texts: Sequence[str]
    send: trio.MemorySendChannel[Answer]
    error: CommandError | None = None
    _positions: dict[str, list[int]] = field(default_factory=dict)  # without an answer
    _fetched: int = 0
    _failing_since: float | None = None

    async def run(self) -> None:
        """Pass answers on until all are there, or `error` is set."""
        for position, text in enumerate(self.texts):
            self._positions.setdefault(text, []).append(position)
        async with self.send:
            while self._positions and self.error is None:
                await trio.sleep(POLL_S)
                try:
                    await self._poll()
                    self._failing_since = None
                except httpx.RequestError as error:
                    await self._failed(f"cannot be reached ({str(error) or type(error).__name__})")

    async def _poll(self) -> None:
        response = await self.client.get(self.url)
        if response.status_code in PASSING:
            await self._failed(f"is unavailable ({response.status_code})")
            return
        if response.status_code != 200:
            refused = error_of(response.content)
            self._stop(f"the service answers {response.status_code} {refused.error}")
            return
        state = msgspec.json.decode(response.content, type=_State)
        has_ended = state.status not in ("loading", "running")
        if has_ended or state.answered - self._fetched >= FETCH_SHARE * state.addresses:
            await self._fetch(state)
        if state.status == "paused":
            self._stop(f"the service has paused the list: {state.cause or 'by request'}")
        elif has_ended and self._positions and self.error is None:
            self._stop(f"the service has ended the list: it is {state.status}")

    async def _fetch(self, state: _State) -> None:
        decoder = msgspec.json.Decoder(_Row)
        async with self.client.stream("GET", f"{self.url}/results") as response:
            if response.status_code != 200:
                refused = error_of(await read_error_body(response))
                self._stop(f"the service answers {response.status_code} {refused.error}")
                return
            with trio.CancelScope() as reading:  # a cancel ends the response well
                async for line in read_lines(response):
                    reading.deadline = trio.current_time() + ANSWER_S
                    try:
                        self._receive(decoder.decode(line))
                    except (msgspec.DecodeError, UnicodeDecodeError):
                        what = "is not a result of a mailprobe service"
                        self._stop(f"the answer of {self.url} {what}")
                        reading.cancel()
            if reading.cancelled_caught:
                return
        self._fetched = state.answered

    def _receive(self, row: _Row) -> None:
        if row.mailprobe_email is not None:
            for position in self._positions.pop(row.mailprobe_email, ()):
                self.send.send_nowait(row.answer(position))

    async def _failed(self, what: str) -> None:
        now = trio.current_time()
        self._failing_since = self._failing_since if self._failing_since is not None else now
        if now - self._failing_since >= TIMEOUT_S:
            self._stop(f"the service at {self.url} {what}")
        else:
            await trio.sleep(PAUSE_S)

    def _stop(self, line: str) -> None:
        self.error = self.error or CommandError(line)

    async def delete(self) -> None:
        """Delete the list at the service; what is under way is not asked any more."""
        try:
            await self.client.delete(self.url)
        except httpx.RequestError:
            print_error("the list could not be deleted at the service")
