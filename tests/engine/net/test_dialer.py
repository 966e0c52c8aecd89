"""The guard, and connections: direct and through small real SOCKS5 servers on loopback."""

import socket
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio

from mailprobe.engine.net.dialer import SILENT_MAX, Dialer, NotPublic, ProxyBackoff
from mailprobe.engine.net.public_addresses import is_public
from mailprobe.engine.net.socks5 import Proxy, check_proxy_url
from mailprobe.engine.net.tcp import CannotConnect

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.9.9.9",
    "11.0.0.1",
    "9.255.255.255",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.0.3.0",
    "192.88.98.255",
    "192.88.100.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "198.51.99.255",
    "198.51.101.0",
    "203.0.112.255",
    "203.0.114.0",
    "223.255.255.255",
    "1.0.0.0",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2620:fe::fe",
    "2a00:1450:4001::1a",
    "2400:cb00::1",
    "2001:200::1",
    "2001:db7:ffff::1",
    "2001:db9::1",
    "2003::1",
    "2000::1",
    "3ffe:ffff::1",
    "3fff:1000::1",
]

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::7f00:1",
    "::ffff:8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:0:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "fc00::1",
    "fd00::1",
    "fe80::1",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:1ff::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "3fff:fff::1",
    "4000::1",
    "5f00::1",
    "1fff::1",
    "e000::1",
]

NO_ADDRESSES = [
    "",
    "localhost",
    "mx.shop.test",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "127.1",
    "8.8.8",
    "8.8.8.8.",
    "08.8.8.8",
    "8.8.8.010",
    "８.８.８.８",
    "٨.٨.٨.٨",
    " 8.8.8.8",
    "8.8.8.8\n",
    "8.8.8.8/32",
    "8.8.8.8:25",
    "[2620:fe::fe]",
    "2620:fe::fe%eth0",
    "2620:fe::fe::",
    "8.8.8.256",
]


@pytest.mark.parametrize("ip", PUBLIC)
def test_a_public_address(ip):
    assert is_public(ip)


@pytest.mark.parametrize("ip", NOT_PUBLIC)
def test_an_address_that_is_not_public(ip):
    assert not is_public(ip)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_is_not_public(text):
    assert not is_public(text)


def test_six_may_be_spelled_in_any_case():
    assert is_public("2620:00FE::FE")
    assert not is_public("2001:DB8::1")


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


@asynccontextmanager
async def open_server(handler, host="127.0.0.1"):
    """A server on a free port; what its handler raises on a broken connection is let go."""

    async def handle(stream):
        with suppress(trio.BrokenResourceError):
            async with stream:
                await handler(stream)

    listener = trio.socket.socket(
        trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET, trio.socket.SOCK_STREAM
    )
    await listener.bind((host, 0))
    listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [trio.SocketListener(listener)])
        yield listener.getsockname()[1]
        nursery.cancel_scope.cancel()


async def greet(stream):
    await stream.send_all(b"220 mx.test\r\n")
    await stream.receive_some()  # until the client hangs up


