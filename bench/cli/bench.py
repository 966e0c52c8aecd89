"""mailprobe bench: run the suites, print their figures, keep, compare and draw them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mailprobe.api.cli.runner import run, sigterm_as_sigint
from mailprobe.api.errors import CommandError
from mailprobe.api.starting.open_files import raise_open_files

if TYPE_CHECKING:
    from ..harness.compare import Earlier


class Suites(click.Group):
    """Takes the names of suites; a command of its own is what stands first and is none of them."""

    allow_interspersed_args = True

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args and args[0] in self.commands:
            command = self.commands[args[0]]
            return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Command.parse_args(self, ctx, args)


RESULTS = click.option(
    "--results",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where results are kept, a JSON file a suite. Else bench/results in a checkout, "
    "./bench-results elsewhere.",
)
PLOT = click.option(
    "--plot",
    metavar="[DIR]",
    is_flag=False,
    flag_value="",
    help="Draw the series: here, and as PNG files in DIR, else beside the results.",
)


@click.command(
    cls=Suites, invoke_without_command=True, subcommand_metavar="| tune [OPTIONS] | soak [OPTIONS]"
)
@click.argument("suites", nargs=-1, metavar="[SUITE]...")
@click.option("--list", "list_them", is_flag=True, help="Name the suites and end.")
@RESULTS
@click.option(
    "--compare",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Earlier results to compare with, a file or a folder of them; may come again.",
)
@PLOT
@click.option("--no-run", is_flag=True, help="Measure nothing: show the results that are kept.")
def bench(
    suites: tuple[str, ...],
    list_them: bool,
    results: Path | None,
    compare: tuple[Path, ...],
    plot: str | None,
    no_run: bool,
) -> None:
    """Run the benchmark suites (all of them unless named) and print their figures.

    Exit code 1 where a figure misses its promise by more than 25 %, where a suite
    fails, or where this machine lacks what a named one needs. Ctrl-C ends with 130;
    the results until then are kept.
    """
    from difflib import get_close_matches

    from ..harness.suites import SUITES

    if list_them:
        for name, summary in SUITES.items():
            click.echo(f"{name:<12}{summary}")
        return
    if plot in SUITES:  # `--plot engine`: DIR was left out
        suites, plot = (*suites, plot), ""
    for name in suites:
        if name not in SUITES:
            near = get_close_matches(name.lower(), [*SUITES, "soak", "tune"], n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no suite {name!r}; there are: {', '.join(SUITES)}.{meant}")
    from ..harness.figures import results_folder
    from ..harness.show import Bench

    folder = results or results_folder()
    drawn = None if plot is None else Path(plot) if plot else folder
    raise_open_files()
    with sigterm_as_sigint():
        session = Bench(folder, _read_earlier(compare), drawn)
        if no_run:
            session.show_kept(suites)
        else:
            session.run(suites)
    sys.exit(1 if session.troubled else 0)


def _read_earlier(paths: Sequence[Path]) -> "list[Earlier]":
    """Before anything runs: the new results may be written over them."""
    from ..harness.compare import read_earlier

    try:
        return [read_earlier(path) for path in paths]
    except (OSError, ValueError) as wrong:
        raise CommandError(str(wrong)) from wrong


@bench.command()
@click.option(
    "--delay-ms",
    "delays_ms",
    multiple=True,
    type=click.FloatRange(0, 500),
    default=(0.0, 50.0),
    show_default="0 and 50",
    help="How long the mail hosts take for a reply; may come again.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    help="How long all trials may take, about; each latency needs some 40.",
)
@click.option(
    "--host-limit",
    type=click.IntRange(1, 100),
    default=4,
    show_default=True,
    help="The most connections to one host. Real hosts refuse clients that open more than a few.",
)
@RESULTS
@PLOT
def tune(
    delays_ms: tuple[float, ...],
    seconds: float,
    host_limit: int,
    results: Path | None,
    plot: str | None,
) -> None:
    """Find the settings that suit this machine. Asks mail hosts of its own.

    Tries connections to a host, probes under way, and how many addresses of a
    domain come together, and prints the settings to use. Nothing outside of this
    machine is asked.
    """
    from ..harness.figures import results_folder
    from ..harness.show import Bench, telling
    from ..load.trials import try_all

    folder = results or results_folder()
    drawn = None if plot is None else Path(plot) if plot else folder
    session = Bench(folder, plots=drawn)
    session.check_libraries()
    session.make_folder()
    raise_open_files()
    with sigterm_as_sigint(), telling() as tell:
        findings = run(lambda: try_all(delays_ms, seconds, host_limit, tell))
    session.show_findings(findings, host_limit)


@bench.command()
@click.option(
    "--minutes",
    type=click.FloatRange(10),
    default=10.0,
    show_default=True,
    help="How long what counts lasts, after the caches are full. In less, chance alone would fail.",
)
def soak(minutes: float) -> None:
    """Put a service under mixed load, and print what of it grows.

    Requests, streams, jobs, lists and mistakes at once, against mail hosts of this
    machine: without a pause until the caches are full, then with pauses, which is what
    counts. Prints a line every few seconds, then the slopes of memory, descriptors
    and database. It fails if memory grows by 0.1 MiB a minute or more, the rows of
    answers not counted, or descriptors by half of one. Nothing outside of this machine is asked.
    """
    from ..load import soak as load
    from ..load.service_process import ServiceFailed

    def show(sample: "load.Sample") -> None:
        click.echo(
            f"{sample.minutes:6.1f} min{sample.memory_mib:10.1f} MiB{sample.descriptors:7d} files"
            f"{sample.rows_mib:10.1f} MiB of rows{sample.bloat_mib:10.1f} MiB of log and free pages"
            f"{sample.answered:10,d} answered"
        )

    raise_open_files()
    with sigterm_as_sigint():
        try:
            samples = load.soak(minutes, show)
        except ServiceFailed as failed:
            raise CommandError(str(failed)) from failed
    found = load.growth(samples)
    click.echo(f"a minute, in the {minutes:g} minutes with full caches:")
    click.echo(f"{found.memory_mib:+10.2f} MiB of memory")
    click.echo(f"{found.descriptors:+10.2f} descriptors")
    click.echo(f"{found.bloat_mib:+10.2f} MiB of the database's log and free pages")
    click.echo(
        f"{found.rows_mib:+10.2f} MiB of its rows: {found.answer_octets:.0f} octets for each of"
        f" {found.answered:,.0f} answers, until their retention ends"
    )
    if not found.is_flat:
        raise click.exceptions.Exit(1)
