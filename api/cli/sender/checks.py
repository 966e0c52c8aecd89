"""The checks of `mailprobe doctor` on the address that probes come from."""

from dataclasses import dataclass
from typing import Literal

import trio

from mailprobe.api.cli.sender.blocklists import Listings, listings_of
from mailprobe.api.cli.sender.dns_questions import DnsQuestions
from mailprobe.api.cli.sender.spf import check_host
from mailprobe.engine.settings import EngineSettings

SENDER_S = 3.0  # each check, at the same time as the others


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `advice` if it failed."""

    check: str
    status: Literal["ok", "failed", "skipped"]
    found: str
    advice: str | None = None


async def check_blocklists(ours: str | None, questions: DnsQuestions) -> Check:
    """Ask the big blocklists for our address."""
    name = "blocklists"
    if ours is None:
        return Check(name, "skipped", "our public address is not known: no mail host named it")
    listings = Listings()
    with trio.move_on_after(SENDER_S) as waiting:
        listings = await listings_of(ours, questions)
    if waiting.cancelled_caught:
        return Check(name, "skipped", f"no answer within {SENDER_S:g} s")
    if listings.listed:
        advice = (
            f"Look {ours} up at the list's own site and ask for removal, or use another address."
        )
        return Check(name, "failed", f"{ours} is on {', '.join(listings.listed)}", advice)
    silent = (
        f"; no answer to this resolver: {', '.join(listings.silent)}" if listings.silent else ""
    )
    if not listings.clean:
        return Check(name, "skipped", silent.removeprefix("; "))
    return Check(name, "ok", f"{ours} is not on {', '.join(listings.clean)}{silent}")


async def check_spf(settings: EngineSettings, ours: str | None, questions: DnsQuestions) -> Check:
    """Does the domain of MAIL FROM permit our address? With <> it is the HELO name (RFC 7208 2.4)."""
    domain = settings.mail_from.rpartition("@")[2] or settings.helo_name
    name = f"SPF, {domain}"
    if ours is None:
        return Check(name, "skipped", "our public address is not known: no mail host named it")
    with trio.move_on_after(SENDER_S):
        result = await check_host(ours, domain, questions)
        if result in ("fail", "softfail", "permerror"):
            advice = f"Add {ours} to the TXT record of {domain} that begins with v=spf1."
            if result == "permerror":
                advice = f"Correct the TXT record of {domain} that begins with v=spf1."
            return Check(name, "failed", f"{result} for {ours}", advice)
        if result in ("temperror", "unclear"):
            return Check(name, "skipped", SPF_SKIPPED[result])
        return Check(
            name, "ok", "there is no record" if result == "none" else f"{result} for {ours}"
        )
    return Check(name, "skipped", f"no answer within {SENDER_S:g} s")


SPF_SKIPPED = {
    "temperror": "the look-up failed",
    "unclear": "the record uses macros, which only a real message decides",
}
