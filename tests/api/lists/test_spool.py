"""Uploads take turns: none is too slow, no account holds all places, and no file is left."""

import errno
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.api.lists import spool
from mailprobe.api.lists.spool import UploadPlaces, spooled
from mailprobe.api.quota.list_limits import ACCOUNT_UPLOADS_MAX, UPLOADS_MAX
from mailprobe.api.refusals import (
    Overloaded,
    PayloadTooLarge,
    SlowBody,
    SlowUpload,
    StorageFull,
)
from tests.api.lists.test_lists import open_list_shop, send
from tests.api.service_fixture import RunningService

KIB = 1024
OCTETS_MAX = 1 << 20


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch) -> UploadPlaces:
    """Places of this test alone, and a disk that takes no time."""

    async def at_once(act: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return act(*arguments)

    places = UploadPlaces()
    monkeypatch.setattr(spool, "upload_places", places)
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return places


def body(*pieces: tuple[float, int]) -> Callable[[], Awaitable[bytes]]:
    """A body whose pieces of so many octets come each so many seconds after the one before."""
    left = list(pieces)

    async def receive() -> bytes:
        if not left:
            return b""
        pause_s, octets = left.pop(0)
        await trio.sleep(pause_s)
        return bytes(octets)

    return receive


async def octets_of(*pieces: tuple[float, int], account: str = "ann") -> int:
    async with spooled(body(*pieces), account, OCTETS_MAX) as upload:
        return len(upload.file.read())


@pytest.mark.parametrize(
    ("pieces", "refusal"),
    [
        ([(9.0, 64 * KIB)] * 4, None),
        ([(4.5, 32 * KIB)] * 8, None),
        ([(9.0, 10)], None),  # its end comes in time
        ([(11.0, 64 * KIB)], SlowUpload),
        ([(1.0, 1 * KIB)] * 20, SlowUpload),
        ([(0.0, 640 * KIB), (11.0, 10)], SlowUpload),
        ([(0.0, OCTETS_MAX + 1)], PayloadTooLarge),
    ],
)
async def test_an_upload_keeps_the_least_rate(pieces, refusal, autojump_clock):
    if refusal is None:
        assert await octets_of(*pieces) == sum(octets for _, octets in pieces)
        return
    with pytest.raises(refusal):
        await octets_of(*pieces)


async def test_an_upload_may_not_take_for_ever(autojump_clock, monkeypatch):
    monkeypatch.setattr(spool, "UPLOAD_S_MAX", 50)
    with pytest.raises(SlowBody):
        await octets_of(*[(9.0, 64 * KIB)] * 10)


async def test_a_slow_disk_is_not_the_clients_fault(autojump_clock, monkeypatch):
    async def slowly(act: Callable[..., Any], *arguments: Any) -> Any:
        await trio.sleep(30)
        return act(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", slowly)
    assert await octets_of(*[(1.0, 32 * KIB)] * 4) == 128 * KIB


async def test_an_account_has_at_most_a_quarter_of_the_places(autojump_clock):
    async with trio.open_nursery() as nursery:
        for _ in range(ACCOUNT_UPLOADS_MAX):
            nursery.start_soon(octets_of, (5.0, 10))
        await trio.sleep(1)
        with pytest.raises(Overloaded):
            await octets_of((0.0, 10))
        assert await octets_of((0.0, 10), account="bob") == 10
    assert ACCOUNT_UPLOADS_MAX * 4 == UPLOADS_MAX
    assert await octets_of((0.0, 10)) == 10


async def test_where_all_places_are_taken_the_slowest_upload_ends(autojump_clock):
    ended: list[int] = []

    async def one(number: int) -> None:
        try:
            await octets_of(*[(4.5, (number + 32) * KIB)] * 4, account=str(number))
        except Overloaded:
            ended.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(UPLOADS_MAX):
            nursery.start_soon(one, number)
        await trio.sleep(7.5)
        for newcomer in ("ann", "bob"):
            nursery.start_soon(partial(octets_of, (9.0, 10), account=newcomer))
            await trio.testing.wait_all_tasks_blocked()
    assert ended == [0, 1]


async def test_a_newcomer_waits_until_it_is_known_which_upload_is_slow(autojump_clock):
    """A burst of others that fills all places in one moment does not keep it out."""
    async with trio.open_nursery() as nursery:
        for number in range(UPLOADS_MAX):
            nursery.start_soon(ignoring_overload, (30.0, 10), str(number % 4))
        await trio.sleep(0.5)
        assert await octets_of((0.0, 10), account="new") == 10
        assert trio.current_time() <= 1.5
        nursery.cancel_scope.cancel()


async def test_only_an_account_with_more_uploads_makes_room(autojump_clock):
    async with trio.open_nursery() as nursery:
        for number in range(UPLOADS_MAX):
            nursery.start_soon(ignoring_overload, (30.0, 10), str(number // 2))
        await trio.sleep(2)
        nursery.start_soon(ignoring_overload, (30.0, 10), "new")
        nursery.start_soon(ignoring_overload, (30.0, 10), "new")
        await trio.sleep(2)
        with pytest.raises(Overloaded):
            await octets_of((0.0, 10), account="new")
        nursery.cancel_scope.cancel()


async def ignoring_overload(piece: tuple[float, int], account: str) -> None:
    with suppress(Overloaded):
        await octets_of(piece, account=account)


class WaitingUpload:
    """An upload that is whole, and is not read."""

    def __init__(self, account: str, octets: int) -> None:
        self.account, self.octets = account, octets
        self.is_refused = False

    async def run(self) -> None:
        try:
            async with spooled(body((0.0, self.octets)), self.account, OCTETS_MAX):
                await trio.sleep(100)
        except Overloaded:
            self.is_refused = True


async def test_uploads_that_wait_to_be_read_hold_no_place(autojump_clock, places: UploadPlaces):
    waiting = [WaitingUpload(str(number // 4), 10) for number in range(3 * UPLOADS_MAX)]
    async with trio.open_nursery() as nursery:
        for each in waiting:
            nursery.start_soon(each.run)
            await trio.testing.wait_all_tasks_blocked()
        assert await octets_of((0.0, 10), account="new") == 10
    assert not any(each.is_refused for each in waiting)


async def test_too_many_octets_that_wait_end_the_newest_of_the_account_with_most(
    autojump_clock, monkeypatch
):
    monkeypatch.setattr(spool, "upload_places", UploadPlaces(waiting_octets_max=100))
    waiting = [
        WaitingUpload(*each) for each in (("ann", 40), ("bob", 20), ("bob", 30), ("eve", 20))
    ]
    async with trio.open_nursery() as nursery:
        for each in waiting:
            nursery.start_soon(each.run)
            await trio.testing.wait_all_tasks_blocked()
        assert [each.is_refused for each in waiting] == [False, False, True, False]
        nursery.cancel_scope.cancel()


async def test_an_upload_that_is_read_is_not_ended_for_others(autojump_clock, monkeypatch):
    monkeypatch.setattr(spool, "upload_places", UploadPlaces(waiting_octets_max=50))
    async with spooled(body((0.0, 45)), "ann", OCTETS_MAX) as upload:
        upload.begin_reading()
        other = WaitingUpload("bob", 10)
        await other.run()
        assert other.is_refused


async def test_a_full_disk_has_its_own_refusal(autojump_clock, monkeypatch):
    async def full(*_: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trio.to_thread, "run_sync", full)
    with pytest.raises(StorageFull):
        await octets_of((0.0, 10))


async def test_a_spooled_file_has_no_name(autojump_clock, tmp_path: Path, monkeypatch):
    """A process that was killed once left the files of its uploads on the disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with spooled(body((0.0, 10)), "ann", OCTETS_MAX) as upload:
        assert upload.file.read() == bytes(10)
        assert os.listdir(tmp_path) == []


async def test_two_accounts_with_slow_uploads_do_not_keep_out_a_third(autojump_clock):
    async with open_list_shop() as shop, trio.open_nursery() as nursery:
        keys = [await other_key(shop, name) for name in ("bob", "eve")]
        statuses: list[int] = []

        async def send_slowly(key: str) -> None:
            pieces = [(0.0, b"email\n"), *([(2.0, b"known@friendly.test\n")] * 3)]
            statuses.append((await send(shop, b"", pieces=pieces, key=key)).status)

        for key in keys:
            for _ in range(8):
                nursery.start_soon(send_slowly, key)
        await trio.sleep(1)
        assert sorted(statuses) == [503] * 8
        assert (await send(shop)).status == 202
    assert sorted(statuses) == [202] * 8 + [503] * 8


async def other_key(shop: RunningService, name: str) -> str:
    account = await shop.store.create_account(f"{name}@example.org", "scale")
    return await shop.new_key("sk_live_", account.id)
