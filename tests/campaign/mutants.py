"""Faults in the code on purpose, one at a time: does what is for it find each?

    python -m tests.campaign.mutants --list
    python -m tests.campaign.mutants --run settled-again [NAME …]
    python -m tests.campaign.mutants --run all

A mutant is put into a copy of the tree, and what finds it is run there: it has to fail. The table is
`mutants.toml`.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("mutants.toml")
CAMPAIGN = "campaign "  # and the name of a fault
CAMPAIGN_MINUTES = "0.2"
RUN_S = 900
LINES = 12  # of the output that are shown
# What is not in the copy: nothing of it is needed, or it is large.
LEFT_OUT = (
    ".git",
    ".venv*",
    ".peers",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
)


class WrongMutant(Exception):
    """A row of the table that is of no use: one line."""


class Mutant(Struct, frozen=True):
    """One change, and what finds it: a test file, or `campaign` with a fault."""

    name: str
    says: str
    file: str
    before: str
    after: str
    found_by: str

    def put_into(self, root: Path) -> None:
        """Change the file below this folder. Raises WrongMutant."""
        path = root / self.file
        text = path.read_text("utf-8") if path.is_file() else ""
        if text.count(self.before) != 1:
            raise WrongMutant(f"{self.name}: {self.file} has {text.count(self.before)} such places")
        path.write_text(text.replace(self.before, self.after), "utf-8")

    def command(self) -> list[str]:
        if self.found_by.startswith(CAMPAIGN):
            fault = self.found_by.removeprefix(CAMPAIGN)
            words = ["tests.campaign", "--seed", "1", "--minutes", CAMPAIGN_MINUTES]
            return [sys.executable, "-m", *words, "--fault", fault]
        words = ["pytest", "--quiet", "--exitfirst", "-p", "no:cacheprovider", self.found_by]
        return [sys.executable, "-m", *words]


def mutants() -> list[Mutant]:
    """All rows of the table."""
    rows = tomllib.loads(TABLE.read_text("utf-8"))["mutant"]
    return [Mutant(**row) for row in rows]


@contextmanager
def copy_of_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mailprobe-mutant-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        yield copy


def is_found(mutant: Mutant) -> bool:
    """Run what finds the mutant, in a copy that has it. Raises WrongMutant if it cannot run."""
    with copy_of_tree() as copy:
        mutant.put_into(copy)
        done = subprocess.run(
            mutant.command(), cwd=copy, capture_output=True, text=True, timeout=RUN_S
        )
    if done.returncode not in (0, 1):  # such as a test file that is gone
        raise WrongMutant("\n".join([mutant.name, *_last(done)]))
    if done.returncode:
        print(*_why(done), sep="\n", file=sys.stderr)
    return done.returncode == 1


def _why(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """What has failed: the tests, or what the campaign found."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return lines or [line[:200] for line in done.stderr.splitlines()][1:3]


def _last(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-LINES:]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.mutants")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--run", nargs="+", default=[], metavar="NAME")
    given = parser.parse_args(words)
    table = {mutant.name: mutant for mutant in mutants()}
    if given.list or not given.run:
        for mutant in table.values():
            print(f"{mutant.name:28} {mutant.found_by:46} {mutant.says}")
        return 0
    missed = []
    for name in table if given.run == ["all"] else given.run:
        found = is_found(table[name])
        print(f"{name}: {'found' if found else 'NOT FOUND'} by {table[name].found_by}", flush=True)
        missed += [] if found else [name]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
