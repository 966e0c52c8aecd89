"""Facts about domains and mail hosts that processes share; none is about a mailbox or an account.

The table is bounded by the end of each fact and by the rows of each kind, 200,000 in all: about
100 MB. The oldest go first. Retention applies the bound, so there may be as many more as are
written in between.
"""

from dataclasses import dataclass

KEPT_S_MAX = 6 * 3600.0  # the longest that any engine believes a fact
KEY_MAX = 640  # characters; more is a fault of the writer
VALUE_MAX = 4096
WRITTEN_MAX = 1_000  # in one call: some milliseconds
READ_MAX = 5_000  # rows of one call

# Per kind, so that many of one kind do not displace the others.
ROWS_MAX = {
    "acceptance": 90_000,
    "route": 50_000,
    "backoff": 20_000,
    "strike": 10_000,
}


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact, for `left_s` of the store's clock. It replaces one of its kind and key that ends sooner."""

    kind: str
    key: str
    value: str
    left_s: float


@dataclass(frozen=True, slots=True)
class FactsRead:
    """Facts of other processes, the oldest first, and how far they were read."""

    facts: list[NewFact]
    last: int  # the number to continue behind
    more: bool


def is_sound(fact: NewFact) -> bool:
    """May this be stored?"""
    return (
        0 < fact.left_s <= KEPT_S_MAX
        and 0 < len(fact.key) <= KEY_MAX
        and len(fact.value) <= VALUE_MAX
        and len(fact.kind) <= KEY_MAX
        and "\0" not in fact.kind + fact.key + fact.value  # PostgreSQL's text has none
    )
