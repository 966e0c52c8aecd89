"""Runs `clean` with a fault at one of its steps, each time in its own process.

    python -m tests.api.cli.cleaning.faulty_clean NAME FAULT FOLDER

A step is a call that opens, reads, writes, syncs, renames or removes. The clean run counts
them; then it runs again and again with the fault before one of them:

    kill      SIGKILL
    fill      no file grows any more, as on a full disk (EFBIG stands for ENOSPC)
    truncate  the list loses its second half
    replace   the list gets other rows of the same length
    rename    another file gets the list's name

After each run the program checks the list, its neighbours and the output. If the list is
unchanged, --resume must complete the run and leave nothing else behind. It prints the
number of steps tried.
"""

import io
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.errors import CommandError
from mailprobe.bench.lab.workbooks import row, sheet, text, workbook
from tests.api.fake_source import FakeSource
from tests.api.reader_in_thread import read_in_threads
from tests.seeds import seeds

STEPS_MAX = seeds(60)  # a sample of all steps, spread evenly
CALLS = frozenset(
    [
        "open",
        "read",
        "readinto",
        "readline",
        "pread",
        "write",
        "pwrite",
        "flush",
        "fsync",
        "fchmod",
        "replace",
        "rename",
        "unlink",
        "ftruncate",
        "close",
        "flock",
        "stat",
        "fstat",
        "writestr",
    ]
)
EMAILS = [f"a{number}@shop.test" for number in range(12)]
LISTS: dict[str, bytes] = {
    "list.csv": ("name,email\n" + "".join(f'"A, {e}",{e}\n' for e in EMAILS)).encode(),
    "list.ndjson": "".join(f'{{"email":"{e}"}}\n' for e in EMAILS).encode(),
    "list.xlsx": workbook(
        {
            "s": sheet(
                row(1, text("A1", "n"), text("B1", "email")),
                *(row(n, text(f"A{n}", "x"), text(f"B{n}", e)) for n, e in enumerate(EMAILS, 2)),
            )
        }
    ),
}
NEIGHBOURS = {"out.part": b"precious", "list.part": b"precious too"}


class Place:
    """A folder with a list and other files beside it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.list = folder / name
        self.output = folder / f"out{self.list.suffix}"
        self.octets = LISTS[name]

    def lay_out(self, before: bytes | None) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self.list.write_bytes(self.octets)
        for name, octets in NEIGHBOURS.items():
            (self.folder / f"{name}{self.list.suffix}").write_bytes(octets)
        if before is not None:
            self.output.write_bytes(before)

    def clean(self, *, resume: bool = False) -> int:
        order = Order(self.list, self.output, resume=resume, force=True)
        try:
            clean_list(order, FakeSource().open, standard_output=io.BytesIO())
        except CommandError as fault:
            return fault.exit_code if "\n" not in fault.message else 98
        return 0

    def apart(self, prepare: Callable[[], Any], *, resume: bool = False) -> int:
        """Clean in a separate process; return its exit code, or the negated signal number."""
        child = os.fork()
        if not child:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                prepare()
                code = self.clean(resume=resume)
            except BaseException:
                code = 99
            sys.setprofile(None)
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_step(number: int, act: Callable[[], None], reached: Callable[[int], None]) -> None:
    """Call `act` before the n-th step, and `reached` at each step."""
    count = 0

    def watch(_: Any, event: str, what: Any) -> None:
        nonlocal count
        if event == "c_call" and what.__name__ in CALLS:
            count += 1
            reached(count)
            if count == number:
                sys.setprofile(None)
                act()

    sys.setprofile(watch)


def count_steps(place: Place) -> int:
    counts, into = os.pipe()

    def mark(_: int) -> None:
        os.write(into, b".")

    place.apart(lambda: at_step(-1, lambda: None, mark))
    os.set_blocking(counts, False)
    return len(os.read(counts, 1 << 20))


def faults(place: Place) -> dict[str, Callable[[], None]]:
    other = place.octets[::-1]

    def rename() -> None:
        beside = place.folder / "other"
        beside.write_bytes(other)
        os.replace(beside, place.list)

    def rewrite() -> None:
        place.list.write_bytes(other)

    return {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "fill": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1)),
        "truncate": lambda: os.truncate(place.list, len(place.octets) // 2),
        "replace": rewrite,
        "rename": rename,
    }


def changed(octets: bytes) -> tuple[bytes, bytes]:
    return octets[: len(octets) // 2], octets[::-1]


def outputs_of(place: Place, octets: bytes) -> bytes | None:
    """Return the outputs that are right if the list changed before it was first read."""
    place.lay_out(None)
    place.list.write_bytes(octets)
    place.apart(lambda: None)
    return place.output.read_bytes() if place.output.exists() else None


def check(
    place: Place, fault: str, code: int, rights: set[bytes | None], before: bytes | None
) -> None:
    """Check the files that the user has after the fault."""
    now = place.list.read_bytes()
    if fault in ("kill", "fill"):
        assert now == place.octets, "the list was changed"
    else:
        assert now in (place.octets, *changed(place.octets)), "the list was changed by the cleaning"
    for name, octets in NEIGHBOURS.items():
        assert (place.folder / f"{name}{place.list.suffix}").read_bytes() == octets, name
    output = place.output.read_bytes() if place.output.exists() else None
    assert output is None or output == before or output in rights, (
        "an output that is neither the old one nor right"
    )
    assert code in ((0, 1, 2) if fault != "kill" else (0, -signal.SIGKILL)), code
    assert code != 0 or (output is not None and output in rights), (
        "it ended well without its output"
    )


def main(words: list[str]) -> None:
    name, fault, folder = words
    read_in_threads(pytest.MonkeyPatch())
    place = Place(Path(folder), name)
    place.lay_out(None)
    steps = count_steps(place)
    assert place.output.exists(), "the run without a fault failed"
    wanted = place.output.read_bytes()
    names = sorted(path.name for path in place.folder.iterdir())
    rights = {wanted, *(outputs_of(place, octets) for octets in changed(place.octets))}
    act = faults(place)[fault]
    tried = range(1, steps + 1, max(1, steps // STEPS_MAX))
    for step in tried:
        before = b"an earlier output" if step % 2 else None
        place.lay_out(before)
        code = place.apart(lambda step=step: at_step(step, act, lambda _: None))  # type: ignore[misc]
        try:
            check(place, fault, code, rights, before)
            if place.list.read_bytes() == place.octets:
                assert place.apart(lambda: None, resume=True) == 0, "--resume failed"
                assert place.output.read_bytes() == wanted, "--resume gave another output"
                left = sorted(path.name for path in place.folder.iterdir())
                assert left == names, f"left behind: {left}"
        except AssertionError as error:
            raise AssertionError(f"{fault} before step {step} of {steps}: {error}") from error
    print(len(tried))


if __name__ == "__main__":
    main(sys.argv[1:])
