"""A status looks alike wherever it has a colour; pages show it as a word beside the answer."""

import pytest

from mailprobe.api.cli.output.html_report import ReportCounts, report_page
from mailprobe.api.cli.output.report import STYLES
from mailprobe.api.cli.output.summary import Summary
from mailprobe.api.results.counts import ResultCounts
from mailprobe.api.results.lights import STATUS_COLOURS


@pytest.mark.parametrize("status", STATUS_COLOURS)
def test_a_status_has_one_colour_in_the_report_and_the_terminal(status: str) -> None:
    colour = STATUS_COLOURS[status]
    page = report_page(Summary((), 0, 0, 0, 0, 0.0, ResultCounts(), 0), ReportCounts(), "list.csv")
    assert f".badge.{colour} {{ color: var(--{colour}); }}" in page
    assert STYLES[status] == ("bright_black" if colour == "grey" else colour)
