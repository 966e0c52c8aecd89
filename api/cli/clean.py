"""`mailprobe clean`: verifies every address of a list and keeps every row."""

import os
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ..errors import CommandError, Misuse, print_error
from ..gc_tuning import collector_paused
from ..listfile.formulas import Formulas
from ..operations.parameter_texts import COLUMN, FORMULAS, ONLY_LIGHTS, SHEET, STRICT_CLOCKS
from ..starting.open_files import raise_open_files
from .runner import ending_at_once, sigterm_as_sigint
from .shell.durations import seconds_of
from .shell.options import bounces_option, no_smtp_option, service_options

if TYPE_CHECKING:
    from mailprobe.engine.settings import EngineSettings

    from ..listfile.selection import Selection
    from .cleaning.earlier_refusals import EarlierRefusals
    from .cleaning.outputs import Order
    from .cleaning.passes import Recheck
    from .output.summary import Summary
    from .remote.source import Way
    from .source import AnswerSource, OpenSource

RECHECK_AFTER_S_MAX = 24 * 3600.0
PASSES_MAX = 10  # a host that has not answered so often will not; each pass may wait for a day

FILE_NAME = click.Path(readable=False)  # for completion only: the command checks the file


@click.command()
@click.argument("input_", metavar="INPUT", type=FILE_NAME)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=FILE_NAME,
    help="Output file; its extension sets the format.",
)
@service_options("Verify with this service, not on this machine.")
@click.option(
    "--live", is_flag=True, help="Verify over the service's live socket, address by address."
)
@click.option(
    "--column",
    metavar="NAME",
    multiple=True,
    help=f"{COLUMN} Or the path to a field. Give it for each column.",
)
@click.option(
    "--sheet",
    metavar="NAME",
    help=f"{SHEET} Default: the first visible.",
)
@click.option("--encoding", metavar="NAME", help="Encoding of the list, such as cp1252.")
@click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    default="strict",
    help="Bytes that are not valid text: refuse the list, or replace them.",
)
@click.option(
    "--skip-lines",
    type=click.IntRange(0, 10_000),
    metavar="N",
    default=0,
    help="Skip N lines of title or notes above the header.",
)
@click.option(
    "--quotes/--no-quotes",
    default=None,
    help="Quotes enclose cells, or are ordinary characters.",
)
@click.option(
    "--backslash",
    type=click.Choice(["text", "escape"]),
    help="A backslash is an ordinary character, or escapes the next one.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@click.option(
    "--recheck",
    type=click.IntRange(0, PASSES_MAX),
    metavar="N",
    help="Ask again up to N times after temporary failures. Default: 2, or one for each time.",
)
@click.option(
    "--recheck-after",
    metavar="TIMES",
    default="5m",
    help="Wait before each time, such as 30s or 5m,30m,4h; the last one repeats. Default: 5m.",
)
@click.option(
    "--patience",
    metavar="TIME",
    help="Wait up to TIME for mail hosts that take no more refusals now, such as 4h; 0: no wait but that of --recheck. "
    "Default: 15m. With --server the service waits for a long list; the addresses of a shorter one "
    "are asked, and counted, again.",
)
@click.option(
    "--strict-clocks",
    is_flag=True,
    help=STRICT_CLOCKS,
)
@no_smtp_option
@bounces_option
@click.option("--only", metavar="LIGHTS", help=ONLY_LIGHTS)
@click.option(
    "--split",
    is_flag=True,
    help="Write three files: .keep, .confirm and .drop before the extension.",
)
@click.option("--dedupe", is_flag=True, help="Write only the first row of each mailbox.")
@click.option(
    "--suggest", is_flag=True, help="Add a column with the corrected address of a mistyped one."
)
@click.option(
    "--each", is_flag=True, help="Write a row for each address of a cell that has several."
)
@click.option("--short", is_flag=True, help="Add light, reason and suggestion only, placed first.")
@click.option(
    "--columns", metavar="NAMES", help="Add these columns only, such as light,reason,suggestion."
)
@click.option(
    "--formulas",
    type=click.Choice(get_args(Formulas)),
    default="guard",
    help=FORMULAS,
)
@click.option("--report", metavar="FILE", type=FILE_NAME, help="Write a report as one HTML file.")
@click.option("--force", is_flag=True, help="Replace an output or a report that exists.")
@collector_paused()
def clean(
    input_: str,
    output: str | None,
    server: str | None,
    key: str | None,
    live: bool,
    resume: bool,
    recheck: int | None,
    recheck_after: str,
    patience: str | None,
    strict_clocks: bool,
    no_smtp: bool,
    bounces: Path | None,
    only: str | None,
    split: bool,
    dedupe: bool,
    suggest: bool,
    each: bool,
    short: bool,
    columns: str | None,
    formulas: Formulas,
    report: str | None,
    force: bool,
    **reading: Any,
) -> None:
    """Verify every address of a list: CSV, TSV, XLSX, JSON, NDJSON or plain lines.

    Each row of INPUT (- for standard input) appears once in the output with the
    result, its reason, and a light: GREEN_LIGHT, YELLOW_LIGHT or RED_LIGHT. Without
    -o the output is named like INPUT, with .verified before the extension.
    """
    with ending_at_once():
        import trio  # noqa: F401 - a Ctrl-C could be lost in an import

        from ..listfile.opening import ReadOptions
        from ..listfile.survey import known_encoding
        from .cleaning.outputs import Order

        open_source, is_local, asks_hosts = _source(
            server, key, live=live, asks_hosts=not no_smtp, bounces=bounces
        )
        fields = _fields(columns, is_short=short)
        reading["column"] = reading["column"] or None
        if reading["encoding"]:
            reading["encoding"] = known_encoding(reading["encoding"])
        source, target = _files(input_, output)
        if split:
            _check_split(only, target)
        order = Order(
            source, target, ReadOptions(**reading), resume, _schedule(recheck, recheck_after, patience, is_patient=not strict_clocks),
            _selection(only, dedupe=dedupe), split, suggest, force,
            None if report is None else Path(os.path.realpath(report)),
            fields, short, each, formulas, asks_hosts,
        )  # fmt: skip
    raise_open_files()
    _run(order, open_source, is_local=is_local)


