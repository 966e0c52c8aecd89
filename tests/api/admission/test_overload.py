"""Overload control: the admission queue on virtual time, the server on real sockets."""

import pytest
import trio

from mailprobe.api.admission.overload import (
    ACTIVE_MAX,
    ACTIVE_MIN,
    BURST,
    QUEUE_MIN,
    REJECTION_CREDIT_S,
    AdmissionQueue,
    Ticket,
)
from mailprobe.api.admission.request_bodies import BodyBudget
from mailprobe.api.http.connection import HttpConnection
from mailprobe.api.http.parser import read_fast
from mailprobe.api.http.received_request import admission_of
from mailprobe.api.http.shared import REJECT_WITHIN_S, UNREAD_S_MAX, HttpServer, Limits
from tests.api.raw_http import hello, read_body, respond, serving

HEAD = "POST / HTTP/1.1\r\nHost: a.test\r\n"
WHOLE = HEAD + "Content-Length: 5\r\n\r\nhello"


class Store:
    """A store that grants reservations one after the other, at a fixed rate per second."""

    def __init__(self, rate: float) -> None:
        self.pause_s = 1 / rate
        self.waited_s: list[float] = []
        self._queue: list[tuple[Ticket, float]] = []

    def reserve(self, ticket: Ticket) -> None:
        self._queue.append((ticket, trio.current_time()))

    async def run(self) -> None:
        while True:
            await trio.sleep(self.pause_s)
            if self._queue:
                ticket, since = self._queue.pop(0)
                ticket.leave()
                self.waited_s.append(trio.current_time() - since)


class Flood:
    """A flood of requests for one admission queue; counts those rejected."""

    def __init__(self, queue: AdmissionQueue, store: Store) -> None:
        self.queue = queue
        self.store = store
        self.rejected = 0
        self.most = 0

    def come(self, count: int = 1) -> None:
        for _ in range(count):
            ticket = Ticket(self.queue)
            if ticket.try_enter():
                self.store.reserve(ticket)
            else:
                self.rejected += 1
            self.most = max(self.most, len(self.queue))

    async def rush(self, rate: float, seconds: float) -> None:
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            self.come()
            await trio.sleep(1 / rate)


@pytest.fixture
async def flood(nursery):
    return lambda rate: start(nursery, rate)


def start(nursery: trio.Nursery, rate: float) -> Flood:
    store = Store(rate)
    nursery.start_soon(store.run)
    return Flood(AdmissionQueue(), store)


@pytest.mark.parametrize("rate", [300, 1_000])
async def test_three_times_the_load_is_rejected_and_the_rest_is_admitted(
    autojump_clock, flood, rate
):
    coming = flood(rate)
    await coming.rush(3 * rate, 2 + 1.5 * BURST / rate)  # its first part was a burst
    del coming.store.waited_s[:]
    rejected, coming.most = coming.rejected, 0
    await coming.rush(3 * rate, 2)
    assert len(coming.store.waited_s) >= 0.98 * 2 * rate  # the store never idles
    assert coming.rejected - rejected >= 0.6 * 6 * rate
    assert QUEUE_MIN <= coming.most <= max(QUEUE_MIN, 0.06 * rate)
    assert max(coming.store.waited_s) <= 1.1 * max(0.05, QUEUE_MIN / rate)


@pytest.mark.parametrize("rate", [60, 200, 1_000])
async def test_a_crowd_at_once_is_no_overload_however_slow_the_machine(autojump_clock, flood, rate):
    coming = flood(rate)
    for _ in range(5):
        coming.come(QUEUE_MIN)
        await trio.sleep(2 + QUEUE_MIN / rate)
    assert not coming.rejected


async def test_a_burst_is_no_overload(autojump_clock, flood):
    coming = flood(2_000)
    coming.come(BURST)
    assert not coming.rejected
    coming.come(1)
    assert coming.rejected == 1


