"""Callbacks in virtual time, and what happens when a delivery fails or is cancelled at any step."""

import logging
import random
from ipaddress import ip_address
from typing import Any

import pytest
import trio

from mailprobe.api.jobs.delivery import (
    ADDRESSES_MAX,
    CONNECT_S,
    DELIVERY_S,
    Delivered,
    FindAddresses,
    open_webhook_sender,
)
from mailprobe.engine.dns.messages import AddressAnswer, Addresses, LookupFailed, NoAddress
from mailprobe.engine.net.dialer import Dial
from mailprobe.engine.net.tcp import CannotConnect
from tests.api.jobs.delivery_fixture import (
    ANSWERS,
    HEADERS,
    NO_ANSWER,
    NO_CONTENT,
    NOT_HTTP,
    OK_HEAD,
    PUBLIC,
    Serve,
    deliver,
    drips_tls,
    finds,
    is_silent,
    open_in_memory,
    open_local,
    open_receiver,
    over_tls,
    says,
    says_for_ever,
    stalls,
)
from tests.cutter import Cutter
from tests.seeds import seeds

pytestmark = pytest.mark.usefixtures("names_are_never_resolved")

SLOW: dict[str, tuple[Serve | None, Serve | None, str]] = {
    "TLS that stalls": (None, stalls, "the TLS handshake took longer than 15 s"),
    "TLS that drips": (None, drips_tls, "the TLS handshake took longer than 15 s"),
    "silence": (is_silent, None, "the answer took longer than 15 s"),
    "a head that drips": (
        says_for_ever(b"HTTP/1.1 200 OK\r\nA: ", b"x", 0.5), None, "the answer took longer than 15 s"),
    "100 now and then": (
        says_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 2), None, "the answer took longer than 15 s"),
}  # fmt: skip


@pytest.mark.parametrize("what", SLOW)
async def test_a_slow_receiver_has_15_seconds_in_all(autojump_clock, authority, ca_file, what):
    act, serve, words = SLOW[what]
    if serve is None:
        assert act is not None
        serve = over_tls(authority, act)
    async with open_in_memory(serve, ca_file) as (
        receivers,
        webhook_sender,
    ):
        began = trio.current_time()
        delivered = await deliver(webhook_sender, 443)
        assert trio.current_time() - began == pytest.approx(DELIVERY_S)
        assert delivered == Delivered(None, words, None, 15_000)
        await receivers.assert_hung_up()


async def test_the_status_stands_however_slow_the_body_is(autojump_clock, authority, ca_file):
    act = says_for_ever(OK_HEAD, b"x", 0.5)
    async with open_in_memory(over_tls(authority, act), ca_file) as (_, webhook_sender):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(200, None, None, 15_000)


async def test_the_look_up_is_of_the_15_seconds(autojump_clock, authority, ca_file):
    async def find(name: str) -> AddressAnswer:
        await trio.sleep(10)
        return Addresses((PUBLIC,), 60)

    async with open_in_memory(over_tls(authority, is_silent), ca_file, find=find) as (
        _,
        webhook_sender,
    ):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(None, "the answer took longer than 15 s", None, 15_000)


async def test_a_look_up_without_an_end(autojump_clock, ca_file):
    async def find(name: str) -> AddressAnswer:
        await trio.sleep_forever()
        raise AssertionError

    async with open_in_memory(stalls, ca_file, find=find) as (receivers, webhook_sender):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(None, "the look-up took longer than 15 s", None, 15_000)
        assert receivers.dialled == []


async def test_an_address_that_never_answers_leaves_time_for_the_next(
    autojump_clock, authority, ca_file
):
    ips = ("11.0.0.1", "11.0.0.2", "11.0.0.3")
    async with open_in_memory(
        over_tls(authority, says(NO_CONTENT)), ca_file, *ips, silent=frozenset(ips[:2])
    ) as (receivers, webhook_sender):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(204, None, None, int(2 * CONNECT_S * 1000))
        assert receivers.dialled == list(ips)


async def test_an_only_address_that_never_answers(autojump_clock, ca_file):
    async with open_in_memory(stalls, ca_file, silent=frozenset({PUBLIC})) as (_, webhook_sender):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(None, "no connection within 4 s", None, 4000)


async def test_many_addresses_that_never_answer(autojump_clock, ca_file):
    ips = tuple(f"11.0.0.{n}" for n in range(1, 60))
    async with open_in_memory(stalls, ca_file, *ips, silent=frozenset(ips)) as (
        receivers,
        webhook_sender,
    ):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(None, "connecting took longer than 15 s", None, 15_000)
        assert len(receivers.dialled) <= ADDRESSES_MAX


async def test_only_a_few_addresses_are_tried_and_both_kinds(ca_file):
    """A customer's name with dozens of foreign addresses must not make the service a scanner."""
    fours = [f"11.0.0.{n}" for n in range(1, 30)]
    sixes = [f"2620:fe::{n}" for n in range(1, 30)]
    dialled = []

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        raise CannotConnect("network unreachable")

    async with open_webhook_sender(
        finds(*fours, *sixes), allow_private=False, ca_file=ca_file, dial=dial
    ) as webhook_sender:
        assert (await deliver(webhook_sender, 443)).error == "network unreachable"
    assert len(dialled) == ADDRESSES_MAX
    assert {ip_address(each).version for each in dialled} == {4, 6}


