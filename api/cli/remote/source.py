"""A service as a source of answers. It has three ways through the service, and chooses for each list.

A list of LONG addresses or more is sent whole, if the service takes lists (`list_way`). Shorter
ones, and those that it does not take, go in small requests (`stream_way`). A caller may ask for
requests alone, or for the live socket (`live_way`).
"""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import trio

from mailprobe.engine.stream.answers import Answer

from ..source import AnswerSource, NoteWait, SentRecord
from .list_way import ListRun, ServiceLists
from .runs import ServiceRun, running
from .service import RemoteService, open_service
from .stream_way import StreamRun

Way = Literal["best", "stream", "live"]


class RemoteSource:
    """An AnswerSource; `open_remote_source()` opens one."""

    def __init__(self, service: RemoteService, way: Way = "best") -> None:
        self._service = service
        self._way = way
        self._record: SentRecord | None = None
        self._patience_left_s: Callable[[], float] | None = None
        self._note_wait: NoteWait = lambda _: None

    def wait_up_to(self, left_s: Callable[[], float], note_wait: NoteWait) -> None:
        """See PatientSource. The service waits with a list; the other ways do not."""
        self._patience_left_s, self._note_wait = left_s, note_wait

    def keep_record(self, record: SentRecord) -> None:
        """See ResumableSource. Nothing is recorded of the live socket: it repeats no answer."""
        self._record = record

    @asynccontextmanager
    async def open_answers(
        self, texts: Sequence[str], *, explain: bool = False, patient: bool = False
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Answer]]:
        """See AnswerSource. `explain` is for requests: the other ways have no evidence."""
        # Unread answers are fewer than the texts, which the reader holds.
        send, receive = trio.open_memory_channel[Answer](math.inf)
        run = await self._run(texts, send, explain=explain)
        async with running(run, receive):
            yield receive

    async def _run(
        self, texts: Sequence[str], send: trio.MemorySendChannel[Answer], *, explain: bool
    ) -> ServiceRun:
        if self._way == "live":
            from .live_way import LiveRun

            return LiveRun(self._service, texts, send)
        if self._way == "best":
            lists = ServiceLists(self._service, self._record, self._patience_left_s)
            if (list_id := await lists.find_or_send(texts)) is not None:
                return ListRun(lists, list_id, texts, send, self._note_wait)
        return StreamRun(self._service, texts, send, self._record, explain=explain)


@asynccontextmanager
async def open_remote_source(
    server: str, key: str, way: Way = "best", *, asks_hosts: bool = True
) -> AsyncIterator[AnswerSource]:
    """Open a service for one command. Raises Misuse."""
    async with open_service(server, key, asks_hosts=asks_hosts) as service:
        yield RemoteSource(service, way)
