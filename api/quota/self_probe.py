"""The probe of self-protection: does any known mail host greet this machine?

It connects and says EHLO, no more: it names no mailbox, so that it costs no host's patience with
refused recipients. It greets large providers, and hosts that have answered several accounts.
"""

from collections.abc import Sequence

import trio

from mailprobe.engine import Engine
from mailprobe.engine.dns.messages import Addresses, Route
from mailprobe.engine.net.dialer import Dial
from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.wire import ConnectionLost, ReadTimedOut, RemoteProtocolError, ehlo

GREETED_MAX = 8  # domains of a probe whose hosts answered before
MEET_S = 6.0  # look-up, connection, greeting and EHLO
ACCOUNT = "self-protection"  # the probe's turn in queues that are fair by account

# Names that no customer controls, of several operators.
PROVIDERS = ("gmail.com", "outlook.com", "gmx.net", "yahoo.com", "icloud.com")


async def is_greeted(
    engine: Engine, dial: Dial, domains: Sequence[str], providers: Sequence[str] = PROVIDERS
) -> bool | None:
    """Whether a mail host of any of these takes our EHLO; None if there are none."""
    greeting = [*providers, *domains[:GREETED_MAX]]
    if not greeting:
        return None
    greeted = False

    async def greet(domain: str) -> None:
        nonlocal greeted
        if await _greets(engine, dial, domain):
            greeted = True
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for domain in greeting:
            nursery.start_soon(greet, domain)
    return greeted


async def _greets(engine: Engine, dial: Dial, domain: str) -> bool:
    with trio.move_on_after(MEET_S):
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
        connection = SmtpConnection(stream, MEET_S)
        try:
            if not (await connection.receive_reply()).reply.positive:
                return False
            await connection.send(ehlo(engine.settings.helo_name))
            takes = (await connection.receive_reply()).reply.positive
            await connection.quit()
        except (ConnectionLost, ReadTimedOut, RemoteProtocolError):
            return False
        finally:
            await connection.close()
        return takes
    return False
