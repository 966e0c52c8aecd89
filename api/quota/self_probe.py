"""The probe of self-protection: does anything outside answer this machine?

It asks about the postmaster, whom every domain must take mail for (RFC 5321 4.5.1), by the
engine that customers' addresses go through. The large providers are only connected to.
"""

from collections.abc import Sequence

import trio

from mailprobe.api.quota.self_protection import is_seen
from mailprobe.engine import Engine, open_answers
from mailprobe.engine.dns.messages import Addresses, Route
from mailprobe.engine.net.dialer import Dial

# Domains of a probe: some that answered before, some of lists that wait, some that failed.
ASKED_MAX = 12
CONNECT_S = 3.0  # look-up and connection to a provider
ACCOUNT = "self-protection"  # the probe's turn in queues that are fair by account

# Names that no customer controls; `mailprobe doctor` connects to the same.
PROVIDERS = ("gmail.com", "outlook.com", "gmx.net")


async def sees(
    engine: Engine,
    dial: Dial,
    domains: Sequence[str],
    must_answer: bool,
    providers: Sequence[str] = PROVIDERS,
) -> bool:
    """Whether a host answers about a mailbox or, unless `must_answer`, a provider's connects."""
    texts = [f"postmaster@{domain}" for domain in domains[:ASKED_MAX]]
    if texts:
        async with open_answers(engine, texts, account=ACCOUNT) as answers:
            async for answer in answers:
                if is_seen(answer.cause):
                    return True
    if must_answer:
        return False
    for domain in providers:
        if await _connects(engine, dial, domain):
            return True
    return False


async def _connects(engine: Engine, dial: Dial, domain: str) -> bool:
    with trio.move_on_after(CONNECT_S):
        route = await engine.routes.find(domain, ACCOUNT)
        if not isinstance(route, Route) or not route.exchanges:
            return False
        host = engine.routes.in_order(route)[0].name
        found = await engine.routes.addresses(host, ACCOUNT)
        if not isinstance(found, Addresses):
            return False
        try:
            stream = await dial(found.ips[0], engine.settings.smtp_port)
        except OSError:
            return False
        await trio.aclose_forcefully(stream)
        return True
    return False
