"""A full disk has one name in every answer; only a verification says that its quota is not known."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from mailprobe.api.http import listeners
from mailprobe.storage.contract import StoreFull
from mailprobe.storage.sqlite.file import as_unavailable

PATH = Path("mailprobe.db")


def error_of_full_file(tmp_path: Path) -> sqlite3.Error:
    """What SQLite raises where the file cannot grow."""
    with sqlite3.connect(tmp_path / "full.db") as db:
        db.execute("CREATE TABLE filler (octets BLOB)")
        db.execute("PRAGMA max_page_count = 4")
        with pytest.raises(sqlite3.OperationalError) as raised:
            db.execute("INSERT INTO filler VALUES (zeroblob(1000000))")
    return raised.value


def test_an_error_of_a_file_that_cannot_grow_is_a_full_store(tmp_path: Path) -> None:
    assert isinstance(as_unavailable(error_of_full_file(tmp_path), PATH), StoreFull)
    assert isinstance(as_unavailable(OSError(28, "No space left on device"), PATH), StoreFull)
    for other in (OSError(13, "Permission denied"), sqlite3.OperationalError("locked")):
        assert not isinstance(as_unavailable(other, PATH), StoreFull)


async def test_failures_to_accept_are_logged_at_most_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Failing:
        """A listener of a process without file descriptors, for 30 tries."""

        tries = 0

        async def accept(self) -> str:
            await trio.lowlevel.checkpoint()
            self.tries += 1
            if self.tries <= 30:
                raise OSError(24, "Too many open files")
            return "accepted"

    monkeypatch.setattr("time.monotonic", trio.current_time)
    accepted: Any = await listeners.accept(Failing())  # type: ignore[arg-type]  # of a listener, what is used
    assert accepted == "accepted"
    assert trio.current_time() >= 2.9
    lines = [each for each in caplog.messages if each.startswith("accept failed")]
    assert 2 <= len(lines) <= 4
    counted = sum(int(each.rpartition("=")[2]) for each in lines)
    assert counted > 20  # the last are counted in the next line
