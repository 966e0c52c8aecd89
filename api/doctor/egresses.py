"""The checks of `mailprobe doctor` for each egress of the file, each through its own way out."""

import errno
import os
import socket
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import trio
from msgspec.structs import replace

from mailprobe.engine.egress import ONE_EGRESS, Egress
from mailprobe.engine.net.dialer import Dial
from mailprobe.engine.net.public_addresses import is_public
from mailprobe.engine.settings import EngineSettings

from ..egress.ways import dial_of, settings_of
from .at_once import all_at_once
from .checks import SOURCE, Check
from .machine import (
    Network,
    check_clock,
    check_endpoints,
    check_of_sender,
    check_port,
    check_store,
    examine,
    greetings_of,
    open_network,
    our_address,
)

if TYPE_CHECKING:
    from ..settings import Settings

EGRESSES_AT_ONCE = 8  # each opens three connections and asks a hundred questions
# What advice says of the settings stands in the file for an egress.
IN_FILE = {
    "MAILPROBE_SMTP_HELO": "its helo",
    "MAILPROBE_SMTP_MAIL_FROM": "its mail_from",
    "the proxies in MAILPROBE_SMTP_PROXIES": "its proxy",
    "give SOCKS5 proxies elsewhere in MAILPROBE_SMTP_PROXIES": "give the egress a proxy elsewhere",
}


async def examine_machine(settings: "Settings") -> list[Check]:
    """Run all checks, of each egress where there is a file of them."""
    if settings.engine.egresses is not ONE_EGRESS:
        return await examine_egresses(settings, ())
    return await examine(settings.engine, settings.database, settings.secret_key)


async def examine_egresses(settings: "Settings", names: Sequence[str]) -> list[Check]:
    """Run all checks: of the machine once, and of each egress, or of those with these names."""
    rows = [row for row in settings.engine.egresses.rows if not names or row.name in names]
    async with open_network(settings.engine) as network:
        dials = {row.name: dial_of(row, settings.engine) for row in rows}
        checks = await examine_each(network, settings.engine, rows, dials)
    checks.insert(-1, await check_store(settings.database, settings.secret_key))
    return checks


async def examine_each(
    network: Network, settings: EngineSettings, rows: Sequence[Egress], dials: dict[str, Dial]
) -> list[Check]:
    """The checks of the endpoints, of each egress, and of the clock."""
    checked = await check_endpoints(network, settings)
    works = any(endpoint.check.status == "ok" for endpoint in checked)
    limit = trio.CapacityLimiter(EGRESSES_AT_ONCE)

    async def check_row(row: Egress) -> list[Check]:
        async with limit:
            own = replace(network, dial=dials[row.name])
            found = await check_egress(own, row, settings_of(row, settings), works)
            return [_named(row, check) for check in found]

    of_rows = await all_at_once(partial(check_row, row) for row in rows)
    return [
        *(endpoint.check for endpoint in checked),
        *chain.from_iterable(of_rows),
        check_clock(checked),
    ]


async def check_egress(
    network: Network, row: Egress, settings: EngineSettings, works: bool
) -> list[Check]:
    """Its port 25, its name, the blocklists and its sender."""
    if (fault := check_source(row)) is not None:
        return [fault]
    greeted = await greetings_of(network, settings)
    ours = our_address(greeted)
    if ours is None and row.source is not None and is_public(row.source):
        ours = row.source
    return [
        check_port(settings, greeted, resolved=works),
        *await check_of_sender(network, settings, ours, works=works),
    ]


def check_source(row: Egress) -> Check | None:
    """The failed check of an address that this machine does not have; else None."""
    if row.source is None:
        return None
    family = socket.AF_INET6 if ":" in row.source else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((row.source, 0))
    except OSError as error:
        found = f"{row.source}: {os.strerror(error.errno or 0).lower()}"
        if error.errno == errno.EADDRNOTAVAIL:
            found = f"this machine does not have {row.source}"
        return SOURCE.failed("absent", found)
    return None


def _named(row: Egress, check: Check) -> Check:
    """The check with the name of its egress, and advice in the words of the file."""
    advice = check.advice
    for setting, key in IN_FILE.items():
        advice = advice and advice.replace(setting, key)
    return replace(check, check=f"{row.name}: {check.check}", advice=advice)
