"""State shared by the connections of one HTTP server: its limits, idle connections, and those that wait.

A request counts towards `in_flight_max` only from its body's last byte. Until then its
connection may be closed to free capacity: first the one that has idled longest, then the
one that has been waited for longest. So a client that sends nothing delays no other.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from typing import Protocol

import trio
from msgspec import Struct, field

from mailprobe.engine.background import contained

from ..admission.overload import AdmissionQueue, Ticket
from ..admission.request_bodies import BodyBudget
from .disconnects import HangUps
from .encoder import ErrorBody, error_messages, head_of
from .exchange import RequestTurn, UpgradeHandler
from .listeners import accept, accept_now
from .parser import Fields, RequestHead
from .received_request import Application, new_request_id

ACCEPTED_MAX = 128  # in one turn of the event loop: some 10 ms
UNREAD_CHECK_S = 0.005  # between two checks of unread requests; some ten are served in it
REJECT_WITHIN_S = 0.04  # the promise is 50 ms; a later rejection is of little use
UNREAD_S_MAX = 30.0  # then a request is read under any load


class Limits(Struct, frozen=True):
    """Limits of one serving process. Counts are per process, times per connection, in seconds."""

    connections_max: int = 4000
    in_flight_max: int = 3000  # complete requests; one more gets 503 at once. A burst has 2,000
    requests_per_connection_max: int = 100_000
    head_octets_max: int = 16 * 1024
    body_octets_max: int = 2 * 1024 * 1024
    head_s: float = 10.0  # from accepting, or from the head's first byte, to its last
    body_s: float = 10.0  # from the head to the body's last byte
    uploads: Mapping[bytes, int] = field(default_factory=dict)  # by path: octets of a POST's body
    upload_silence_s: float = 30.0  # between two pieces of an upload
    upload_unread_max: int = 1 << 20  # octets of an upload that the application has not taken
    refuse_s: float = 1.0  # for the application to refuse a request whose body is too large
    keep_alive_s: float = 75.0
    send_s: float = 15.0  # for each SEND_OCTETS
    linger_s: float = 2.0
    drain_s: float = 6.0  # for open requests while draining; a stop has 10 s in all


class Connection(Protocol):
    """A client's connection, as the server bounds and closes it."""

    async def run(self) -> None:
        """Serve until either side closes."""

    def drain(self) -> None:
        """Close if idle, and soon if a head is incomplete."""

    def close_idle(self) -> None:
        """Close now if no request has begun."""

    def evict_idle(self) -> None:
        """Close now to free capacity; an answer that the client does not read is cut off."""

    def evict(self) -> None:
        """Refuse the incomplete request with 503 to free capacity."""


Connect = Callable[["HttpServer", trio.SocketStream], Connection]


