"""`mailprobe config`: the settings as the service would read them, and what is wrong with them."""

import os
import sys
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from ..errors import Misuse, print_error
from ..terminal import plain

VALUE_COLUMNS = 20  # most values are shorter; the source of a longer one stands further right

if TYPE_CHECKING:
    from ..settings import SettingState

    Groups = Sequence[tuple[str, Sequence[SettingState]]]


@click.group()
def config() -> None:
    """Show and check the settings: the environment, and mailprobe.toml."""


@config.command()
def check() -> None:
    """Name every setting that is wrong. Reads the files that settings name, too."""
    if errors := _errors():
        _end(errors)
    click.echo("every setting can be used")


@config.command()
def show() -> None:
    """Print each setting by subject: name, value, source. Secrets are shown as ***.

    The source is environment, default or the path of the file. Without a terminal the
    columns have tabs between them, and a line with the subject begins with #.
    """
    from itertools import groupby

    from ..settings import survey

    states = survey(os.environ)
    lay_out = _aligned if sys.stdout.isatty() else _with_tabs
    for line in lay_out(
        [(title, list(rows)) for title, rows in groupby(states, attrgetter("group"))]
    ):
        click.echo(line)
    if errors := _errors():
        _end(errors)


def _with_tabs(groups: "Groups") -> Iterator[str]:
    for title, states in groups:
        yield f"# {title}"
        for state in states:
            yield f"{state.variable}\t{plain(state.shown)}\t{plain(state.source)}"


def _aligned(groups: "Groups") -> Iterator[str]:
    names = max(len(state.variable) for _, states in groups for state in states)
    for number, (title, states) in enumerate(groups):
        if number:
            yield ""
        yield click.style(title, bold=True)
        for state in states:
            is_default = state.source == "default"
            value = plain(state.shown) or (state.words if is_default else "nothing")
            source = click.style(plain(state.source), dim=is_default)
            yield f"  {state.variable:{names}}  {value:{VALUE_COLUMNS}}  {source}"


def _errors() -> list[str]:
    """What is wrong with the settings: with each alone, else with them together."""
    from ..observability.traces import traces_missing
    from ..quota.plans import read_plans
    from ..settings import Settings, WrongSetting, survey

    errors = [state.error for state in survey(os.environ) if state.error is not None]
    if errors:
        return errors
    try:
        settings = Settings.read(os.environ)
        read_plans(settings.plans_file)
    except WrongSetting as wrong:
        return [str(wrong)]
    _mention_unknown()
    if (notice := traces_missing(settings.traces_protocol)) is not None:
        print_error(notice)
    return []


def _mention_unknown() -> None:
    from difflib import get_close_matches

    from ..settings import TABLE, unknown_variables

    known = [row.variable for row in TABLE]
    for name in unknown_variables(os.environ):
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]}?" if near else ""
        print_error(f"{name} is not a setting, and is ignored{hint}")


def _end(errors: list[str]) -> None:
    """Say each error on a line of its own, and end with exit code 2."""
    *others, last = errors
    for error in others:
        print_error(error)
    raise Misuse(last)
