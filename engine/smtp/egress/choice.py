"""The egress of a domain, chosen by weighted rendezvous hashing. Pure.

Every process makes the same choice, so a domain's catch-all test is made by one egress. An
egress that is left out gives its domains to all others in proportion to their weights, and no
other domain moves.
"""

from hashlib import blake2b
from math import log

_MASK = (1 << 64) - 1


def seed_of(name: str) -> int:
    """A number for a name; the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def score(domain: int, egress: int, weight: float) -> float:
    """How well the egress of this seed fits the domain of that seed; the highest is chosen."""
    mixed = domain ^ egress  # then the last steps of SplitMix64: each bit depends on all
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return -weight / log(((mixed ^ mixed >> 31) + 0.5) / 2**64)
