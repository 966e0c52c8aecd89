"""The pages speak their own words, and a status looks alike wherever it stands."""

import re
from pathlib import Path

import pytest

from mailprobe.api.cli import COMMANDS
from mailprobe.api.cli.output.html_report import STYLE
from mailprobe.api.cli.output.report import STYLES
from mailprobe.api.pages.dashboard.assets import FOLDER, assets
from mailprobe.api.results.lights import STATUS_COLOURS

TEMPLATES = sorted((FOLDER.parent / "templates/dashboard").glob("*.html"))
NOT_SHOWN = re.compile(
    r"{%.*?%}|{#.*?#}|{{.*?}}|<(code|pre|script|style)\b.*?</\1>|<[^>]*>", re.DOTALL
)
OF_PROGRAMS = re.compile(  # routes, commands, settings, options, names of fields and codes
    rf"/v1/|\bmailprobe ({'|'.join(COMMANDS)})\b|MAILPROBE_|(?<!\S)--?[a-z]|\b[a-z]+_[a-z]"
)
PAGE_COLOURS = {"green": "--good", "yellow": "--care", "grey": "--quiet", "red": "--bad"}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_no_page_speaks_the_language_of_programs(template: Path) -> None:
    shown = NOT_SHOWN.sub(" ", template.read_text("utf-8"))
    assert OF_PROGRAMS.findall(shown) == []


@pytest.mark.parametrize("status", STATUS_COLOURS)
def test_a_status_has_one_colour_in_pages_the_report_and_the_terminal(status: str) -> None:
    colour = STATUS_COLOURS[status]  # type: ignore[index]
    css = assets()["frame.css"].octets.decode()
    rules = re.findall(r"(\.badge[^{}]*) { [^}]*?color: var\((--\w+)\)", css)
    named = [found for names, found in rules if f".badge.{status}" in names.split(", ")]
    everywhere = [found for names, found in rules if names == ".badge"]
    assert (named or everywhere) == [PAGE_COLOURS[colour]]
    assert f".badge.{colour} {{ color: var(--{colour}); }}" in STYLE
    assert STYLES[status] == ("bright_black" if colour == "grey" else colour)
