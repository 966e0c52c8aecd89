"""Is our address on one of the blocklists that mail hosts use? (RFC 5782)

A list that does not answer our resolver says "not listed" for every address, and one that has
ended may list every address. So each list's test entries are asked for first (RFC 5782 5): one
that is always listed, and one that never is. If a list fails either test, its answer about our address is ignored.
"""

from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address

import trio
from msgspec import Struct, field

from .at_once import all_at_once
from .dns_questions import DnsFailed, DnsQuestions

LISTS = {
    "Spamhaus ZEN": "zen.spamhaus.org",
    "SpamCop": "bl.spamcop.net",
    "Barracuda": "b.barracudacentral.org",
    "PSBL": "psbl.surriel.com",
}
# Lists of hosts that send bounces or verify senders, which both have the null sender.
BACKSCATTER_LISTS = {
    "Backscatterer": "ips.backscatterer.org",
    "SEM-Backscatter": "backscatter.spameatingmonkey.net",
}
# By address family: the entry that each list has, and the one that none has.
TEST_ENTRIES = {4: ("127.0.0.2", "127.0.0.1"), 6: ("::ffff:7f00:2", "::ffff:7f00:1")}
ANSWERS = "127.0.0."  # other networks of 127/8 stand for errors, such as Spamhaus' 127.255.255


class Listings(Struct):
    """What the lists say of an address; those whose test entries are wrong are `silent`."""

    listed: list[str] = field(default_factory=list)
    clean: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


async def listings_of(address: str, questions: DnsQuestions, list_s: float) -> Listings:
    """Ask all lists at once; one that takes longer than `list_s` does not answer us."""
    lists = LISTS | BACKSCATTER_LISTS

    async def query(zone: str) -> bool | None:
        with trio.move_on_after(list_s):
            return await _is_listed(address, zone, questions)
        return None

    found = await all_at_once(partial(query, zone) for zone in lists.values())
    listings = Listings()
    group = {True: listings.listed, False: listings.clean, None: listings.silent}
    for name, is_listed in zip(lists, found, strict=True):
        group[is_listed].append(name)
    return listings


async def _is_listed(address: str, zone: str, questions: DnsQuestions) -> bool | None:
    """None if the list does not answer us, or answers anything."""
    always, never = TEST_ENTRIES[ip_address(address).version]
    try:
        if not _is_entry(await questions.records(entry_of(always, zone), "A")):
            return None
        if await questions.records(entry_of(never, zone), "A"):
            return None
        records = await questions.records(entry_of(address, zone), "A")
    except DnsFailed:
        return None
    if not records:
        return False
    # Another answer is an error, such as a limit of queries that is used up by now.
    return True if _is_entry(records) else None


def _is_entry(records: Sequence[str]) -> bool:
    return any(record.startswith(ANSWERS) for record in records)


def entry_of(address: str, zone: str) -> str:
    """The name under which a list has an address: `2.0.0.127.zen.spamhaus.org` (RFC 5782 2.1, 2.4)."""
    name = ip_address(address).reverse_pointer
    return f"{name.removesuffix('.in-addr.arpa').removesuffix('.ip6.arpa')}.{zone}"
