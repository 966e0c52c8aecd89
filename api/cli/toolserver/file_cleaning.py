"""The tool `clean_file`: cleans a file of this machine as `mailprobe clean` does.

The result is beside the file, with `.verified` before the ending, and has no other name: a model
chooses what is read, and not what is written.
"""

import io
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import click
import msgspec
import trio
from msgspec import Meta, Struct, field

from ...errors import CommandError, Misuse
from ...listfile.opening import ReadOptions
from ...listfile.selection import Selection
from ...listfile.survey import known_encoding
from ...mcp.tools import define, input_schema
from ...operations.operation import ToolText
from ...operations.parameter_texts import (
    COLUMN,
    NO_SMTP,
    ONLY_LIGHTS,
    PATIENCE_S,
    SHEET,
    WITHOUT_PORT,
    when,
)
from ...results.counts import ResultCounts
from ...results.lights import lights_of
from ...settings import PATIENCE_S_MAX
from ...terminal import plain
from ..clean import clean
from ..cleaning.outputs import Order, output_path
from ..cleaning.passes import Recheck, ShowProgress
from ..cleaning.run import Say, clean_list
from ..output.advice import advice, failure_of
from ..output.progress import statuses
from ..output.summary import Summary
from ..runner import raise_foremost
from ..source import OpenSource
from .toolbox import OfferedTool, Report

NAME = "clean_file"
RECHECKS_MAX = 2  # each waits for 5 minutes: a model that waits longer is better off asking later
PROGRESS_S = 1.0

TEXT = ToolText(
    "Clean a file of addresses",
    "Verify every email address of a file on this machine: CSV, TSV, XLSX, JSON, NDJSON or plain "
    "lines, also compressed. The result is a new file beside it, with .verified before the "
    "ending: every row with its result, the reason and a light (GREEN_LIGHT: good, YELLOW_LIGHT: "
    "unsure, RED_LIGHT: bad). The file itself is never changed. Takes from seconds for a short "
    "file to hours for a million rows.",
    reaches_out=True,
)
_OF_CLEAN = {each.name: each.help for each in clean.params if isinstance(each, click.Option)}
# What the command says of its options; flags are true or absent.
ARGUMENTS: dict[str, dict[str, object]] = {
    name: {"description": text}
    for name, text in {
        "path": "The file; best with its whole path.",
        "column": COLUMN,
        "sheet": SHEET,
        **{name: _OF_CLEAN[name] for name in ("encoding", "errors", "skip_lines", "quotes")},
        "backslash": _OF_CLEAN["backslash"],
        "only": ONLY_LIGHTS,
        **{name: when("true", _OF_CLEAN[name] or "") for name in ("dedupe", "suggest", "resume")},
        "recheck": "How often to ask again after temporary failures, each time 5 minutes later.",
        "patience_s": f"{PATIENCE_S} Default: as MAILPROBE_PATIENCE says, else 900.",
        "smtp": f"{when('false', NO_SMTP)} {WITHOUT_PORT}",
        "overwrite": "true: replace a result that is there already.",
    }.items()
}
OUTPUT = {
    "type": "object",
    "properties": {
        "output": {"type": "string", "description": "The file with the result."},
        "rows": {"type": "integer", "description": "How many rows the list has."},
        "addresses": {"type": "integer", "description": "How many different addresses."},
        "verified": {"type": "integer", "description": "How many were verified by this call."},
        "took_s": {"type": "number", "description": "Seconds that it took."},
        "lights": {"type": "object", "description": "How many rows have each light."},
        "statuses": {"type": "object", "description": "How many rows have each status."},
        "reasons": {"type": "object", "description": "How many rows have each reason."},
        "advice": {
            "type": "array", "items": {"type": "string"},
            "description": "What to do about rows that could have been known.",
        },
    },
    "required": ["output", "rows", "addresses", "verified", "lights", "statuses", "advice"],
}  # fmt: skip

# Options of `mailprobe clean` in its messages, and the arguments that are the same. The output
# cannot be named here.
OPTIONS = {
    "force": "overwrite: true", "resume": "resume: true", "quotes": "quotes: true",
    "no-quotes": "quotes: false",
}  # fmt: skip
MORE_PATIENCE = (" --patience 4h", ", patience_s: 14400")
OUTPUT_OPTION = re.compile(r"(, or|;) name another output with -o")


class CleanArguments(Struct, frozen=True):
    """A file, and how it is read and written."""

    path: Annotated[str, Meta(min_length=1)]
    column: str | None = None
    sheet: str | None = None
    encoding: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    skip_lines: Annotated[int, Meta(ge=0, le=10_000)] = 0
    quotes: bool | None = None
    backslash: Literal["text", "escape"] | None = None
    only: str | None = None
    dedupe: bool = False
    suggest: bool = False
    recheck: Annotated[int, Meta(ge=0, le=RECHECKS_MAX)] = 0
    patience_s: Annotated[int, Meta(ge=0, le=int(PATIENCE_S_MAX))] | None = None
    smtp: bool = True
    overwrite: bool = False
    resume: bool = False


