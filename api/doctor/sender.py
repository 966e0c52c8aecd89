"""The checks of `mailprobe doctor` on the address that probes come from."""

import trio

from mailprobe.engine.settings import EngineSettings

from .blocklists import BACKSCATTER_LISTS, listings_of
from .checks import BLOCKLISTS, SPF, Check
from .dns_questions import DnsQuestions
from .spf import check_host

ADDRESS_UNKNOWN = "our public address is not known: no mail host named it"
SENDER_S = 3.0  # each check, at the same time as the others


async def check_blocklists(ours: str | None, questions: DnsQuestions) -> Check:
    """Ask the big blocklists for our address."""
    if ours is None:
        return BLOCKLISTS.skipped(ADDRESS_UNKNOWN)
    listings = await listings_of(ours, questions, SENDER_S)
    if listings.listed:
        is_backscatter = any(name in BACKSCATTER_LISTS for name in listings.listed)
        fault = "backscatter" if is_backscatter else "listed"
        return BLOCKLISTS.failed(fault, f"{ours} is on {', '.join(listings.listed)}", ours=ours)
    unknown = f"unknown, no right answer to this resolver: {', '.join(listings.silent)}"
    if not listings.clean:
        return BLOCKLISTS.skipped(unknown)
    clean = f"{ours} is not on {', '.join(listings.clean)}"
    return BLOCKLISTS.ok(f"{clean}; {unknown}" if listings.silent else clean)


async def check_spf(settings: EngineSettings, ours: str | None, questions: DnsQuestions) -> Check:
    """Does the domain of MAIL FROM permit our address? With <> it is the HELO name (RFC 7208 2.4)."""
    domain = settings.mail_from.rpartition("@")[2] or settings.helo_name
    if ours is None:
        return SPF.skipped(ADDRESS_UNKNOWN, domain)
    with trio.move_on_after(SENDER_S):
        result = await check_host(ours, domain, questions)
        if result in ("fail", "softfail", "permerror"):
            fault = "wrong record" if result == "permerror" else "not permitted"
            return SPF.failed(fault, f"{result} for {ours}", domain, ours=ours, domain=domain)
        if result in ("temperror", "unclear"):
            return SPF.skipped(SPF_SKIPPED[result], domain)
        found = "there is no record" if result == "none" else f"{result} for {ours}"
        return SPF.ok(found, domain)
    return SPF.skipped(f"no answer within {SENDER_S:g} s", domain)


SPF_SKIPPED = {
    "temperror": "the look-up failed",
    "unclear": "the record uses macros, which only a real message decides",
}
