"""Names of holders: which processes are known to have ended, and which must not be judged."""

import os
from pathlib import Path

import pytest

from mailprobe.storage.base import lease_holders
from mailprobe.storage.base.lease_holders import is_gone, new_holder
from tests.storage.other_process import other_process


def parts_of(holder: str) -> tuple[str, str, str, str]:
    """The place, the process's id, its start and the token."""
    rest, _, token = holder.rpartition("/")
    place, _, process = rest.rpartition("/")
    pid, _, started = process.partition("@")
    return place, pid, started, token


def test_a_name_is_new_each_time_and_its_process_lives():
    assert new_holder() != new_holder()
    assert not is_gone(new_holder())


def test_a_killed_process_is_gone_before_it_is_reaped_and_after():
    with other_process() as other:
        assert not is_gone(other.holder)
        other.kill()
        while not is_gone(other.holder):  # its last thread ends a moment after its files
            os.sched_yield()
        other.reap()
        assert is_gone(other.holder)


def test_an_id_that_another_process_has_now_is_of_a_process_that_is_gone():
    place, pid, started, token = parts_of(new_holder())
    assert is_gone(f"{place}/{pid}@{int(started) - 1}/{token}")


def test_a_holder_elsewhere_is_never_judged():
    """Of another machine, another boot, another container, or of an older version of the program."""
    with other_process() as other:
        other.kill()
        other.reap()
    place, pid, started, token = parts_of(other.holder)
    boot, *_ = place.split(":")
    for elsewhere in (
        place.replace(boot, "00000000-0000-4000-8000-000000000000"),
        place.replace("pid:[", "pid:[1"),
        f"{place}1",
    ):
        assert not is_gone(f"{elsewhere}/{pid}@{started}/{token}")
    assert not is_gone(token)
    assert not is_gone("")


@pytest.mark.parametrize("lines", [None, "1 (systemd) S 0 1 1 0 -1 4194560", "no process"])
def test_a_process_hidden_from_proc_is_gone_only_if_the_kernel_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: str | None
):
    """It may hide other users' processes; then only the kernel's word that there is none counts."""
    holder = new_holder()
    place, _, started, token = parts_of(holder)
    lease_holders.place_of_process()
    monkeypatch.setattr(lease_holders, "PROC", tmp_path)
    if lines is not None:
        folder = tmp_path / str(os.getpid())
        folder.mkdir()
        (folder / "stat").write_text(lines)
    assert not is_gone(holder)
    with other_process() as other:
        other.kill()
        other.reap()
    assert is_gone(f"{place}/{parts_of(other.holder)[1]}@{started}/{token}")


def test_without_proc_a_name_is_only_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(lease_holders, "PROC", tmp_path)
    monkeypatch.setattr(
        lease_holders, "place_of_process", lease_holders.place_of_process.__wrapped__
    )
    assert "/" not in new_holder()
    assert not is_gone(new_holder())


def test_a_thread_that_still_runs_keeps_a_process_whose_first_thread_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Its connections close when the last one ends."""
    place, pid, started, token = parts_of(new_holder())
    monkeypatch.setattr(lease_holders, "PROC", tmp_path)
    (tmp_path / pid).mkdir()
    for threads, gone in ((2, False), (1, True)):
        words = ["Z", *["0"] * 16, str(threads), "0", started]
        (tmp_path / pid / "stat").write_text(f"{pid} (a ) Z 1 (b) {' '.join(words)}")
        assert is_gone(f"{place}/{pid}@{started}/{token}") is gone