def closed_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_direct_connection_has_no_delay(host, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", None)
    async with open_server(greet, host) as port:
        stream = await Dialer(allow_private=True)(host, port)
        async with stream:
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert await stream.receive_some() == b"220 mx.test\r\n"


async def test_a_refusal_is_told_in_words():
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


# SOCKS5


@dataclass
class Socks:
    """A SOCKS5 server for one user, or for everybody; `says` replaces its reply."""

    user: bytes | None = None
    password: bytes = b""
    says: int | None = None
    silent: bool = False
    hang_up: bool = False
    garbage: bool = False
    drops: bool = False  # hangs up after the request, without a reply
    gives_up: Callable[[], object] | None = None  # called at the request, which gets no reply
    reaches: frozenset[str] = frozenset()  # targets for which `says` does not hold
    bound: bytes = b"\1\0\0\0\0\0\0"  # address type, address and port in its reply
    asked: list = field(default_factory=list)
    connections: int = 0

    async def serve(self, stream):
        self.connections += 1
        if self.silent:
            await stream.receive_some(1)
            await trio.sleep_forever()
        version, count = await exactly(stream, 2)
        methods = await exactly(stream, count)
        if self.hang_up:
            return
        if self.garbage:
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return
        wanted = 0 if self.user is None else 2
        if version != 5 or wanted not in methods:
            await stream.send_all(b"\5\xff")
            return
        await stream.send_all(bytes([5, wanted]))
        if wanted == 2 and not await self.authenticate(stream):
            return
        await self.connect(stream)

    async def authenticate(self, stream) -> bool:
        _, length = await exactly(stream, 2)
        user = await exactly(stream, length)
        password = await exactly(stream, (await exactly(stream, 1))[0])
        right = (user, password) == (self.user, self.password)
        await stream.send_all(b"\1\0" if right else b"\1\1")
        return right

    async def connect(self, stream):
        _, _, _, kind = await exactly(stream, 4)
        family = {1: socket.AF_INET, 4: socket.AF_INET6}[kind]
        host = socket.inet_ntop(family, await exactly(stream, 4 if kind == 1 else 16))
        port = int.from_bytes(await exactly(stream, 2), "big")
        self.asked.append((host, port))
        if self.drops:
            return
        if self.gives_up is not None:
            self.gives_up()
            await stream.receive_some()
            return
        if self.says is not None and host not in self.reaches:
            await stream.send_all(bytes([5, self.says, 0]) + self.bound)
            return
        # Reply and banner in one write: neither may swallow the other.
        await stream.send_all(b"\5\0\0" + self.bound + b"220 mx.test\r\n")
        await stream.receive_some()


async def exactly(stream, octets: int) -> bytes:
    read = b""
    while len(read) < octets:
        more = await stream.receive_some(octets - len(read))
        if not more:
            raise trio.BrokenResourceError
        read += more
    return read


TARGET = ("11.0.0.1", 25)


@asynccontextmanager
async def open_socks(*servers: Socks, userinfo: str = ""):
    """Dialers' URLs of these servers."""
    async with trio.open_nursery() as nursery:
        urls = []

        async def run(server, task_status):
            async with open_server(server.serve) as port:
                task_status.started(f"socks5://{userinfo}127.0.0.1:{port}")
                await trio.sleep_forever()

        for server in servers:
            urls.append(await nursery.start(partial(start, run, server)))
        yield urls
        nursery.cancel_scope.cancel()


async def start(run, server, task_status=trio.TASK_STATUS_IGNORED):
    await run(server, task_status)


@pytest.mark.parametrize("address", ["11.0.0.1", "2620:fe::fe"])
@pytest.mark.parametrize(
    "bound",
    [b"\1\0\0\0\0\0\0", b"\4" + bytes(18), b"\3\x0bexit.mx.net\0\0", b"\3\x01x\0\0", b"\3\0\0\0"],
)
async def test_a_proxy_connects_and_what_the_target_says_comes_after(address, bound):
    proxy = Socks(bound=bound)
    async with open_socks(proxy) as urls, await Dialer(urls)(address, 25) as stream:
        assert await stream.receive_some() == b"220 mx.test\r\n"
    assert proxy.asked == [(address, 25)]


async def test_a_proxy_is_told_who_we_are():
    proxy = Socks(user="jörg@x".encode(), password=b"p:w d")
    userinfo = "j%C3%B6rg%40x:p%3Aw%20d@"
    async with open_socks(proxy, userinfo=userinfo) as urls, await Dialer(urls)(*TARGET):
        pass
    assert proxy.asked == [TARGET]


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


async def test_a_wrong_password_is_the_proxys_failure():
    async with open_socks(Socks(user=b"ann", password=b"right"), userinfo="ann:wrong@") as urls:
        with pytest.raises(CannotConnect, match="user or password refused"):
            await Dialer(urls)(*TARGET)


async def test_a_proxy_that_is_gone_goes_to_the_next_and_rests():
    good = Socks()
    async with open_socks(good) as urls:
        dial = Dialer([f"socks5://127.0.0.1:{closed_port()}", *urls])
        for _ in range(4):
            async with await dial(*TARGET):
                pass
    assert good.connections == 4


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (3, "network unreachable"),
        (4, "no route to host"),
        (5, "connection refused"),
        (6, "connection timed out"),
    ],
)
async def test_a_targets_refusal_is_the_targets_and_no_other_proxy_is_asked(reply, words):
    proxies = [Socks(says=reply), Socks(says=reply)]
    async with open_socks(*proxies) as urls:
        dial = Dialer(urls)
        for _ in range(4):
            with pytest.raises(CannotConnect) as refused:
                await dial(*TARGET)
            assert str(refused.value) == words
    assert [proxy.connections for proxy in proxies] == [2, 2]  # neither rests


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


