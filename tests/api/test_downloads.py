"""The owner's list of throwaway services' mail hosts: what a download may replace, and when it is made."""

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from mailprobe.api.downloads.disposable_hosts import (
    EVERY_S,
    FILE,
    LOOK_S,
    OCTETS_MAX,
    RETRY_S,
    checked,
    download_hosts,
    keep_fresh,
    present_hosts,
    replace_list,
)
from mailprobe.api.downloads.download import DownloadRefused
from mailprobe.engine.lists.lists import Lists, load_lists
from mailprobe.engine.own_lists import OwnLists
from mailprobe.engine.smtp.operators import load_operators

SHIPPED, OPERATORS = load_lists(), load_operators()
TEN = frozenset(f"mx{n}.throwaway.test" for n in range(10))


def text_of(hosts: frozenset[str]) -> bytes:
    return "\n".join(hosts).encode()


def own_lists() -> Lists:
    return SHIPPED.with_own(OwnLists())


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        (b"", "lists no host"),
        (b"# moved\n", "lists no host"),
        (b"<!DOCTYPE html>\n", "the download, line 1: '<!DOCTYPE html>' is not a domain"),
        (b"mx.throwaway.test\nann@throwaway.test\n", "the download, line 2"),
        (b"\xff\xfe", "not in UTF-8"),
        (text_of(frozenset(sorted(TEN)[:7])), "lists 7 hosts instead of 10"),
        (text_of(TEN | {"google.com"}), "lists google.com, which is a mail provider's"),
        (text_of(TEN | {"aspmx.l.google.com"}), "lists aspmx.l.google.com"),
        (text_of(TEN | {"outlook.com"}), "lists outlook.com"),
        (text_of(TEN | {"co.jp"}), "lists co.jp"),
    ],
)
def test_a_broken_or_dangerous_download_is_refused(octets: bytes, words: str) -> None:
    with pytest.raises(DownloadRefused, match=words):
        checked(octets, TEN, SHIPPED, OPERATORS)


def test_a_shorter_list_may_be_accepted_by_name() -> None:
    hosts = frozenset({"mx.throwaway.test"})
    assert checked(text_of(hosts), TEN, SHIPPED, OPERATORS, may_shrink=True) == hosts
    nine = frozenset(list(TEN)[:9])
    assert checked(text_of(nine), TEN, SHIPPED, OPERATORS) == nine


class Site:
    """What the URL has, and when it was asked."""

    def __init__(self, octets: bytes | Exception) -> None:
        self.octets = octets
        self.asked: list[float] = []

    async def fetch(self) -> bytes:
        self.asked.append(trio.current_time())
        if isinstance(self.octets, Exception):
            raise self.octets
        return self.octets


async def test_the_list_is_downloaded_daily_and_used_in_every_process(
    autojump_clock, tmp_path: Path
) -> None:
    site, lists, neighbour = Site(text_of(TEN)), own_lists(), own_lists()
    created = trio.current_time()

    def now() -> float:
        """The file's own time, for the file system's clock is real."""
        age_s = trio.current_time() - (site.asked[-1] if site.asked else created)
        path = tmp_path / FILE
        return (path.stat().st_mtime if path.exists() else 1e9) + age_s

    async with trio.open_nursery() as nursery:
        for each in (lists, neighbour):
            nursery.start_soon(keep_fresh, tmp_path, each, OPERATORS, site.fetch, now)
        await trio.sleep(LOOK_S + 1)
        assert len(site.asked) == 1
        for each in (lists, neighbour):
            assert each.disposable_hosts.has("mx3.throwaway.test")
        assert present_hosts(tmp_path) == TEN
        await trio.sleep(EVERY_S)
        assert len(site.asked) == 2
        nursery.cancel_scope.cancel()
    assert {path.name for path in tmp_path.iterdir()} == {FILE, f".{FILE}.lock"}  # noqa: ASYNC240 - few files


async def test_a_refused_download_leaves_the_list_and_is_tried_again_after_an_hour(
    autojump_clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replace_list(tmp_path, TEN)
    site, lists = Site(b"<html>"), own_lists()
    with trio.move_on_after(2.5 * RETRY_S):
        await keep_fresh(tmp_path, lists, OPERATORS, site.fetch, lambda: 1e12)
    assert [round(at / RETRY_S) for at in site.asked] == [0, 1, 2]
    assert present_hosts(tmp_path) == TEN
    assert "throwaway mail hosts not updated: the download, line 1" in caplog.text


async def serve_one(octets: bytes, stream: trio.SocketStream) -> None:
    async with stream:
        await stream.receive_some()
        await stream.send_all(octets)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na.b", None),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "the server answers 404"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "answers 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na.b", "cannot be downloaded"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (OCTETS_MAX + 1), "more than 128 KiB"),
        (b"SSH-2.0\r\n", "cannot be downloaded"),
    ],
)
async def test_a_download_is_whole_and_bounded(response: bytes, words: str | None) -> None:
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]

        async def serve(stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                await serve_one(response, stream)

        nursery.start_soon(trio.serve_listeners, serve, [listener])
        if words is None:
            assert await download_hosts(f"http://127.0.0.1:{port}/") == b"a.b"
        else:
            with pytest.raises(DownloadRefused, match=words):
                await download_hosts(f"http://127.0.0.1:{port}/")
        nursery.cancel_scope.cancel()


async def test_a_silent_server_costs_a_minute(autojump_clock, monkeypatch) -> None:
    class Silent:
        async def __aenter__(self) -> None:
            await trio.sleep_forever()

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr("httpx.AsyncClient", lambda **_: Silent())
    with pytest.raises(DownloadRefused, match="more than 60 s"):
        await download_hosts("https://lists.example/")
