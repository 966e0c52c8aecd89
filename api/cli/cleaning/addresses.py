"""The distinct addresses of a list: which are answered, and which to ask about again. Pure."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from mailprobe.api.cli.source import domain_of

NOT_VERIFIED = -1
FINAL = 0.0  # in the place of a due time


@dataclass(slots=True)
class DistinctAddresses:
    """The distinct addresses of a list, each with the offset of its answer in the journal.

    An answer that time may better has a due time, when its address is asked about again.
    """

    rows: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    due_at: "array[float]" = field(default_factory=lambda: array("d"))  # Unix time, or FINAL
    answered: int = 0

    def add(self, address: str) -> None:
        self.rows += 1
        if address and address not in self.numbers:
            self.numbers[address] = len(self.offsets)
            self.offsets.append(NOT_VERIFIED)
            self.due_at.append(FINAL)

    def offset(self, address: str) -> int | None:
        """The offset of its answer; None if it has none yet."""
        offset = self.offsets[self.numbers[address]]
        return None if offset == NOT_VERIFIED else offset

    def record(self, address: str, offset: int, due_at: float) -> None:
        """Record an answer; the last one counts."""
        number = self.numbers[address]
        self.answered += self.offsets[number] == NOT_VERIFIED
        self.offsets[number] = offset
        self.due_at[number] = due_at

    def forget(self, end: int) -> None:
        """Take the answers from this offset on as not given."""
        for number, offset in enumerate(self.offsets):
            if offset >= end:
                self.offsets[number] = NOT_VERIFIED
                self.due_at[number] = FINAL
                self.answered -= 1

    def unanswered(self) -> list[str]:
        return [
            address
            for address, number in self.numbers.items()
            if self.offsets[number] == NOT_VERIFIED
        ]

    def passing(self) -> list[str]:
        """The addresses that are to be asked about again."""
        return [address for address, number in self.numbers.items() if self.due_at[number]]

    def last_due_at(self) -> float:
        """When the last of them is due, in Unix time."""
        return max(self.due_at, default=FINAL)


def first_of_domains(addresses: Iterable[str], domains_max: int) -> list[str]:
    """The first address of each of the first domains."""
    found: dict[str, str] = {}
    for address in addresses:
        found.setdefault(domain_of(address), address)
        if len(found) == domains_max:
            break
    return list(found.values())
