"""SOCKS5: the protocol, and the URLs of proxies."""

import pytest

from mailprobe.engine.net.dialer import Dialer
from mailprobe.engine.net.socks5 import Proxy, check_proxy_url
from mailprobe.engine.net.tcp import CannotConnect
from tests.engine.net.socks_server import TARGET, Socks, open_socks


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


async def test_credentials_are_sent_to_the_proxy():
    proxy = Socks(user="jörg@x".encode(), password=b"p:w d")
    userinfo = "j%C3%B6rg%40x:p%3Aw%20d@"
    async with open_socks(proxy, userinfo=userinfo) as urls, await Dialer(urls)(*TARGET):
        pass
    assert proxy.asked == [TARGET]


async def test_a_wrong_password_is_the_proxys_failure():
    async with open_socks(Socks(user=b"ann", password=b"right"), userinfo="ann:wrong@") as urls:
        with pytest.raises(CannotConnect, match="user or password refused"):
            await Dialer(urls)(*TARGET)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (3, "network unreachable"),
        (4, "no route to host"),
        (5, "connection refused"),
        (6, "connection timed out"),
    ],
)
async def test_a_refusal_by_the_target_tries_no_other_proxy(reply, words):
    proxies = [Socks(says=reply), Socks(says=reply)]
    async with open_socks(*proxies) as urls:
        dial = Dialer(urls)
        for _ in range(4):
            with pytest.raises(CannotConnect) as refused:
                await dial(*TARGET)
            assert str(refused.value) == words
    assert [proxy.connections for proxy in proxies] == [2, 2]  # neither rests


@pytest.mark.parametrize("kind", [0, 2, 5, 255])
async def test_a_reply_with_an_unknown_kind_of_address_is_not_read_on(kind):
    """Where the address ends is unknown, so the target's first octets might be taken for it."""
    async with open_socks(Socks(bound=bytes([kind]) + bytes(6))) as urls:
        with pytest.raises(CannotConnect, match="not a SOCKS5 reply"):
            await Dialer(urls)(*TARGET)


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