def targets(count: int) -> list[tuple[str, int]]:
    return [(f"11.0.0.{n}", 25) for n in range(1, count + 1)]


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


@pytest.mark.parametrize("kind", [0, 2, 5, 255])
async def test_a_reply_with_an_unknown_kind_of_address_is_not_read_on(kind):
    """Where the address ends is unknown, so the target's first octets might be taken for it."""
    async with open_socks(Socks(bound=bytes([kind]) + bytes(6))) as urls:
        with pytest.raises(CannotConnect, match="not a SOCKS5 reply"):
            await Dialer(urls)(*TARGET)


async def test_the_proxys_own_address_is_exempt_from_the_guard():
    async with open_socks(Socks()) as urls, await Dialer(urls, allow_private=False)(*TARGET):
        pass


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("socks5://192.0.2.1:1080", Proxy("192.0.2.1", 1080)),
        ("socks5://[2001:db8::1]:1080", Proxy("2001:db8::1", 1080)),
        ("socks5://localhost:9050", Proxy("127.0.0.1", 9050)),
        ("SOCKS5://127.0.0.1:9050/", Proxy("127.0.0.1", 9050)),
        ("socks5://ann:p%40ss@127.0.0.1:1", Proxy("127.0.0.1", 1, b"ann", b"p@ss")),
        ("socks5://ann@127.0.0.1:1", Proxy("127.0.0.1", 1, b"ann", b"")),
    ],
)
def test_a_proxy_named_by_address(url, proxy):
    assert check_proxy_url(url) == proxy


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "socks5://"),
        ("127.0.0.1:1080", "socks5://"),
        ("http://127.0.0.1:1080", "socks5://"),
        ("socks5h://127.0.0.1:1080", "socks5://"),
        ("socks4://127.0.0.1:1080", "socks5://"),
        ("socks5://127.0.0.1", "socks5://"),
        ("socks5://127.0.0.1:0", "socks5://"),
        ("socks5://127.0.0.1:x", "socks5://"),
        ("socks5://127.0.0.1:70000", "socks5://"),
        ("socks5://127.0.0.1:1080/path", "socks5://"),
        ("socks5://[::1:1080", "socks5://"),
        ("socks5://proxy.shop.test:1080", "not as proxy.shop.test"),
        ("socks5://127.1:1080", "by its address"),
        ("socks5://[fe80::1%25eth0]:1080", "by its address"),
        ("socks5://:secret@127.0.0.1:1080", "1 to 255 octets"),
        (f"socks5://{'x' * 256}:y@127.0.0.1:1080", "1 to 255 octets"),
        (f"socks5://x:{'y' * 256}@127.0.0.1:1080", "1 to 255 octets"),
    ],
)
def test_a_proxy_that_cannot_be_used(url, words):
    with pytest.raises(ValueError, match=words):
        check_proxy_url(url)


def test_no_password_in_what_is_printed():
    assert "secret" not in repr(check_proxy_url("socks5://ann:secret@127.0.0.1:1"))