async def test_a_burst_that_takes_a_while_to_come_is_none_either(autojump_clock, flood):
    """A slow machine takes a while to read 2,000 requests and to grant them."""
    coming = flood(500)
    await coming.rush(1_000, 2)
    assert not coming.rejected
    await trio.sleep(3)
    assert len(coming.store.waited_s) >= 2_000 - 1


async def test_after_a_rejection_a_queue_that_stands_for_100_ms_is_rejected(autojump_clock, flood):
    """CoDel's interval: the flood's next wave does not count as a burst."""
    coming = flood(500)
    await coming.rush(1_500, 6)
    coming.most = 0
    await coming.rush(1_500, 3)
    assert coming.most <= 2 * QUEUE_MIN


async def test_a_load_within_capacity_is_never_rejected(autojump_clock, flood):
    coming = flood(500)
    await coming.rush(490, 4)
    assert not coming.rejected


async def test_a_store_that_stands_still_keeps_a_burst_waiting_and_no_more(autojump_clock, flood):
    coming = flood(1e-9)
    await coming.rush(1_000, 5)
    assert coming.most == BURST


async def test_when_the_flood_is_over_a_burst_may_come_again(autojump_clock, flood):
    coming = flood(1_000)
    await coming.rush(3_000, 2)
    assert coming.rejected
    await coming.rush(100, 5)
    coming.rejected = 0
    coming.come(BURST)
    assert not coming.rejected


def test_a_place_is_left_once_and_taken_once():
    queue = AdmissionQueue(lambda: 0.0)
    ticket = Ticket(queue)
    assert ticket.try_enter()
    assert ticket.try_enter()
    assert len(queue) == 1
    ticket.leave()
    ticket.leave()
    assert len(queue) == 0
    assert ticket.try_enter()  # already answered: the rest of its body is discarded
    assert len(queue) == 0


# -- the server -------------------------------------------------------------------------------


