"""`mailprobe demo`: the main job with nothing outside this machine.

A lab stands in for the Internet. The service runs in this process with a database
of its own, on a free port of the loopback address, and the example list is cleaned
through its stream endpoint. All that was started is stopped, however the command ends.
"""

import dataclasses
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from mailprobe.api.cli.runner import sigterm_as_sigint
from mailprobe.api.errors import CommandError, Interrupted, print_error
from mailprobe.api.starting.open_files import raise_open_files

if TYPE_CHECKING:
    from mailprobe.api.cli.cleaning.run import Say
    from mailprobe.api.cli.output.summary import Summary
    from mailprobe.api.cli.source import AnswerSource
    from mailprobe.api.settings import Settings

LIST = Path("examples/list.csv")
PACKAGED = Path(__file__).parents[1] / "lab" / "list.csv"  # in a checkout a link to LIST
REASONS_MAX = 4  # so that all of it fits on one screen
NEXT = (
    "every row is in the file; mailprobe demo --verbose shows every reason",
    "next: mailprobe doctor checks this machine; mailprobe clean LIST cleans yours",
)
RATE_PER_MIN = 1_000_000  # of the demo's account: nobody should wait for a minute to pass


@click.command()
@click.option(
    "--verbose", is_flag=True, help="Show every reason, and what clean would say of the list."
)
def demo(verbose: bool) -> None:
    """Clean an example list, with a resolver and mail servers on this machine.

    Nothing outside this machine is asked. The cleaned list is beside the example, or in
    the working directory where the example is a part of the installed program.
    """
    source, beside = _example()
    raise_open_files()
    with sigterm_as_sigint():
        try:
            summary = _clean_in_lab(source, beside, print_error if verbose else _unsaid)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted("interrupted; nothing runs on and nothing is left behind") from None
        from mailprobe.api.cli.output.report import print_summary

        if verbose:
            print_summary(summary, sys.stdout, reasons_max=len(summary.counts.reasons))
        else:
            print_summary(summary, sys.stdout, reasons_max=REASONS_MAX, advise=lambda _: NEXT)


def _unsaid(remark: str) -> None:
    """Of a list that is not the reader's, what is special about it is no news."""


def _example() -> tuple[Path, Path]:
    """The example list, of the working directory or our own, and the path to save it beside."""
    if LIST.is_file():
        return LIST, LIST
    if PACKAGED.is_symlink():
        source = PACKAGED.resolve()
        return source, source
    return PACKAGED, Path(PACKAGED.name)


def _clean_in_lab(source: Path, beside: Path, say: "Say") -> "Summary":
    """Clean `source` by a lab's hosts alone: no setting of the operator's reaches in."""
    from mailprobe.api.settings import Settings

    from ..lab import LabFailed, start_lab

    print_error("starting the lab: a resolver and mail servers on loopback addresses")
    with tempfile.TemporaryDirectory(prefix="mailprobe-demo-") as directory:
        try:
            with start_lab() as lab:
                ours = {
                    "MAILPROBE_DATABASE": str(Path(directory, "demo.db")),
                    "MAILPROBE_BIND": "127.0.0.1:0",
                }
                settings = Settings.read({**lab.env, **ours}, Path(directory))
                return _clean(source, beside, settings, Path(directory), say)
        except LabFailed as error:
            raise CommandError(f"the demo needs its lab: {error}") from error


def _clean(
    source: Path, beside: Path, settings: "Settings", directory: Path, say: "Say"
) -> "Summary":
    """Clean in the scratch `directory`, then move the result; a user's unfinished run is not touched."""
    import mailprobe.api.serve  # noqa: F401 - before the word: imports are a bad moment for a Ctrl-C
    from mailprobe.api.cli.cleaning.outputs import Order, output_path
    from mailprobe.api.cli.cleaning.run import clean_list
    from mailprobe.api.cli.output.progress import show_progress
    from mailprobe.api.listfile.replacing import replacing

    draft, target = output_path(directory / source.name), output_path(beside)
    print_error(f"cleaning {source}")
    summary = clean_list(
        Order(source, draft),
        lambda: open_service_source(settings),
        standard_output=sys.stdout.buffer,
        show_progress=show_progress,
        say=say,
    )
    with replacing(target) as file:
        file.write(draft.read_bytes())
    return structs.replace(summary, outputs=(target,))


@asynccontextmanager
async def open_service_source(settings: "Settings") -> AsyncIterator["AnswerSource"]:
    """A service with one account, as long as the block lasts, and a client of it."""
    import trio

    from mailprobe.api.cli.account import new_account
    from mailprobe.api.cli.remote.source import open_remote_source
    from mailprobe.api.http.listeners import open_sockets
    from mailprobe.api.quota.plans import PLANS
    from mailprobe.api.serve import open_service, serve_service

    scale = structs.replace(PLANS["scale"], rate_limit_per_min=RATE_PER_MIN)
    sockets = open_sockets(settings.bind.host, settings.bind.port)
    bind = structs.replace(settings.bind, port=sockets[0].getsockname()[1])
    settings = dataclasses.replace(settings, bind=bind)
    async with open_service(settings, {**PLANS, "scale": scale}) as service:
        account = await new_account(service.store, "demo@example.org", "scale")
        drain = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_service, service, sockets, drain)
            async with open_remote_source(bind.url, account["key"]) as source:
                yield source
            drain.set()