async def test_slow_deliveries_do_not_wait_for_each_other(autojump_clock, authority, ca_file):
    async with open_in_memory(over_tls(authority, is_silent), ca_file) as (_, webhook_sender):
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(deliver, webhook_sender, 443)
        assert trio.current_time() - began == pytest.approx(DELIVERY_S)


# -- failures ---------------------------------------------------------------------------------

BUGS = [ValueError("s3cret"), OSError(5, "s3cret"), ExceptionGroup("s3cret", [KeyError()])]


@pytest.mark.parametrize("bug", BUGS, ids=repr)
async def test_it_raises_nothing(ca_file, bug):
    async def fails(*_: Any, **__: Any) -> Any:
        raise bug

    cases: list[tuple[FindAddresses, Dial | None]] = [(fails, None), (finds(PUBLIC), fails)]
    for find, dial in cases:
        async with open_webhook_sender(
            find, allow_private=False, ca_file=ca_file, dial=dial
        ) as webhook_sender:
            delivered = await deliver(webhook_sender, 443)
            assert delivered.status is None
            assert delivered.error == f"failed ({type(bug).__name__})"


@pytest.mark.parametrize(
    "found", [Addresses((), 0), NoAddress("no A records"), LookupFailed("x" * 5000)]
)
async def test_a_look_up_that_finds_nothing(ca_file, found: AddressAnswer):
    async def find(name: str) -> AddressAnswer:
        return found

    async with open_webhook_sender(find, allow_private=False, ca_file=ca_file) as webhook_sender:
        delivered = await deliver(webhook_sender, 443)
        assert delivered.status is None
        assert delivered.error is not None
        assert 0 < len(delivered.error) <= 200


def mangled(rng: random.Random) -> bytes:
    """Return an answer with a random fault in it."""
    octets = bytearray(rng.choice(list(ANSWERS.values()))[0][:400])
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(octets) + 1)
        match rng.randrange(4):
            case 0:
                octets[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del octets[place : place + rng.randrange(1, 9)]
            case 2:
                octets[place:place] = rng.choice(
                    [b"\r\n", b"\n", b"\0", b":", b" ", b"\xff", b"9" * 30]
                )
            case 3:
                octets = octets[:place]
    return bytes(octets)


@pytest.mark.parametrize("seed", range(seeds(20)))
async def test_any_answer_becomes_a_status_or_a_short_error(
    autojump_clock, authority, ca_file, seed
):
    rng = random.Random(seed)

    async def act(stream: trio.abc.Stream) -> None:
        octets = mangled(rng)
        cut = rng.randrange(len(octets) + 1)
        await says(octets[:cut], octets[cut:])(stream)

    async with open_in_memory(over_tls(authority, act), ca_file) as (_, webhook_sender):
        for _ in range(60):
            delivered = await deliver(webhook_sender, 443)
            assert (delivered.status is None) != (delivered.error is None)
            assert delivered.error in (None, NOT_HTTP, NO_ANSWER)


async def test_a_delivery_that_is_cancelled_at_any_step_leaves_no_connection(
    autojump_clock, authority, ca_file
):
    tls_of_one = over_tls(authority, says(OK_HEAD, b"x" * 9999))
    for steps in range(1, 500):
        async with open_in_memory(tls_of_one, ca_file, connect_s=0.1) as (
            receivers,
            webhook_sender,
        ):
            with trio.CancelScope() as scope:
                cutter = Cutter(steps, scope)
                trio.lowlevel.add_instrument(cutter)
                try:
                    delivered = await deliver(webhook_sender, 443)
                finally:
                    trio.lowlevel.remove_instrument(cutter)
            await receivers.assert_hung_up()
        if cutter.left > 0:
            assert delivered.status == 200
            assert steps > 20
            return
    pytest.fail("it never ended")


async def test_no_secret_is_returned_or_logged(authority, ca_file, caplog):
    caplog.set_level(logging.DEBUG)
    path = "/s3cret-path?token=s3cret-query"
    body = b'{"email": "s3cret-body"}'
    reported = []
    answer = says(b"s3cret-answer\r\n\r\n")
    async with open_local(ca_file) as webhook_sender:
        for act in (answer, says(), says(NO_CONTENT)):
            async with open_receiver(authority, act) as receiver:
                reported.append(await deliver(webhook_sender, receiver.port, path, body=body))
        async with open_receiver(authority, names=["s3cret-name.test"]) as receiver:
            reported.append(await deliver(webhook_sender, receiver.port, path, body=body))
    assert [each.status for each in reported] == [None, None, 204, None]
    written = repr(reported) + caplog.text
    assert "s3cret" not in written
    assert HEADERS["X-Service-Signature"] not in written
