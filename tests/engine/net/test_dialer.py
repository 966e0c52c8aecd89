"""The dialer: which addresses it refuses, direct connections, and the choice among proxies."""

import socket

import pytest
import trio

from mailprobe.engine.net.dialer import SILENT_MAX, Dialer, NotPublic, ProxyBackoff
from mailprobe.engine.net.tcp import CannotConnect
from tests.engine.net.socks_server import (
    TARGET,
    Socks,
    closed_port,
    greet,
    open_server,
    open_socks,
    targets,
)
from tests.engine.net.test_public_addresses import NO_ADDRESSES, NOT_PUBLIC


@pytest.mark.parametrize("address", [*NOT_PUBLIC, *NO_ADDRESSES])
async def test_nothing_is_sent_to_what_is_not_public(address):
    sent = []

    async def no_proxy_is_asked_either(stream):
        sent.append(stream)

    async with open_server(no_proxy_is_asked_either) as port:
        for proxies in ((), (f"socks5://127.0.0.1:{port}",)):
            with pytest.raises(NotPublic) as refused:
                await Dialer(proxies)(address, port)
            assert isinstance(refused.value, CannotConnect)
            assert isinstance(refused.value, OSError)
    assert not sent


@pytest.mark.parametrize("text", NO_ADDRESSES)
async def test_no_name_is_dialled_even_where_private_addresses_may_be(text, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", None)
    with pytest.raises(CannotConnect):
        await Dialer(allow_private=True)(text, 25)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_direct_connection_has_no_delay(host, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", None)
    async with open_server(greet, host) as port:
        stream = await Dialer(allow_private=True)(host, port)
        async with stream:
            assert isinstance(stream, trio.SocketStream)
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert await stream.receive_some() == b"220 mx.test\r\n"


async def test_a_refusal_is_reported_in_words():
    with pytest.raises(CannotConnect) as refused:
        await Dialer(allow_private=True)("127.0.0.1", closed_port())
    assert str(refused.value) == "connection refused"


@pytest.mark.parametrize("proxied", [False, True])
async def test_a_dial_that_is_cancelled_leaves_nothing_open(proxied):
    """A listener whose queue is full does not answer; unclosed sockets fail the test."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        where = full.getsockname()
        with socket.create_connection(where):  # the queue's only place
            proxies = (f"socks5://127.0.0.1:{where[1]}",) if proxied else ()
            with trio.move_on_after(0.05) as limit:
                await Dialer(proxies, allow_private=True)("127.0.0.1", where[1])
            assert limit.cancelled_caught


async def test_proxies_are_used_in_turn():
    proxies = [Socks(), Socks(), Socks()]
    async with open_socks(*proxies) as urls:
        dial = Dialer(urls)
        for _ in range(6):
            async with await dial(*TARGET):
                pass
    assert [proxy.connections for proxy in proxies] == [2, 2, 2]


FAULTS = {
    "general failure": Socks(says=1),
    "not allowed": Socks(says=2),
    "unknown reply": Socks(says=99),
    "no IPv6": Socks(says=8),
    "hangs up": Socks(hang_up=True),
    "no SOCKS": Socks(garbage=True),
    "wants a user": Socks(user=b"ann"),
    "silent": Socks(silent=True),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_proxys_own_failure_goes_to_the_next(fault):
    good = Socks()
    async with open_socks(fault, good) as urls:
        dial = Dialer(urls[::-1])  # the second of the list is the first in turn
        async with await dial(*TARGET) as stream:
            assert await stream.receive_some() == b"220 mx.test\r\n"
    assert fault.connections == 1
    assert good.asked == [TARGET]


async def test_a_proxy_that_is_gone_goes_to_the_next_and_rests():
    good = Socks()
    async with open_socks(good) as urls:
        dial = Dialer([f"socks5://127.0.0.1:{closed_port()}", *urls])
        for _ in range(4):
            async with await dial(*TARGET):
                pass
    assert good.connections == 4


async def test_a_failing_proxy_rests_while_another_is_awake():
    bad, good = Socks(says=2), Socks()
    async with open_socks(bad, good) as urls:
        dial = Dialer(urls)
        for _ in range(10):
            async with await dial(*TARGET):
                pass
    assert bad.connections == 1
    assert good.connections == 10


async def test_a_proxy_without_ipv6_does_not_rest():
    limited, good = Socks(says=8), Socks()
    async with open_socks(limited, good) as urls:
        dial = Dialer(urls)
        for _ in range(4):
            async with await dial("2620:fe::fe", 25):
                pass
    assert limited.connections == 2


async def test_when_all_rest_one_is_used_all_the_same():
    proxy = Socks(says=1)
    async with open_socks(proxy) as urls:
        dial = Dialer(urls)
        for _ in range(3):
            with pytest.raises(CannotConnect, match="no proxy could be used: general failure"):
                await dial(*TARGET)
        proxy.says = None
        async with await dial(*TARGET):
            pass
    assert proxy.connections == 4


def test_rests_double_from_five_seconds_to_five_minutes():
    rest, lengths = ProxyBackoff(), []
    for _ in range(9):
        rest = rest.after_failure(100.0)
        lengths.append(rest.until - 100.0)
    assert lengths == [5, 10, 20, 40, 80, 160, 300, 300, 300]


async def test_a_rest_ends(monkeypatch):
    """Real sockets and virtual time don't mix, so the clock is moved by hand."""
    clock = [1000.0]
    monkeypatch.setattr("mailprobe.engine.net.dialer.trio.current_time", lambda: clock[0])
    bad, good = Socks(says=2), Socks()
    async with open_socks(bad, good) as urls:
        dial = Dialer(urls)

        async def dial_twice():
            for _ in range(2):
                async with await dial(*TARGET):
                    pass
            return bad.connections

        assert await dial_twice() == 1
        clock[0] += 4.9
        assert await dial_twice() == 1
        clock[0] += 0.2
        assert await dial_twice() == 2
        clock[0] += 5.2  # the second rest is longer
        assert await dial_twice() == 2
        clock[0] += 5
        bad.says = None
        assert await dial_twice() == 3
        bad.says = 2  # it was well: the next rest is a short one again
        assert await dial_twice() == 4
        clock[0] += 5.1
        assert await dial_twice() == 5


@pytest.mark.parametrize(
    "make", [lambda: Socks(says=1), lambda: Socks(says=99), lambda: Socks(drops=True)]
)
async def test_a_target_that_no_proxy_reaches_is_blamed_on_none(make):
    """Many proxies say "general failure" of every host that can't be connected to."""
    proxies = [make(), make(), make()]
    async with open_socks(*proxies) as urls:
        dial = Dialer(urls)
        for target in targets(12):
            with pytest.raises(CannotConnect):
                await dial(*target)
        for proxy in proxies:
            proxy.says, proxy.drops = None, False
        for target in targets(3):
            async with await dial(*target):
                pass
    # Two of the three are asked about each, and in the end each is still used in its turn.
    assert sum(proxy.connections for proxy in proxies) == 2 * 12 + 3
    assert {proxy.asked[-1] for proxy in proxies} == set(targets(3))


async def test_a_dead_host_in_a_good_list_puts_no_proxy_to_rest():
    """The same host fails again and again; between those the proxies work."""
    alive = frozenset(host for host, _ in targets(20))
    proxies = [Socks(says=1, reaches=alive), Socks(says=1, reaches=alive)]
    async with open_socks(*proxies) as urls:
        dial = Dialer(urls)
        for target in targets(20):
            with pytest.raises(CannotConnect, match="general failure"):
                await dial("11.0.1.1", 25)
            async with await dial(*target):
                pass
    assert sum(proxy.connections for proxy in proxies) == 20 * 2 + 20


@pytest.mark.parametrize("make", [lambda: Socks(says=1), lambda: Socks(drops=True)])
async def test_general_failure_is_the_proxys_where_another_reaches_three_targets_in_a_row(make):
    bad, good = make(), Socks()
    async with open_socks(bad, good) as urls:
        dial = Dialer(urls)
        for target in targets(12):
            async with await dial(*target):
                pass
    assert bad.connections == 3
    assert good.connections == 12


async def test_one_target_that_a_proxy_does_not_reach_does_not_put_it_to_rest():
    """Its address may be listed there, or have no route from it."""
    others = frozenset(host for host, _ in targets(4))
    limited, good = Socks(says=1, reaches=others), Socks()
    async with open_socks(limited, good) as urls:
        dial = Dialer(urls)
        for _ in range(12):
            async with await dial("11.0.1.1", 25):
                pass
    assert limited.connections == 6


@pytest.mark.parametrize(("silence_s", "asked"), [(0.0, SILENT_MAX), (60.0, 20)])
async def test_a_proxy_that_never_replies_rests_where_another_works(monkeypatch, silence_s, asked):
    """Unless the caller gave up early, as one does who only hedged."""
    monkeypatch.setattr("mailprobe.engine.net.dialer.SILENCE_S", silence_s)
    mute, good = Socks(), Socks()
    async with open_socks(mute, good) as urls:
        dial = Dialer(urls)
        for target in targets(40):
            with trio.CancelScope() as caller:
                mute.gives_up = caller.cancel  # as soon as the request has come
                async with await dial(*target):
                    pass
    assert len(mute.asked) == asked
    assert len(good.asked) == 40 - asked


async def test_silent_targets_put_no_proxy_to_rest_where_none_works(monkeypatch):
    monkeypatch.setattr("mailprobe.engine.net.dialer.SILENCE_S", 0.0)
    proxies = [Socks(), Socks()]
    async with open_socks(*proxies) as urls:
        dial = Dialer(urls)
        for target in targets(40):
            with trio.CancelScope() as caller:
                for proxy in proxies:
                    proxy.gives_up = caller.cancel
                await dial(*target)
    assert [len(proxy.asked) for proxy in proxies] == [20, 20]


async def test_the_last_proxy_awake_never_rests():
    gone, last = closed_port(), Socks(says=2)
    async with open_socks(last) as urls:
        dial = Dialer([f"socks5://127.0.0.1:{gone}", *urls])
        for _ in range(6):
            with pytest.raises(CannotConnect):
                await dial(*TARGET)
        last.says = None
        async with await dial(*TARGET):
            pass
    assert last.connections == 7


async def test_when_the_last_one_awake_fails_a_resting_one_is_tried():
    first, second = Socks(says=2), Socks()
    async with open_socks(first, second) as urls:
        dial = Dialer(urls)
        for _ in range(2):
            async with await dial(*TARGET):
                pass
        first.says, second.says = None, 2
        for _ in range(4):
            async with await dial(*TARGET):
                pass


async def test_the_proxys_own_address_is_exempt_from_the_guard():
    async with open_socks(Socks()) as urls, await Dialer(urls, allow_private=False)(*TARGET):
        pass
