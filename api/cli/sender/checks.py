"""The checks of `mailprobe doctor` on the address that probes come from."""

from dataclasses import dataclass
from typing import Literal

import trio

from mailprobe.api.cli.sender.blocklists import BACKSCATTER_LISTS, listings_of
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
    listings = await listings_of(ours, questions, SENDER_S)
    if listings.listed:
        advice = (
            f"Look {ours} up at the list's own site and ask for removal, or use another address."
        )
        if any(name in BACKSCATTER_LISTS for name in listings.listed):
            advice += " Backscatter lists look for the sender <>: set MAILPROBE_SMTP_MAIL_FROM."
        return Check(name, "failed", f"{ours} is on {', '.join(listings.listed)}", advice)
    unknown = f"unknown, no right answer to this resolver: {', '.join(listings.silent)}"
    if not listings.clean:
        return Check(name, "skipped", unknown)
    clean = f"{ours} is not on {', '.join(listings.clean)}"
    return Check(name, "ok", f"{clean}; {unknown}" if listings.silent else clean)


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
