"""A status looks alike wherever it stands."""

import re

import pytest

from mailprobe.api.cli.output.html_report import STYLE
from mailprobe.api.cli.output.report import STYLES
from mailprobe.api.pages.dashboard.assets import assets
from mailprobe.api.results.lights import STATUS_COLOURS

PAGE_COLOURS = {"green": "--good", "yellow": "--care", "grey": "--quiet", "red": "--bad"}


@pytest.mark.parametrize("status", STATUS_COLOURS)
def test_a_status_has_one_colour_in_pages_the_report_and_the_terminal(status: str) -> None:
    colour = STATUS_COLOURS[status]
    css = assets()["frame.css"].octets.decode()
    rules = re.findall(r"(\.badge[^{}]*) { [^}]*?color: var\((--\w+)\)", css)
    named = [found for names, found in rules if f".badge.{status}" in names.split(", ")]
    everywhere = [found for names, found in rules if names == ".badge"]
    assert (named or everywhere) == [PAGE_COLOURS[colour]]
    assert f".badge.{colour} {{ color: var(--{colour}); }}" in STYLE
    assert STYLES[status] == ("bright_black" if colour == "grey" else colour)
