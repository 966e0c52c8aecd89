"""Records the probing core, or compares two commits of it: dev/engine.md says when.

python -m tests.simulation.differential record
python -m tests.simulation.differential compare ../before --worlds 1000 --first 100
"""

import argparse
import sys
from pathlib import Path

from tests.simulation.differential.compare import HERE, compare, dealt
from tests.simulation.differential.record import differences, play
from tests.simulation.differential.recordings import (
    PATH,
    name_of,
    read_recordings,
    recorded_worlds,
    write_recordings,
)


def record() -> None:
    before = read_recordings() if PATH.exists() else {}
    records = {name_of(*world): play(*world).record for world in recorded_worlds()}
    for name, now in records.items():
        if name in before and (found := differences(before[name], now)):
            sys.stdout.write(f"{name}\n" + "".join(f"  {each}\n" for each in found))
    write_recordings(records)
    sys.stdout.write(f"{PATH}: {len(records)} worlds\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.differential")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="write the recordings anew, and print what has changed")
    comparison = commands.add_parser("compare", help="compare another worktree with this one")
    comparison.add_argument("other", type=Path, help="a worktree of the commit before")
    comparison.add_argument("--worlds", type=int, default=200, help="how many (default 200)")
    comparison.add_argument(
        "--first", type=int, default=100, help="the first seed; those below 12 are recorded"
    )
    options = parser.parse_args()
    if options.command == "record":
        record()
        return 0
    other = options.other.resolve()
    if not (other / "tests/simulation").is_dir():
        parser.error(
            f"{other} is no checkout of mailprobe; make one: git worktree add {other} COMMIT"
        )
    sys.stdout.write(f"before: {other}\nnow:    {HERE}\n")
    return bool(compare(other, dealt(options.worlds, options.first), sys.stdout.write))


if __name__ == "__main__":
    sys.exit(main())
