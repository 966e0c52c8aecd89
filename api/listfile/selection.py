"""The rows of a cleaned list that are written. Pure."""

from msgspec import Struct

from mailprobe.engine.address import NotAnAddress, parse
from mailprobe.engine.verdict import Light, light_of

from ..results.row_result import RowResult


class Selection(Struct, frozen=True):
    """Which rows are written: None for `lights` means all, blank rows too."""

    lights: frozenset[Light] | None = None
    has_blank: bool = False  # rows without an address are written, too
    dedupe: bool = False  # the first row of each mailbox only

    def takes(self, result: RowResult | None) -> bool:
        if self.lights is None:
            return True
        return self.has_blank if result is None else light_of(result) in self.lights


ALL_ROWS = Selection()


def mailbox_of(address: str) -> str:
    """What two spellings of the same mailbox have in common; domains have no case."""
    try:
        return parse(address).mailbox
    except NotAnAddress:
        return address
