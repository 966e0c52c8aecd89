"""What was told of the addresses of the lab's scenario `internet`, beside what is true.

    mailprobe lab --scenario internet > lab.json &
    ... verify every address in its "truth", one JSON object a line with "email" and "status" ...
    python -m mailprobe.bench.harness.confusion lab.json results.ndjson

prints the confusion matrix. What an address is, is one thing; whether a prober that keeps
to its clocks and limits can know it is another: see bench/lab/internet.py.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mailprobe.bench.lab.internet import KNOWABLE
from mailprobe.bench.lab.scenario import Truth

REPORTED = ("deliverable", "undeliverable", "catch_all", "unknown", "invalid")
# What is no lie; `unknown` never is one. Who says that an address at a domain without mail
# can't be delivered to is right, too.
HONEST: Mapping[Truth, frozenset[str]] = {
    Truth.EXISTS: frozenset({"deliverable", "unknown"}),
    Truth.ABSENT: frozenset({"undeliverable", "unknown"}),
    Truth.CATCH_ALL: frozenset({"catch_all", "unknown"}),
    Truth.NO_MAIL: frozenset({"invalid", "undeliverable", "unknown"}),
}


@dataclass(frozen=True, slots=True)
class KnownTruth:
    """What is true of each address, and of which one can know it from outside."""

    truth: Mapping[str, Truth]
    knowable: frozenset[str]

    @classmethod
    def of(cls, truth: Mapping[str, list[str]], addresses: Mapping[str, list[str]]) -> "KnownTruth":
        """From the lab's first line."""
        return cls(
            {address: Truth(name) for name, known in truth.items() for address in known},
            frozenset(a for outcome in KNOWABLE for a in addresses.get(outcome.value, ())),
        )


@dataclass(slots=True)
class Matrix:
    """How often each truth was told as what; (truth, knowable, told) -> addresses."""

    known: KnownTruth
    counts: Counter[tuple[Truth, bool, str]] = field(default_factory=Counter)

    def add(self, address: str, reported: str) -> None:
        self.counts[self.known.truth[address], address in self.known.knowable, reported] += 1

    def is_lie(self, address: str, reported: str) -> bool:
        return reported not in HONEST[self.known.truth[address]]

    def lies(self, *reported: str) -> int:
        """Addresses told to be one of these that are something else."""
        return sum(
            count
            for (truth, _, status), count in self.counts.items()
            if status in reported and status not in HONEST[truth]
        )

    def verified(self, *, knowable: bool | None = None) -> int:
        counts = self.counts.items()
        return sum(n for (_, known, _), n in counts if knowable in (None, known))

    @property
    def unknown_share(self) -> float:
        """Of those that can be known, in percent."""
        counts = self.counts.items()
        unknown = sum(n for (_, known, reported), n in counts if known and reported == "unknown")
        return 100 * unknown / max(1, self.verified(knowable=True))

    def lines(self) -> Iterable[str]:
        """The matrix for a person: true × told, and which of them nobody could know."""
        yield f"{'true':>27} | " + " ".join(f"{reported:>13}" for reported in REPORTED)
        for truth in Truth:
            for knowable, words in ((True, ""), (False, ", hidden")):
                row = [self.counts[truth, knowable, reported] for reported in REPORTED]
                if any(row):
                    yield f"{truth.value + words:>27} | " + " ".join(f"{n:>13,}" for n in row)


def main(lab: Path, results: Path) -> int:
    """Print the matrix; 1 where anything is told that is not so."""
    first = json.loads(lab.read_text("utf-8").splitlines()[0])
    matrix = Matrix(KnownTruth.of(first["truth"], first["addresses"]))
    for line in results.read_text("utf-8").splitlines():
        reported = json.loads(line)
        matrix.add(reported["email"], reported["status"])
    print("\n".join(matrix.lines()))
    lies = matrix.lies(*REPORTED)
    print(f"wrong: {lies}; of the knowable told unknown: {matrix.unknown_share:.2f} %")
    return int(lies > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
