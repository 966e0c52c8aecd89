"""How far a running list is, as server-sent events (HTML Living Standard, section 9.2).

    event: progress      the part of the page about it, as HTML, whenever that changes
    event: end           the sign-in has ended, or the list is gone: the page loads itself anew

A process looks at a list once in a while, however many watch it. What it shows is the store's, so
watchers at other processes see the same. A watcher that reads slowly misses what is outdated: it is
sent what was seen last.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from math import inf

import trio
from msgspec import Struct, field
from quart import Blueprint, Response, current_app, request
from quart.wrappers.response import ResponseBody

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_records import NO_WAITS

from ....admission.connections import LiveConnections
from ....lists.stages import UNDER_WAY
from ....lists.table import read_marks
from ....operations.list_jobs import response_of, waits_of
from ..frame import HEADERS, LISTS_PAGE, Frame, caller
from .list_states import progress_values
from .list_table import list_and_stored

EVERY_S = 0.8  # between two looks at a list: its counters move at least once a second
SHARE = 5  # a look takes at most one of so many seconds: marks of a million addresses take a while
SIGN_IN_EVERY_S = 5.0  # a sign-in that has ended is noticed within
COMMENT_S = 15.0  # proxies end a connection that is silent for longer, often a minute
END = b"event: end\ndata:\n\n"
COMMENT = b": the list goes on\n\n"
Render = Callable[..., Awaitable[str]]
HEADERS_OF_EVENTS = {
    **HEADERS,
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",  # nginx
}


class Look(Struct, frozen=True):
    """A list as a look has shown it: an event, and whether another one may follow."""

    event: bytes
    is_last: bool = False


class _Watched(Struct):
    """A list that is watched, and what was seen of it last."""

    watchers: int = 0
    next_at: float = -inf
    seen: Look | None = None
    lock: trio.Lock = field(default_factory=trio.Lock)


class ListLooks:
    """The looks of a process at the lists that are watched: their watchers share each.

    A list is known as long as it has watchers, whose number is limited.
    """

    def __init__(self) -> None:
        self._lists: dict[str, _Watched] = {}

    @contextmanager
    def watching(self, list_id: str) -> Iterator[None]:
        """Watch a list for the duration of the block."""
        watched = self._lists.setdefault(list_id, _Watched())
        watched.watchers += 1
        try:
            yield
        finally:
            watched.watchers -= 1
            if not watched.watchers:
                del self._lists[list_id]

    async def latest(self, list_id: str, look: Callable[[], Awaitable[Look]]) -> Look:
        """What is known of a watched list; the first watcher who finds it outdated looks."""
        watched = self._lists[list_id]
        async with watched.lock:
            begun = trio.current_time()
            if watched.seen is None or begun >= watched.next_at:
                watched.seen = await look()
                took_s = trio.current_time() - begun
                watched.next_at = begun + max(EVERY_S, SHARE * took_s)
            return watched.seen


class ListEvents(ResponseBody):
    """The events of one watcher, until the list ends, the sign-in ends or the process stops."""

    def __init__(
        self,
        latest: Callable[[], Awaitable[Look]],
        is_signed_in: Callable[[], Awaitable[bool]],
        drain: trio.Event,
        held: Sequence[AbstractContextManager[None]],
    ) -> None:
        self._latest = latest
        self._is_signed_in = is_signed_in
        self._drain = drain
        self._held = held  # while the body is open
        self._open = ExitStack()
        self._sent: bytes | None = None
        self._sent_at = self._asked_at = trio.current_time()
        self._has_ended = False

    async def __aenter__(self) -> "ListEvents":
        for each in self._held:
            self._open.enter_context(each)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._open.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not (self._has_ended or self._drain.is_set()):
            if self._sent is not None:
                with trio.move_on_after(EVERY_S):
                    await self._drain.wait()
            event = await self._next()
            if event is not None:
                self._sent_at = trio.current_time()
                return event
        raise StopAsyncIteration

    async def _next(self) -> bytes | None:
        """What is to be sent now; nothing while the store is away."""
        now = trio.current_time()
        try:
            if now >= self._asked_at + SIGN_IN_EVERY_S:
                self._asked_at = now
                if not await self._is_signed_in():
                    self._has_ended = True
                    return END
            look = await self._latest()
        except StoreUnavailable:
            look = None
        if look is not None and look.event != self._sent:
            self._sent, self._has_ended = look.event, look.is_last
            return look.event
        if self._sent is None or now >= self._sent_at + COMMENT_S:
            self._sent = self._sent or b""
            return COMMENT
        return None


def register(pages: Blueprint, frame: Frame, connections: LiveConnections) -> None:
    """Add the route."""
    looks, store = ListLooks(), frame.service.store

    @pages.get(f"{LISTS_PAGE}/<id>/events")
    @frame.signed_in
    async def events(id: str) -> Response:
        """How far the list is, as long as the page shows it."""
        found, _ = await list_and_stored(frame, id)
        account, cookie = caller().account, request.cookies.get(frame.cookie)
        per_minute = frame.service.plans[caller().account.tier].rate_limit_per_min
        render = current_app.jinja_env.get_template("dashboard/list_progress.html").render_async

        async def is_signed_in() -> bool:
            return await frame.sign_ins.sign_in_of(cookie) is not None

        look = partial(look_at, render, found.list_id, per_minute)
        connections.check_room(account.id)
        body = ListEvents(
            partial(looks.latest, found.list_id, look),
            is_signed_in,
            connections.drain,
            [connections.counted(account.id), looks.watching(found.list_id)],
        )
        response = Response(body, 200, headers=HEADERS_OF_EVENTS)
        response.timeout = None
        return response

    async def look_at(render: Render, list_id: str, per_minute: int) -> Look:
        stored = await store.stored_list(list_id)
        if stored is None:
            return Look(END, is_last=True)
        waits = (await waits_of(frame.service, [stored])).get(list_id, NO_WAITS)
        now = frame.service.now()
        found = response_of(stored, waits, now, per_minute)
        marks = await read_marks(store, stored)
        values = progress_values(stored, found, marks.counts, now)
        html = await render(list=found, **values)
        return Look(event_of(html), found.status not in UNDER_WAY)


def event_of(html: str) -> bytes:
    """A part of a page as an event, line by line."""
    lines = "".join(f"data: {line}\n" for line in html.strip().splitlines())
    return f"event: progress\n{lines}\n".encode()
