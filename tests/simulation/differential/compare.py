"""Two commits of the probing core play the same worlds; what differs is printed.

The worlds are those of this checkout. The other one, another worktree, brings its engine, its
scripted hosts and what its own tests demand of an engine that is idle.
"""

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from tests.simulation.differential.record import Record, differences, play
from tests.simulation.differential.worlds import BUILDERS

HERE = Path(__file__).parents[3]
SHOWN_MAX = 5  # worlds that are printed in full
# In the other worktree this module and its worlds take the place of those there.
CHILD = """
import sys
here, there, *arguments = sys.argv[1:]
sys.path.insert(0, there)
import tests.simulation
tests.simulation.__path__.insert(0, here + "/tests/simulation")
from tests.simulation.differential import compare
compare.play_for_parent(arguments)
"""

Write = Callable[[str], object]


class Played(msgspec.Struct, frozen=True):
    """One world, as it is handed from one process to the other."""

    name: str
    record: Record | None  # None: it ended in an error,
    text: str  # which this says
    times: str


class Player(msgspec.Struct, frozen=True):
    """A process that plays worlds with the engine of one checkout."""

    process: subprocess.Popen[bytes]

    def worlds(self) -> Iterator[Played]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield msgspec.json.decode(line, type=Played)


def dealt(count: int, first: int) -> list[tuple[str, int]]:
    """So many worlds, of all kinds in turn, with seeds from `first` on."""
    kinds = list(BUILDERS)
    return [(kinds[place % len(kinds)], first + place // len(kinds)) for place in range(count)]


def play_for_parent(arguments: Sequence[str]) -> None:
    """Play the worlds that are named in pairs, and write a line for each."""
    for kind, seed in json.loads(arguments[0]):
        try:
            world = play(kind, seed)
            played = Played(f"{kind}/{seed}", world.record, world.text, world.times)
        except Exception as error:  # of one world: a broken invariant, too, is a difference
            played = Played(f"{kind}/{seed}", None, repr(error), "")
        sys.stdout.buffer.write(msgspec.json.encode(played) + b"\n")
        sys.stdout.flush()


def start(tree: Path, worlds: Sequence[tuple[str, int]]) -> Player:
    # Sets of words are in the same order in both.
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", CHILD, str(HERE), str(tree), json.dumps(worlds)]
    return Player(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tree, env=environment))


def compare(other: Path, worlds: Sequence[tuple[str, int]], write: Write) -> int:
    """Compare the other worktree's engine with this one's; return how many worlds differ."""
    players = start(other, worlds), start(HERE, worlds)
    differ = shown = late = played = 0
    for before, now in zip(players[0].worlds(), players[1].worlds(), strict=True):
        played += 1
        late += before.times != now.times
        if before.record is None or now.record is None:
            found = [each.text for each in (before, now) if each.record is None]
            if before.text == now.text:
                found = []
        else:
            found = differences(before.record, now.record)
        if not found:
            continue
        differ += 1
        write(f"{now.name}\n" + "".join(f"  {each}\n" for each in found))
        if shown < SHOWN_MAX:
            shown += 1
            old, new = before.text.splitlines(), now.text.splitlines()
            write(
                "".join(
                    f"    {line}\n"
                    for line in difflib.unified_diff(old, new, "before", "now", n=1, lineterm="")
                )
            )
    if played < len(worlds):
        raise SystemExit(f"only {played} of {len(worlds)} worlds were played: see the error above")
    write(f"{played} worlds, {differ} differ; in {late} a line has another time\n")
    return differ
