"""Runs a suite of `mailprobe bench`, keeps its figures, shows, compares and draws them."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from mailprobe.api.cli.output.report import console_on
from mailprobe.api.errors import CommandError, Interrupted, print_error
from mailprobe.api.terminal import plain

from . import machine
from .compare import Earlier, change_table, changes, notes
from .figures import (
    MissingRequirement,
    Result,
    Run,
    promised,
    read_run,
    write_results,
)
from .plots import draw_png, draw_text, plots_of, require
from .suite_process import SuiteFailed, run_suite
from .suites import SUITES
from .tables import figure_table
from .tune import (
    SETTINGS_TRIED,
    Findings,
    advise,
    result_of,
    settings_lines,
    trial_table,
    words_on,
)


class Bench(Struct):
    """One call of the command. `troubled` says, at its end, that something was not as it should."""

    folder: Path  # of the results
    earlier: Sequence[Earlier] = ()  # to compare with
    plots: Path | None = None  # where pictures go; None: nothing is drawn
    troubled: bool = False
    console: Console = field(default_factory=lambda: console_on(sys.stdout))
    _kept: list[str] = field(default_factory=list)
    _drawn: int = 0

    def run(self, names: Sequence[str]) -> None:
        """Measure these, or all; each one's results are kept before the next one begins.

        What this machine lacks is trouble for a suite that was named, else a remark.
        Raises Interrupted, and Trouble where it can't begin.
        """
        self.check_libraries()
        self.make_folder()
        try:
            for name in names or SUITES:
                self._measure(name, named=bool(names))
        except KeyboardInterrupt:
            kept = f"; kept in {self.folder}: {', '.join(self._kept)}" if self._kept else ""
            raise Interrupted(f"interrupted{kept}") from None
        self._end()

    def show_kept(self, names: Sequence[str]) -> None:
        """The same of results that are there already."""
        self.check_libraries()
        shown = names or [name for name in SUITES if self._path(name).exists()]
        if not shown:
            raise CommandError(f"no results in {self.folder}: `mailprobe bench` makes them")
        for name in shown:
            try:
                run = read_run(self._path(name))
            except (OSError, ValueError) as wrong:
                self._trouble(str(wrong))
            else:
                self.console.print()
                self.console.print(Text(f"{name}: {SUITES[name]}", style="bold"))
                self._show(run)
        self._end()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _measure(self, name: str, *, named: bool) -> None:
        self.console.print()
        self.console.print(Text(f"{name}: {SUITES[name]}", style="bold"))
        here = machine.describe()
        try:
            with self._busy(name):
                found = run_suite(name)
            result = replace(found.result, figures=promised(name, found.result.figures))
        except MissingRequirement as lacking:
            if named:
                self._trouble(f"suite {name} can't run here: {lacking}")
            else:
                self.console.print(Text(f"  skipped: {plain(str(lacking))}"))
            return
        except (SuiteFailed, ValueError) as wrong:
            self._trouble(str(wrong))
            return
        for remark in found.remarks:
            self.console.print(Text(f"  {plain(remark)}"))
        write_results(name, result, self.folder, here)
        self._kept.append(name)
        self._show(read_run(self._path(name)))

    @contextmanager
    def _busy(self, name: str) -> Iterator[None]:
        """On a terminal, say that something is under way."""
        if not sys.stderr.isatty():
            yield
            return
        with console_on(sys.stderr).status(f"{name} is measured"):
            yield

    def _trouble(self, words: str) -> None:
        print_error(words)
        self.troubled = True

    # -- one suite's results -----------------------------------------------------------------

    def _show(self, run: Run) -> None:
        self.console.print(Text(f"  {_where(run)}", style="dim"))
        if machine.is_busy(run.machine):
            self._note(f"this machine is busy: load {run.machine['load']} before the suite began")
        self.console.print(figure_table(run.result.figures))
        self.troubled = self.troubled or any(figure.missed for figure in run.result.figures)
        for earlier in self.earlier:
            self._compare(earlier, run)
        if self.plots is not None:
            self._draw(run.suite, run.result, self.plots)

    def _note(self, words: str) -> None:
        self.console.print(Text(f"  ! {words}", style="yellow"))

    def _compare(self, earlier: Earlier, now: Run) -> None:
        before = earlier.runs.get(now.suite)
        self.console.print()
        if before is None:
            self.console.print(Text(f"  {earlier.path} has no results of {now.suite}"))
            return
        self.console.print(Text(f"  beside {earlier.path}, {_where(before)}"))
        for note in notes(before, now.machine):
            self._note(note)
        self.console.print(change_table(changes(before.result.figures, now.result.figures)))

    # -- plots -------------------------------------------------------------------------------

    def check_libraries(self) -> None:
        """Before anything runs: nobody should wait for minutes to learn what is missing."""
        if self.plots is None:
            return
        try:
            require("matplotlib")
            require("plotext")
        except MissingRequirement as lacking:
            raise CommandError(str(lacking)) from lacking

    def make_folder(self) -> None:
        """Before anything runs: an hour should not be measured for results that cannot be kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise CommandError(
                f"no results can be kept in {self.folder}: {error.strerror}; name another folder"
                " with --results"
            ) from error

    # -- what tune found -------------------------------------------------------------------------

    def show_findings(self, findings: Sequence[Findings], host_limit: int) -> None:
        """What was tried, the settings to use, and what they are not; kept like a suite's results."""
        here = machine.describe()
        for found in findings:
            for asked in SETTINGS_TRIED:
                self.console.print(Text(f"\n{found.delay_ms:g} ms a reply", style="bold"))
                self.console.print(trial_table(getattr(found, asked), asked))
        advice = advise(findings, host_limit)
        self.console.print()
        for line in settings_lines(advice):
            self.console.print(Text(line), soft_wrap=True)
        for words in words_on(advice, host_limit):
            self.console.print()
            self.console.print(Text(words))
        result = result_of(findings, advice)
        write_results("tune", result, self.folder, here)
        if self.plots is not None:
            self._draw("tune", result, self.plots)

    def _draw(self, suite: str, result: Result, folder: Path) -> None:
        for plot in plots_of(suite, result.series):
            self.console.print()
            self.console.print(Text(draw_text(plot, self.console.width)), soft_wrap=True)
            path = draw_png(plot, folder)
            self.console.print(Text(f"drawn: {path}"), soft_wrap=True)
            self._drawn += 1

    def _end(self) -> None:
        if self.plots is not None and not self._drawn:
            self.console.print("\nnothing to draw: none of these suites gives a series")


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Gives what says how far something is: on a terminal one line that changes, else a line each."""
    if not sys.stderr.isatty():
        yield print_error
        return
    with console_on(sys.stderr).status("starting") as status:
        yield status.update


def _where(run: Run) -> str:
    """`2026-05-04T10:20:30+00:00 on AMD EPYC, 2 cores, CPython 3.11.7, load 0.4, commit 1a2b3c4`."""
    known: Mapping[str, Any] = run.machine
    words = [str(known[name]) for name in ("cpu", "architecture") if known.get(name)][:1]
    if known.get("cores"):
        words.append(f"{known['cores']} cores")
    words.append(str(known.get("python", "")))
    words += [f"{name} {known[name]}" for name in ("load", "commit") if known.get(name) is not None]
    return f"{run.at} on {', '.join(filter(None, words))}"
