"""Is our address on one of the blocklists that mail hosts use? (RFC 5782)

A list that does not answer our resolver says "not listed" for every address, so each list's
test entry (127.0.0.2, RFC 5782 5) is asked for as well: without it the list is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

import trio

from mailprobe.api.cli.sender.dns_questions import DnsFailed, DnsQuestions

LISTS = {
    "Spamhaus ZEN": "zen.spamhaus.org",
    "SpamCop": "bl.spamcop.net",
    "Barracuda": "b.barracudacentral.org",
    "PSBL": "psbl.surriel.com",
}
TEST_ENTRY = "127.0.0.2"
ANSWERS = "127.0.0."  # other networks of 127/8 stand for errors, such as Spamhaus' 127.255.255


@dataclass(slots=True)
class Listings:
    """What the lists say of an address; those that do not answer us are `silent`."""

    listed: list[str] = field(default_factory=list)
    clean: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


async def listings_of(
    address: str, questions: DnsQuestions, lists: Sequence[tuple[str, str]] = tuple(LISTS.items())
) -> Listings:
    """Ask all lists at once."""
    found: dict[str, bool | None] = {}

    async def query(name: str, zone: str) -> None:
        found[name] = await _is_listed(address, zone, questions)

    async with trio.open_nursery() as nursery:
        for name, zone in lists:
            nursery.start_soon(query, name, zone)
    listings = Listings()
    for name, _ in lists:
        group = {True: listings.listed, False: listings.clean, None: listings.silent}
        group[found[name]].append(name)
    return listings


async def _is_listed(address: str, zone: str, questions: DnsQuestions) -> bool | None:
    """None if the list does not answer us."""
    try:
        if _is_entry(await questions.records(entry_of(address, zone), "A")):
            return True
        test = await questions.records(entry_of(TEST_ENTRY, zone), "A")
    except DnsFailed:
        return None
    return False if _is_entry(test) else None


def _is_entry(records: Sequence[str]) -> bool:
    return any(record.startswith(ANSWERS) for record in records)


def entry_of(address: str, zone: str) -> str:
    """The name under which a list has an address: `2.0.0.127.zen.spamhaus.org` (RFC 5782 2.1, 2.4)."""
    name = ip_address(address).reverse_pointer
    return f"{name.removesuffix('.in-addr.arpa').removesuffix('.ip6.arpa')}.{zone}"
