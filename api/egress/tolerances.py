"""Tolerances of mail hosts for refused recipients, for the operator: from the store, or an engine."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from mailprobe.engine.smtp.tolerance.hosts import SpentBudget
    from mailprobe.storage.tolerances import HostTolerance

LEARNED_FROM_BAN = "learned from a ban"


class ShownTolerance(Struct, frozen=True):
    """One egress at one host."""

    egress: str
    host: str
    label: str  # of what is known of the host
    recent: int  # refused within ten minutes, by all processes
    hour: int  # within an hour
    tolerance: int  # refusals in ten minutes
    is_careful: bool
    rest_left_s: float

    @property
    def why(self) -> str:
        return LEARNED_FROM_BAN if self.is_careful else ""


def shown_tolerances(
    kept: "Iterable[HostTolerance]", own: "Iterable[SpentBudget]" = ()
) -> list[ShownTolerance]:
    """The hosts that have refused recipients within the hour, or have banned us; those first.

    `own`: what this process knows, where the store does not know the host.
    """
    from mailprobe.engine.smtp.tolerance.bans import rest_left_s

    found = {
        (each.egress, each.name): ShownTolerance(
            each.egress, each.name, each.label, each.recent, each.refused, each.tolerance,
            each.is_careful, each.rest_left_s,
        )
        for each in own
    }  # fmt: skip
    for each in kept:
        found[each.egress, each.host] = ShownTolerance(
            each.egress, each.host, each.learned.label, each.refused, each.refused_hour,
            each.tolerance, each.learned.careful, rest_left_s(each.learned.ban_ages_s),
        )  # fmt: skip
    return sorted(
        (each for each in found.values() if each.hour or each.rest_left_s),
        key=lambda each: (-each.rest_left_s, each.tolerance - each.recent, -each.hour, each.host),
    )