def _run(order: "Order", open_source: "OpenSource", *, is_local: bool) -> None:
    """Clean the list. Raises CommandError if its results say that something here does not work."""
    with ending_at_once():
        from .cleaning.run import clean_list
        from .output.advice import failure_of
        from .output.progress import show_progress
        from .output.report import print_summary

    def show_summary(summary: "Summary") -> None:
        with suppress(OSError):  # the list is cleaned even if standard error is closed
            print_summary(summary, sys.stderr)

    with sigterm_as_sigint():
        summary = clean_list(
            order,
            open_source,
            standard_output=sys.stdout.buffer,
            show_progress=show_progress,
            show_summary=show_summary,
            resume_command=resume_command(),
        )
    if (failure := failure_of(summary.counts, is_local=is_local)) is not None:
        raise CommandError(failure)


def _fields(columns: str | None, *, is_short: bool) -> tuple[str, ...] | None:
    """The fields of the result that are written; None: all. Raises Misuse."""
    from ..listfile.results import CHOICES, SHORT_FIELDS

    if columns is None:
        return SHORT_FIELDS if is_short else None
    if is_short:
        raise Misuse("--short adds three columns, and --columns others; give one of them")
    fields = tuple(dict.fromkeys(name.strip() for name in columns.split(",")))
    if not all(name in CHOICES for name in fields):
        raise Misuse(f"--columns takes {', '.join(CHOICES)}, with a comma between them")
    return fields


def _check_split(only: str | None, target: Path | None) -> None:
    """Raise Misuse if --split does not go together with the other options."""
    if only is not None:
        raise Misuse("--split writes every row, and --only some; give one of them")
    if target is None:
        raise Misuse("--split writes three files; name them with -o, such as -o list.csv")


def _selection(only: str | None, *, dedupe: bool) -> "Selection":
    """The rows that are written. Raises Misuse."""
    from ..listfile.selection import Selection
    from ..results.lights import lights_of

    lights = None if only is None else lights_of(only, "--only")
    return Selection(lights, dedupe=dedupe)


def _files(input_: str, output: str | None) -> tuple[Path | None, Path | None]:
    """The list and the output; None for standard input and output. Raises Misuse."""
    from ..listfile.writer import check_ending
    from .cleaning.outputs import output_path

    if not input_:
        raise Misuse("INPUT is empty; name a file")
    source = None if input_ == "-" else Path(input_)
    if source is not None and not source.name:
        raise Misuse(f"{input_} is a directory; name a file")
    if source is not None and "@" in input_ and not os.path.lexists(source):
        verifies = shlex.join(["mailprobe", "verify", input_])
        raise Misuse(f"there is no file {input_}; to verify an address: {verifies}")
    if output is None:
        return source, source and output_path(source)
    if output == "-":
        return source, None
    check_ending(Path(output))
    return source, Path(os.path.realpath(output))


