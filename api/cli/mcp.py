"""`mailprobe mcp`: the tool server on standard input and output, which a client starts."""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import Misuse, print_error
from ..gc_tuning import collector_paused, tune_collector
from ..starting.open_files import raise_open_files
from .runner import ending_at_once, run
from .shell.options import bounces_option, service_options

if TYPE_CHECKING:
    from ..settings import Settings
    from .toolserver.toolbox import Toolbox

NEEDS_EXTRA = (
    "the tool server needs the extra mcp; install it in the checkout: pip install '.[mcp]'"
)


@click.command()
@service_options("Use this service, not an engine of this machine.")
@bounces_option
@collector_paused()
def mcp(server: str | None, key: str | None, bounces: Path | None) -> None:
    """Offer verification as tools to a client of the Model Context Protocol (MCP).

    The client starts this command and talks to it on standard input and output.
    Without a service it verifies addresses and cleans files by itself; with one it
    has lists and the account too. Tools that manage the account take the
    provisioning key of MAILPROBE_PROVISIONING_KEY.
    """
    with ending_at_once():
        import trio  # noqa: F401 - a Ctrl-C could be lost in an import

        from ..settings import Settings
        from .remote.named_service import named_service
        from .scoring.bounces import bounced_in
        from .toolserver.lines import (
            claim_standard_streams,
            read_lines,
            write_line,
        )

        try:
            from .toolserver.protocol import serve_tools
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "mcp":
                raise
            raise Misuse(NEEDS_EXTRA) from None
        settings = Settings.read(os.environ)
    service = named_service(server, key, settings, bounces)
    bounced = bounced_in(bounces, print_error)
    if sys.stdin.isatty():
        print_error("waiting for a client's messages on standard input; Ctrl-C ends")
    raise_open_files()
    source, sink = claim_standard_streams()

    async def main() -> None:
        async with _open_toolbox(settings, service, bounced) as toolbox:
            await serve_tools(toolbox, read_lines(source), partial(write_line, sink))

    run(main)


@asynccontextmanager
async def _open_toolbox(
    settings: "Settings", service: tuple[str, str] | None, bounced: Mapping[str, str]
) -> "AsyncIterator[Toolbox]":
    from .cleaning.passes import patience_of_clean

    patience_s = patience_of_clean(settings.patience_s)
    if service is not None:
        from .toolserver.remote_tools import Keys, open_remote_toolbox

        server, key = service
        keys = Keys(key, settings.provisioning_key)
        async with open_remote_toolbox(server, keys, patience_s) as toolbox:
            tune_collector()
            yield toolbox
        return
    from mailprobe.engine.stream.engine import open_engine

    from ..error_table import Links
    from .closed_port import saying_closed_port
    from .source import OwnEngine
    from .toolserver.own_tools import own_toolbox

    notes: list[str] = []

    def report(note: str) -> None:
        print_error(note)
        notes.append(note)

    async with saying_closed_port(settings.engine, report), open_engine(settings.engine) as engine:
        tune_collector()
        yield own_toolbox(
            lambda account, smtp: OwnEngine(
                engine,
                account=account,
                asks_hosts=smtp and settings.engine.asks_hosts,
                bounced=bounced,
            ),
            Links(settings.bind.url, settings.docs_url or f"{settings.bind.url}/docs/api", ""),
            notes,
            patience_s,
        )