class FileCleaner(Struct, frozen=True):
    """Cleans files, one at a time. `open_source` opens what verifies; it takes `smtp`.

    `patience_s` is of a call that names none.
    """

    open_source: Callable[[bool], OpenSource]
    patience_s: float
    is_local: bool
    _turn: trio.Lock = field(default_factory=trio.Lock)

    def tool(self) -> OfferedTool:
        schema = input_schema(CleanArguments, ARGUMENTS)
        return OfferedTool(define(NAME, TEXT, schema, OUTPUT), CleanArguments, self.clean)

    async def clean(self, taken: CleanArguments, octets: bytes, report: Report) -> bytes:
        """Clean the file. Raises CommandError."""
        said: list[str] = []
        patience_s = self.patience_s if taken.patience_s is None else taken.patience_s
        async with self._turn:
            try:
                order, open_source = _order(taken, patience_s), self.open_source(taken.smtp)
                summary = await self._clean(order, open_source, report, said.append)
            except CommandError as error:
                raise CommandError(in_arguments(error.message)) from error
        (output,) = summary.outputs
        if (hint := failure_of(summary.counts, is_local=self.is_local)) is not None:
            raise CommandError(f"{hint}. What is known is in {output}.")
        return _result_of(summary, output, said)

    async def _clean(
        self, order: Order, open_source: OpenSource, report: Report, say: Say
    ) -> Summary:
        """In a thread, which has its trio work done here: a cancel ends that first."""
        return await trio.to_thread.run_sync(
            partial(
                clean_list, order, open_source, standard_output=io.BytesIO(),
                show_progress=_reporting(report), resume_command="the same call with --resume",
                say=say, run=_run_from_thread,
            )
        )  # fmt: skip


def in_arguments(message: str) -> str:
    """A message of the command in the words of the tool's arguments."""
    message = OUTPUT_OPTION.sub("", message).replace(*MORE_PATIENCE)
    return re.sub(r"--([a-z][a-z-]*)", lambda found: _argument(found[1]), message)


def _argument(option: str) -> str:
    return OPTIONS.get(option, option.replace("-", "_"))


def _order(taken: CleanArguments, patience_s: float) -> Order:
    """The run that a call asks for. Raises Misuse."""
    path = Path(os.path.abspath(os.path.expanduser(taken.path)))
    if not os.path.isfile(path):
        what = "is not a file" if os.path.exists(path) else "is not there"
        raise Misuse(f"{plain(str(path))} {what}; give the whole path of a file")
    reading = ReadOptions(
        taken.column, taken.encoding and known_encoding(taken.encoding), taken.errors,
        taken.skip_lines, taken.quotes, taken.backslash, taken.sheet,
    )  # fmt: skip
    lights = None if taken.only is None else lights_of(taken.only, "the argument only")
    return Order(
        path, output_path(path), reading, taken.resume, Recheck(taken.recheck, patience_s=patience_s),
        Selection(lights, dedupe=taken.dedupe), suggest=taken.suggest, force=taken.overwrite,
        asks_hosts=taken.smtp,
    )  # fmt: skip


def _run_from_thread(main: Callable[[], Awaitable[object]]) -> None:
    try:
        trio.from_thread.run(main)
    except BaseExceptionGroup as group:
        raise_foremost(group)


def _reporting(report: Report) -> ShowProgress:
    """Shows the progress of all passes by `report`, as one number that increases."""
    before = 0  # addresses of the passes that have ended

    @asynccontextmanager
    async def show(counts: ResultCounts, total: int) -> AsyncIterator[None]:
        nonlocal before

        async def repeat() -> None:
            while True:
                await trio.sleep(PROGRESS_S)
                await report(before + counts.done, before + total, statuses(counts))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(repeat)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
                before += counts.done

    return show


def _result_of(summary: Summary, output: Path, said: Sequence[str]) -> bytes:
    """The result; `said`: remarks on the list, and how to go on with what still waits."""
    counts = summary.counts  # a plus leaves out what is 0
    return msgspec.json.encode(
        {
            "output": str(output),
            "rows": summary.rows,
            "addresses": summary.addresses,
            "verified": summary.verified,
            "took_s": round(summary.took_s, 1),
            "lights": +counts.lights,
            "statuses": +counts.statuses,
            "reasons": +counts.reasons,
            "advice": list(map(in_arguments, (*said, *advice(counts)))),
        }
    )
