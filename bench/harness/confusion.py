"""Prints a confusion matrix of verdicts against the truth, for the lab's scenarios
`internet` and `sequences`.

    mailprobe lab --scenario internet > lab.json &
    ... verify every address in its "truth", one JSON object a line with "email", "status", "reason" ...
    python -m mailprobe.bench.harness.confusion lab.json results.ndjson

Some truths cannot be found out within the prober's deadlines and limits. The matrix counts
those addresses separately: see bench/lab/internet.py.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from msgspec import Struct, field

from ..lab.internet import KNOWABLE
from ..lab.scenario import Truth

UNTESTED = "untested"  # accepted, but no random name was sent: confidence 0.90
REPORTED = ("deliverable", UNTESTED, "undeliverable", "catch_all", "unknown", "invalid")
# The statuses that are correct for each truth; `unknown` always is. For a domain without
# mail, `undeliverable` is correct too.
HONEST: Mapping[Truth, frozenset[str]] = {
    Truth.EXISTS: frozenset({"deliverable", UNTESTED, "unknown"}),
    Truth.ABSENT: frozenset({"undeliverable", "unknown"}),
    Truth.CATCH_ALL: frozenset({"catch_all", UNTESTED, "unknown"}),
    Truth.NO_MAIL: frozenset({"invalid", "undeliverable", "unknown"}),
}


class KnownTruth(Struct, frozen=True):
    """The truth of each address, and the addresses whose truth can be known from outside."""

    truth: Mapping[str, Truth]
    knowable: frozenset[str]

    @classmethod
    def of(
        cls,
        truth: Mapping[str, list[str]],
        addresses: Mapping[str, list[str]],
        known_later: Iterable[str] = (),
    ) -> "KnownTruth":
        """From the lab's first line. Addresses `known_later` can be known, too."""
        known = (addresses.get(outcome.value, ()) for outcome in KNOWABLE)
        return cls(
            {address: Truth(name) for name, those in truth.items() for address in those},
            frozenset(chain(known_later, *known)),
        )


class ReportedAddress(Struct, frozen=True):
    """What was reported of an address; `why` is its reason."""

    email: str
    status: str
    why: str

    @property
    def reported_as(self) -> str:
        """The status, or UNTESTED where that is the reason."""
        return UNTESTED if self.why == UNTESTED else self.status


def unanswered(email: str) -> ReportedAddress:
    """Of an address without an answer when its list had to end."""
    return ReportedAddress(email, "unknown", "unanswered")


class Matrix(Struct):
    """The number of addresses by (truth, knowable, reported status)."""

    known: KnownTruth
    counts: Counter[tuple[Truth, bool, str]] = field(default_factory=Counter)

    @classmethod
    def of(cls, known: KnownTruth, reported: Iterable[ReportedAddress]) -> "Matrix":
        matrix = cls(known)
        for each in reported:
            matrix.add(each.email, each.reported_as)
        return matrix

    def add(self, address: str, reported: str) -> None:
        self.counts[self.known.truth[address], address in self.known.knowable, reported] += 1

    def is_lie(self, address: str, reported: str) -> bool:
        return reported not in HONEST[self.known.truth[address]]

    def lies(self, *reported: str) -> int:
        """The number of addresses with one of these statuses for which it is wrong."""
        return sum(
            count
            for (truth, _, status), count in self.counts.items()
            if status in reported and status not in HONEST[truth]
        )

    def verified(self, *, knowable: bool | None = None) -> int:
        counts = self.counts.items()
        return sum(n for (_, known, _), n in counts if knowable in (None, known))

    def unknown_count(self, *, knowable: bool) -> int:
        """Addresses that were reported as unknown, of those that can be known or of the others."""
        counts = self.counts.items()
        return sum(
            n for (_, known, status), n in counts if (known, status) == (knowable, "unknown")
        )

    @property
    def unknown_share(self) -> float:
        """Knowable addresses that were reported as unknown, in percent."""
        return 100 * self.unknown_count(knowable=True) / max(1, self.verified(knowable=True))

    def lines(self) -> Iterable[str]:
        """The matrix as text: truth × reported; rows marked `hidden` cannot be known."""
        yield f"{'true':>27} | " + " ".join(f"{reported:>13}" for reported in REPORTED)
        for truth in Truth:
            for knowable, words in ((True, ""), (False, ", hidden")):
                row = [self.counts[truth, knowable, reported] for reported in REPORTED]
                if any(row):
                    yield f"{truth.value + words:>27} | " + " ".join(f"{n:>13,}" for n in row)


def remarks(
    known: KnownTruth, kind_of: Callable[[str], str], reported: Sequence[ReportedAddress]
) -> Iterable[str]:
    """What is wrong, and what is unknown without need, by the kind of the address' host."""
    matrix = Matrix(known)
    found: Counter[tuple[str, str]] = Counter()
    for each in reported:
        truth = known.truth[each.email].value
        if matrix.is_lie(each.email, each.reported_as):
            found[kind_of(each.email), f"WRONG: {truth}, told {each.reported_as}"] += 1
        elif each.status == "unknown" and each.email in known.knowable:
            found[kind_of(each.email), f"could be known: {truth} ({each.why})"] += 1
    asked = Counter(kind_of(each.email) for each in reported)
    for (kind, what), count in sorted(found.items()):
        yield f"{kind}: {count} of {asked[kind]} {what}"


def main(lab: Path, results: Path) -> int:
    """Print the matrix; return 1 if any status is wrong, else 0."""
    first = json.loads(lab.read_text("utf-8").splitlines()[0])
    matrix = Matrix(KnownTruth.of(first["truth"], first["addresses"]))
    for line in results.read_text("utf-8").splitlines():
        result = json.loads(line)
        each = ReportedAddress(result["email"], result["status"], result.get("reason", ""))
        matrix.add(each.email, each.reported_as)
    print("\n".join(matrix.lines()))
    lies = matrix.lies(*REPORTED)
    print(f"wrong: {lies}; of the knowable told unknown: {matrix.unknown_share:.2f} %")
    return int(lies > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
