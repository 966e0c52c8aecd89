"""Says at the start of a command that port 25 is closed, and offers to work without it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from mailprobe.engine.background import contained, sole_exception
from mailprobe.engine.settings import EngineSettings

if TYPE_CHECKING:  # imported when it looks: a list without hosts of the internet needs none of it
    from ..doctor.machine import Greeting, Network


@asynccontextmanager
async def saying_closed_port(
    settings: EngineSettings, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Look beside the block, which does not wait for it; say nothing if the port is open.

    A lab's hosts have other ports, and are not looked for.
    """
    if settings.allow_private or not settings.asks_hosts:
        yield
        return
    from ..doctor.machine import open_network

    async def look() -> None:
        async with open_network(settings) as network:
            if (line := await closed_port(network, settings)) is not None:
                say(line)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(contained, look)
            yield
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise sole_exception(group) from None


async def closed_port(network: "Network", settings: EngineSettings) -> str | None:
    """One line if no mail host of the large providers can be connected to, and one was found."""
    from ..doctor.machine import PROVIDERS, check_port, greeting_of

    greetings: list[Greeting] = []
    for domain in PROVIDERS:
        greetings.append(await greeting_of(domain, network, settings))
        if greetings[-1].received in ("welcome", "refused"):
            return None
    check = check_port(settings, greetings, resolved=False)
    if check.status != "failed":
        return None
    return (
        f"{check.check}: {check.found}; without it mail hosts cannot be asked. Work without them "
        "by --no-smtp or MAILPROBE_LAYERS=1-3,5, or see what mailprobe doctor advises"
    )