def _schedule(
    passes: int | None, times: str, patience: str | None, *, is_patient: bool
) -> "Recheck":
    """The passes, with their waits. Raises Misuse."""
    from ..settings import PATIENCE_S_MAX, Settings
    from .cleaning.passes import Recheck, patience_of_clean

    patience_s = patience_of_clean(Settings.read(os.environ).patience_s)
    if patience is not None:
        patience_s = seconds_of(patience.strip(), "--patience", seconds_max=PATIENCE_S_MAX)
    waits = tuple(
        seconds_of(time.strip(), "--recheck-after", seconds_max=RECHECK_AFTER_S_MAX)
        for time in times.split(",")
    )
    passes_max = PASSES_MAX if passes is None else passes
    if len(waits) > max(passes_max, 1):
        raise Misuse(
            f"--recheck-after has {len(waits)} times for {passes_max} passes; give one for each "
            "pass, or fewer"
        )
    if passes is None:
        passes = max(Recheck().passes, len(waits))
    return Recheck(passes, waits, is_patient, patience_s)


def _source(
    server: str | None,
    key: str | None,
    *,
    live: bool = False,
    asks_hosts: bool = True,
    bounces: Path | None = None,
) -> "tuple[OpenSource, bool, bool]":
    """The source that the options or the settings name, whether it is an engine here and asks mail hosts.

    Raises Misuse and WrongSetting. A key in the settings is no reason to use a service.
    """
    if live and not asks_hosts:
        raise Misuse("--live and --no-smtp exclude each other")
    from ..settings import Settings
    from .remote.named_service import named_service

    settings = Settings.read(os.environ)
    if live and server is None and settings.server is None:
        raise Misuse("--live needs a service: give --server, or set MAILPROBE_SERVER")
    if (service := named_service(server, key, settings, bounces)) is None:
        engine = replace(settings.engine, asks_hosts=asks_hosts and settings.engine.asks_hosts)
        return _OwnEngineOpener(engine, _bounced_in(bounces)), True, engine.asks_hosts
    from .remote.source import open_remote_source

    way: Way = "live" if live else "best"
    return (lambda: open_remote_source(*service, way, asks_hosts=asks_hosts)), False, asks_hosts


def _bounced_in(path: Path | None) -> Mapping[str, str]:
    """Which addresses do not exist by the file's bounces, if one is given. Raises BadList."""
    if path is None:
        return {}
    from .scoring.bounces import bounced_in

    return bounced_in(path, print_error)


class _OwnEngineOpener:
    """Opens an engine of this command, once the list has been read and something is to be asked."""

    def __init__(self, settings: "EngineSettings", bounced: Mapping[str, str]) -> None:
        self._settings = settings
        self._bounced = bounced
        self._earlier: EarlierRefusals | None = None

    def count_on(self, earlier: "EarlierRefusals") -> None:
        """See CountingOpener."""
        self._earlier = earlier

    def __call__(self) -> "AbstractAsyncContextManager[AnswerSource]":
        return _open_own_engine(self._settings, self._bounced, self._earlier)


@asynccontextmanager
async def _open_own_engine(
    settings: "EngineSettings", bounced: Mapping[str, str], earlier: "EarlierRefusals | None"
) -> "AsyncIterator[AnswerSource]":
    from ..doctor.named_sender import missing_sender
    from .closed_port import saying_closed_port
    from .source import open_own_engine

    if (notice := missing_sender(settings)) is not None:
        print_error(notice)
    async with (
        saying_closed_port(settings, print_error),
        open_own_engine(settings, bounced, known=earlier.attach if earlier else None) as source,
    ):
        yield source


def resume_command() -> str:
    """The command that continues this run: what was typed, without the key, and --resume."""
    context = click.get_current_context()
    words = ["mailprobe", "clean"]
    for parameter in context.command.params:
        name = str(parameter.name)
        value = context.params[name]
        source = context.get_parameter_source(name)
        if source is not click.core.ParameterSource.COMMANDLINE or name == "resume":
            continue
        if isinstance(parameter, click.Argument):
            words.append(value)
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[-1])
        elif name == "key":
            words += ["--key", "KEY"]  # never print a secret
        else:
            for each in value if isinstance(value, tuple) else (value,):
                words += [min(parameter.opts, key=len), str(each)]
    return shlex.join([*words, "--resume"])