class Slow:
    """An application that admits no POST request before `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = trio.Event()
        self.begun = 0

    async def __call__(self, scope, receive, send):
        await read_body(receive)
        self.begun += scope["method"] == "POST"
        if scope["method"] == "POST":
            await self.go_on.wait()
            admission_of(scope).admitted()
        await respond(send)


def fill(queue: AdmissionQueue) -> list[Ticket]:
    """Fill the queue with tickets, so that the next one must be rejected."""
    tickets = []
    while not queue.is_full:
        tickets.append(Ticket(queue))
        assert tickets[-1].try_enter()
    return tickets


def a_server(queue: AdmissionQueue) -> HttpServer:
    return HttpServer(
        hello, lambda code: b"", Limits(), queue, BodyBudget(), (), {}, HttpConnection
    )


WAYS = {
    "in one piece": [WHOLE],
    "in two": [HEAD + "Content-Length: 5\r\n\r\n", "hello"],
    "in chunks": [HEAD + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
    "with a field of its connection": [
        HEAD + "Connection: keep-alive, x\r\nContent-Length: 5\r\n\r\nhello"
    ],
}


@pytest.mark.parametrize("pieces", WAYS.values(), ids=WAYS)
async def test_an_excess_request_gets_503_and_may_be_repeated_on_the_same_connection(pieces):
    app, queue = Slow(), AdmissionQueue()
    app.go_on.set()
    async with serving(app, queue) as server, server.connect() as raw:
        tickets = fill(queue)
        for _ in range(2):
            for piece in pieces:
                await raw.send(piece)
            answer = await raw.answer()
            assert (answer.status, answer.code) == (503, "overloaded")
            assert answer.headers["retry-after"] == "1"
            assert answer.headers.keys() >= {"date", "content-length", "x-request-id"}
        for ticket in tickets:
            ticket.leave()
        for piece in pieces:
            await raw.send(piece)
        assert (await raw.answer()).status == 200
        assert len(queue) == 0


async def test_both_ways_give_the_same_answer():
    app, queue = Slow(), AdmissionQueue()
    async with serving(app, queue) as server, server.connect() as raw:
        fill(queue)
        short = await raw.request(WHOLE)
        long = await raw.request(WHOLE.replace("Host", "Expect: nothing\r\nHost"))
        for answer in (short, long):
            del answer.headers["x-request-id"], answer.headers["date"]
        assert short == long


async def test_refusals_take_a_share_of_the_time_and_no_more(autojump_clock):
    queue = AdmissionQueue()
    tickets = fill(queue)
    assert queue.rejections_left > 10
    while queue.rejections_left:
        queue.charge_rejection(0.001)
    assert queue.is_overrun
    tickets.pop().leave()
    assert not queue.is_overrun
    fill(queue)
    await trio.sleep(1)
    assert 1 <= queue.rejections_left <= 2 * REJECTION_CREDIT_S / 0.001
    assert not queue.is_overrun


async def test_their_turn_comes_in_the_order_of_their_coming(autojump_clock, nursery):
    queue = AdmissionQueue()
    tickets = [Ticket(queue) for _ in range(ACTIVE_MIN + 3)]
    begun = []

    async def work(number):
        await tickets[number].wait_until_active()
        begun.append(number)

    for number, ticket in enumerate(tickets):
        assert ticket.try_enter()
        nursery.start_soon(work, number)
    await trio.testing.wait_all_tasks_blocked()
    assert len(begun) == ACTIVE_MIN
    tickets[ACTIVE_MIN].leave()  # this client hung up
    for ticket in tickets[:2]:
        ticket.leave()
        await trio.testing.wait_all_tasks_blocked()
    assert begun[ACTIVE_MIN:] == [ACTIVE_MIN + 1, ACTIVE_MIN + 2]


@pytest.mark.parametrize(
    ("busy", "at_idempotency"), [(0.3, ACTIVE_MAX), (0.6, ACTIVE_MIN), (0.9, ACTIVE_MIN)]
)
async def test_more_are_worked_on_where_it_is_the_store_that_is_slow(
    busy, at_idempotency, autojump_clock, nursery
):
    """Idle processor time means that requests wait for the store, so more may be active."""
    queue = AdmissionQueue(computed_s=lambda: busy * trio.current_time())
    store = Store(400)
    nursery.start_soon(store.run)
    at_work = set()

    async def come(ticket):
        await ticket.wait_until_active()
        at_work.add(ticket)
        store.reserve(ticket)

    tickets = [Ticket(queue) for _ in range(1_000)]
    for ticket in tickets:
        assert ticket.try_enter()
        nursery.start_soon(come, ticket)
    await trio.sleep(1)
    assert sum(ticket in at_work and not ticket.has_left for ticket in tickets) == at_idempotency


async def test_a_request_is_rejected_soon_or_waits_until_it_is_served(autojump_clock, nursery):
    """A rejection comes within 50 ms, because a later one does not help the client."""
    queue = AdmissionQueue(computed_s=lambda: 0.0)
    server = a_server(queue)
    nursery.start_soon(server.resume_unread)
    tickets = fill(queue)
    queue.charge_rejection(0.05)  # no rejection is allowed for a while
    read = []

    async def come(name):
        await server.park(name)
        read.append(name)

    nursery.start_soon(come, "early")
    await trio.sleep(2)
    assert queue.rejections_left
    nursery.start_soon(come, "late")
    await trio.sleep(REJECT_WITHIN_S)
    assert read == ["late"]
    for ticket in tickets:
        ticket.leave()
    await trio.sleep(REJECT_WITHIN_S)
    assert read == ["late", "early"]


async def test_parked_requests_wait_for_room_up_to_a_bound(autojump_clock, nursery):
    queue = AdmissionQueue(computed_s=lambda: 0.0)
    server = a_server(queue)
    nursery.start_soon(server.resume_unread)
    tickets = fill(queue)
    queue.charge_rejection(10.0)
    read = []

    async def come(name):
        await server.park(name)
        ticket = Ticket(queue)
        read.append((name, ticket.try_enter(), trio.current_time()))

    began = trio.current_time()
    for name in range(3):
        nursery.start_soon(come, name)
    await trio.sleep(2 * REJECT_WITHIN_S)
    tickets.pop().leave()
    await trio.sleep(1)
    assert [got for _, got, _ in read] == [True]
    await trio.sleep(UNREAD_S_MAX)
    assert [got for _, got, _ in read] == [True, False, False]
    assert all(at - began <= UNREAD_S_MAX + 0.1 for _, _, at in read)


async def test_in_an_overrun_posts_are_left_unread_and_gets_are_served():
    app, queue = Slow(), AdmissionQueue()
    app.go_on.set()
    async with serving(app, queue) as server, server.connect() as raw, server.connect() as late:
        tickets = fill(queue)
        queue.charge_rejection(60.0)  # no rejection is allowed for a minute
        await late.send(WHOLE)
        assert (await raw.request("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")).status == 200
        assert app.begun == 0
        for ticket in tickets:
            ticket.leave()
        assert (await late.answer()).status == 200


async def test_a_request_of_which_one_octet_has_come_is_left_unread_whole():
    app, queue = Slow(), AdmissionQueue()
    app.go_on.set()
    async with serving(app, queue) as server, server.connect() as raw, server.connect() as late:
        tickets = fill(queue)
        queue.charge_rejection(60.0)
        await late.send(WHOLE[:1])
        assert (await raw.request("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")).status == 200
        for ticket in tickets:
            ticket.leave()
        await late.send(WHOLE[1:])
        assert (await late.answer()).status == 200


async def test_admitted_requests_and_reads_are_served():
    app, queue = Slow(), AdmissionQueue()
    async with serving(app, queue) as server, server.connect() as first, server.connect() as raw:
        await first.send(WHOLE)
        while not len(queue):
            await trio.lowlevel.checkpoint()
        fill(queue)
        assert (await raw.request(WHOLE)).status == 503
        assert (await raw.request("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")).status == 200
        app.go_on.set()
        assert (await first.answer()).status == 200


async def test_bodies_that_are_awaited_fill_no_room():
    app, queue = Slow(), AdmissionQueue()
    async with serving(app, queue) as server, server.connect() as raw, server.connect() as late:
        await late.send(HEAD + "Content-Length: 5\r\n\r\n")
        app.go_on.set()
        assert (await raw.request(WHOLE)).status == 200  # sent after the other's head was read
        assert len(queue) == 0
        await late.send("hello")
        assert (await late.answer()).status == 200


PLAIN = {
    "a body": (WHOLE, True),
    "kept alive": (WHOLE.replace("Host", "Connection: keep-alive\r\nHost"), True),
    "more than it": (WHOLE + "P", False),
    "less than it": (WHOLE[:-1], False),
    "no length": (HEAD + "\r\n", False),
    "two lengths": (WHOLE.replace("Host", "Content-Length: 5\r\nHost"), False),
    "two lengths in one": (WHOLE.replace(": 5", ": 5, 5"), False),
    "a length with a sign": (WHOLE.replace(": 5", ": +5"), False),
    "a name with a space": (WHOLE.replace("Content-Length", "Content-Length "), False),
    "a folded line": (WHOLE.replace("a.test", "a.test\r\n b"), False),
    "a lone line feed": (WHOLE.replace("a.test", "a.test\nX: y"), False),
    "a NUL": (WHOLE.replace("a.test", "a\0test"), False),
    "chunks": (WHOLE.replace("Host", "Transfer-Encoding: chunked\r\nHost"), False),
    "an end": (WHOLE.replace("Host", "Connection: close\r\nHost"), False),
    "a question": (WHOLE.replace("Host", "Expect: 100-continue\r\nHost"), False),
    "an older version": (WHOLE.replace("1.1", "1.0"), False),
    "another method": (WHOLE.replace("POST", "PUT"), False),
    "too long a head": (WHOLE.replace("a.test", "a" * 16_384), False),
}


@pytest.mark.parametrize(("said", "is_plain"), PLAIN.values(), ids=PLAIN)
def test_the_short_way_is_for_what_every_server_reads_alike(said, is_plain):
    assert (read_fast(said.encode(), 16_384) is not None) is is_plain
