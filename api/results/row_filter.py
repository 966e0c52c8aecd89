"""Filters for the rows of a list: by light, status, reason, and a text in their cells. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from mailprobe.engine.verdict import light_of

from .marks import KINDS, ResultKind, marks_of
from .row_result import RowResult


class RowFilter(Struct, frozen=True):
    """What a row must have, one of each; nothing given: any."""

    lights: frozenset[str] = frozenset()
    statuses: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    text: str = ""  # in lower case

    @property
    def needs_result(self) -> bool:
        return bool(self.lights or self.statuses or self.reasons)

    def takes_kind(self, kind: ResultKind) -> bool:
        return (
            (not self.lights or kind.light in self.lights)
            and (not self.statuses or kind.status in self.statuses)
            and (not self.reasons or kind.reason in self.reasons)
        )

    def takes(self, cells: Sequence[str], result: RowResult | None) -> bool:
        if result is None:
            return not self.needs_result and self.has_text(cells)
        kind = ResultKind(light_of(result), result.status, result.reason)
        return self.takes_kind(kind) and self.has_text(cells)

    def has_text(self, cells: Sequence[str]) -> bool:
        return not self.text or any(self.text in cell.lower() for cell in cells)

    @property
    def marks(self) -> frozenset[str]:
        """The marks of the kinds that it takes."""
        return marks_of(kind for kind in KINDS.values() if self.takes_kind(kind))

    @property
    def pattern(self) -> str:
        """A pattern of LIKE for stored rows with the text, and perhaps some without it.

        JSON writes some characters in another way, and SQLite knows no capitals but ASCII's.
        """
        plain = "".join(
            f"!{each}" if each in "!%_" else each if each.isascii() and each not in '"\\' else "%"
            for each in self.text
            if each.isprintable()
        )
        return f"%{plain}%"