class HttpServer:
    """What the connections of one `serve_app` share."""

    def __init__(
        self,
        app: Application,
        error_body: ErrorBody,
        limits: Limits,
        admission_queue: AdmissionQueue | None,
        intake: BodyBudget,
        vital: Iterable[bytes],
        upgrades: Mapping[bytes, UpgradeHandler],
        connect: "Connect",
    ) -> None:
        self.app = app
        self.admission_queue = admission_queue
        self.intake = intake
        self.upgrades = upgrades
        self._connect = connect
        self._vital = frozenset(vital)
        self.error_body = error_body
        self.limits = limits
        self.draining = False
        self.hang_ups = HangUps()
        self.in_flight = 0
        self.connections: set[Connection] = set()
        self.idle: dict[Connection, None] = {}  # ordered: the longest-idle first
        self.slow: dict[Connection, None] = {}  # part of a request is missing; longest first
        self._unread: OrderedDict[Connection, tuple[float, trio.Event]] = OrderedDict()
        self._any_unread = trio.Event()
        self._dated: tuple[int, Fields] = (0, [])  # made in this second
        self._rejection = (0, b"", b"", b"")  # made in this second; body; before and after the id
        self._free = trio.Semaphore(limits.connections_max)

    # connections

    async def accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept connections until cancelled. At the limit, close an idle one, else wait."""
        while True:
            await self._admit(await accept(listener), nursery)
            for _ in range(ACCEPTED_MAX):
                wire = accept_now(listener) if self._free.value else None
                if wire is None:
                    break
                await self._admit(wire, nursery)

    async def _admit(self, wire: trio.SocketStream, nursery: trio.Nursery) -> None:
        try:
            if self._free.value == 0:
                self._evict_one()
            await self._enter()
        except BaseException:
            wire.socket.close()
            raise
        nursery.start_soon(contained, self._reserve, wire)

    def _evict_one(self) -> None:
        if self.idle:
            next(iter(self.idle)).evict_idle()
        elif self.slow:
            next(iter(self.slow)).evict()

    async def _enter(self) -> None:
        try:
            self._free.acquire_nowait()  # almost always: saves a scheduler round trip
        except trio.WouldBlock:
            await self._free.acquire()

    @property
    def _is_accept_waiting(self) -> bool:
        """Does a new connection wait for capacity?"""
        return self._free.value == 0 and self._free.statistics().tasks_waiting > 0

    def mark_idle(self, connection: Connection) -> None:
        self.slow.pop(connection, None)
        self.idle[connection] = None
        if self._is_accept_waiting:
            connection.close_idle()

    def wait_for(self, connection: Connection) -> None:
        """A part of the connection's request is missing from now on."""
        self.idle.pop(connection, None)
        self.slow[connection] = None
        if self._is_accept_waiting:
            self._evict_one()

    def forget(self, connection: Connection) -> None:
        """The connection is neither idle nor slow."""
        self.idle.pop(connection, None)
        self.slow.pop(connection, None)

    async def _reserve(self, wire: trio.SocketStream) -> None:
        connection: Connection | None = None
        try:
            connection = self._connect(self, wire)
            self.connections.add(connection)
            self.idle[connection] = None
            if self.draining:  # accepted just before the drain began
                connection.drain()
            await connection.run()
        except OSError:
            if connection is not None:
                raise  # without a connection, the client had already gone
        finally:
            wire.socket.close()  # a bug may have left it open
            if connection is not None:
                self.connections.discard(connection)
                self.forget(connection)
            self._free.release()

    # requests

    def new_turn(self, head: RequestHead) -> RequestTurn:
        """Return the turn of a request that has just begun."""
        is_vital = head.path in self._vital and head.method in ("GET", "HEAD")
        queue = self.admission_queue
        ticket = Ticket(queue) if queue is not None and head.method == "POST" else None
        return RequestTurn(is_vital, ticket=ticket)

    def own_fields(self) -> Fields:
        """The header fields of every answer: the date, made once a second."""
        second = int(time.time())
        if self._dated[0] != second:
            self._dated = second, [(b"date", formatdate(second, usegmt=True).encode())]
        return self._dated[1]

    def run_request(self, turn: RequestTurn) -> bool:
        """Count a complete request as in flight; return False if it must be rejected."""
        if turn.at_work or turn.is_vital:
            return True
        if self.in_flight >= self.limits.in_flight_max:
            return False
        if not self.intake.try_acquire(turn.octets):
            return False
        if turn.ticket is not None and not turn.ticket.try_enter():
            self.intake.release(turn.octets)
            return False
        self.in_flight += 1
        turn.at_work = turn.is_held = True
        return True

    def end_work(self, turn: RequestTurn) -> None:
        """The answer is complete: it no longer counts as in flight, even if the client reads slowly."""
        if turn.at_work:
            self.in_flight -= 1
            turn.at_work = False

    def end(self, turn: RequestTurn) -> None:
        """The request is over: free all that it holds."""
        turn.is_over = True
        self.end_work(turn)
        if turn.is_held:
            self.intake.release(turn.octets)
        if turn.ticket is not None:
            turn.ticket.leave()
        if turn.arrival is not None:
            turn.arrival.end()

    # unread requests

    @property
    def is_overrun(self) -> bool:
        """Must new requests be left unread?"""
        return self.admission_queue is not None and self.admission_queue.is_overrun

    def rejection(self) -> bytes:
        """Return a complete 503 response; all but its request id is built once a second."""
        body, second = self.error_body("overloaded"), int(time.time())
        if self._rejection[:2] != (second, body):
            placeholder = "0" * 32
            start, _ = error_messages("overloaded", body, placeholder)
            head = head_of(start["status"], [*start["headers"], *self.own_fields()])
            before, _, after = head.partition(placeholder.encode())
            self._rejection = second, body, before, after + body
        _, _, before, after = self._rejection
        return before + new_request_id().encode() + after

    def charge_rejection(self, took_s: float) -> None:
        """A rejection took so much processor time; waking its task takes as much again."""
        if self.admission_queue is not None:
            self.admission_queue.charge_rejection(2 * took_s)

    async def park(self, connection: Connection) -> None:
        """Leave this connection's request unread until it may be read.

        The newest is read first, so that as few as possible wait too long. A request that
        has waited longer than REJECT_WITHIN_S is read when it can be served, and after
        UNREAD_S_MAX in any case.
        """
        since = trio.current_time()
        while True:
            may_read = trio.Event()
            self._unread[connection] = since, may_read
            self._any_unread.set()
            try:
                await may_read.wait()
            finally:
                self._unread.pop(connection, None)
            waited_s = trio.current_time() - since
            if not (REJECT_WITHIN_S < waited_s < UNREAD_S_MAX and self._is_full):
                return

    @property
    def _is_full(self) -> bool:
        return self.admission_queue is not None and self.admission_queue.is_full

    async def resume_unread(self) -> None:
        """Resume unread requests as there is capacity. Runs until cancelled."""
        while True:
            self._any_unread = trio.Event()
            if not self._unread:
                await self._any_unread.wait()
            self._resume_some(self.admission_queue)
            await trio.sleep(UNREAD_CHECK_S)

    def _resume_some(self, queue: AdmissionQueue | None) -> None:
        """Resume as many as can be served, or rejected in time."""
        served = len(self._unread) if queue is None else queue.free
        rejected = 0 if queue is None else queue.rejections_left
        now = trio.current_time()
        while self._unread:
            oldest, newest = next(iter(self._unread)), next(reversed(self._unread))
            is_late = self._unread[oldest][0] <= now - UNREAD_S_MAX
            if not is_late and served <= 0:
                if rejected <= 0 or self._unread[newest][0] < now - REJECT_WITHIN_S:
                    return
                rejected -= 1
            _, may_read = self._unread.pop(oldest if is_late else newest)
            may_read.set()
            served -= 1

    # draining

    def drain(self) -> None:
        self.draining = True
        for connection in list(self.connections):
            connection.drain()
