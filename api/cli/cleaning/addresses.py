"""The distinct addresses of a list: which are answered, and which to ask about again. Pure."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from msgspec import Struct, field

from ...results.row_result import domain_of

NOT_VERIFIED = -1
FINAL = 0.0  # in the place of a due time
NO_ADDRESS = -1  # in the place of the number, or of the offset, of a row's address
ROWS_AT_ONCE = 8_192
TOGETHER_S = 5.0  # hosts that take more within it are asked in one pass
ATTEMPTS_COUNTED_MAX = 255  # an octet each; there are fewer passes


class DistinctAddresses(Struct):
    """The distinct addresses of a list, each with the offset of its answer in the journal.

    An answer that time may better has a due time, when its address is asked about again.
    """

    # Of the address of each row, or of each address of its cells.
    row_numbers: "array[int]" = field(default_factory=lambda: array("i"))
    numbers: dict[str, int] = field(default_factory=dict)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    due_at: "array[float]" = field(default_factory=lambda: array("d"))  # Unix time, or FINAL
    # Without those after which it waited for its mail host; 0: not asked about.
    attempts: "array[int]" = field(default_factory=lambda: array("B"))
    waits: "array[int]" = field(default_factory=lambda: array("B"))  # 1: for its mail host
    answered: int = 0
    rows: int = 0
    blank: int = 0  # rows without an address

    def add(self, address: str) -> None:
        """Add a row with one address; "" is one without."""
        self.rows += 1
        self.blank += not address
        self._add(address)

    def add_cells(
        self, texts: Sequence[str], more: Mapping[int, Sequence[str]], columns: int = 1
    ) -> None:
        """Add rows: the address of each of their cells, "" without one.

        `more` has the further addresses of a cell, by its place in `texts`.
        """
        if columns == 1 and not more:
            for text in texts:
                self.add(text)
            return
        for first in range(0, len(texts), columns):
            self.rows += 1
            self.blank += not any(texts[first : first + columns])
            for place in range(first, first + columns):
                self._add(texts[place])
                for text in more.get(place, ()):
                    self._add(text)

    def _add(self, address: str) -> None:
        number = self.numbers.get(address, NO_ADDRESS)
        if address and number == NO_ADDRESS:
            number = self.numbers[address] = len(self.offsets)
            self.offsets.append(NOT_VERIFIED)
            self.due_at.append(FINAL)
            self.attempts.append(0)
            self.waits.append(0)
        self.row_numbers.append(number)

    def row_offsets(self) -> Iterator[bytes]:
        """For each address of the rows the offset of its answer, as octets of array("q").

        NO_ADDRESS stands for a cell without one.
        """
        offsets = self.offsets
        for start in range(0, len(self.row_numbers), ROWS_AT_ONCE):
            numbers = self.row_numbers[start : start + ROWS_AT_ONCE]
            found = (offsets[number] if number >= 0 else NO_ADDRESS for number in numbers)
            yield array("q", found).tobytes()

    def answers(self) -> Iterator[tuple[int, int]]:
        """The offset of each answer, and how many rows have it."""
        rows = array("i", bytes(4 * len(self.offsets)))
        for number in self.row_numbers:
            if number >= 0:
                rows[number] += 1
        return zip(self.offsets, rows, strict=True)

    def offset(self, address: str) -> int | None:
        """The offset of its answer; None if it has none yet."""
        offset = self.offsets[self.numbers[address]]
        return None if offset == NOT_VERIFIED else offset

    def record(
        self, address: str, offset: int, due_at: float, attempts: int = 1, *, waits: bool = False
    ) -> None:
        """Record an answer, the result of so many attempts; the last one counts.

        `waits`: it is asked about again when its mail host takes more.
        """
        number = self.numbers[address]
        self.answered += self.offsets[number] == NOT_VERIFIED
        self.offsets[number] = offset
        self.due_at[number] = due_at
        self.attempts[number] = min(attempts, ATTEMPTS_COUNTED_MAX)
        self.waits[number] = waits

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

    def waiting(self) -> list[str]:
        """Those of them that wait for their mail hosts."""
        return [address for address in self.passing() if self.waits[self.numbers[address]]]

    def next_pass(self) -> list[str]:
        """Those of them that are asked about next.

        Those that wait for their mail hosts, as soon as the first host takes more. Of the others,
        those that were asked about least often, together: a run that was continued within a pass
        has some whose turn comes after a longer wait.
        """
        passing = self.passing()
        waiting = [address for address in passing if self.waits[self.numbers[address]]]
        others = [address for address in passing if not self.waits[self.numbers[address]]]
        fewest = min((self.attempts[self.numbers[address]] for address in others), default=0)
        others = [address for address in others if self.attempts[self.numbers[address]] == fewest]
        first = min((self.due_at[self.numbers[address]] for address in waiting), default=inf)
        if others and self.last_due_at(others) <= first:
            return others
        return [
            address
            for address in waiting
            if self.due_at[self.numbers[address]] <= first + TOGETHER_S
        ]

    def last_due_at(self, addresses: Iterable[str]) -> float:
        """When the last of these is due, in Unix time."""
        return max((self.due_at[self.numbers[address]] for address in addresses), default=FINAL)


def first_of_domains(addresses: Iterable[str], domains_max: int) -> list[str]:
    """The first address of each of the first domains."""
    found: dict[str, str] = {}
    for address in addresses:
        found.setdefault(domain_of(address), address)
        if len(found) == domains_max:
            break
    return list(found.values())
