"""The sums of dev/capacity.md are right."""

import re

import pytest

from tests.deploy.files import ROOT


def test_the_sums_of_the_page_on_fleets_are_right() -> None:
    """In its blocks of text, `words = sum = result`, to the digits that are shown."""
    page = (ROOT / "dev/capacity.md").read_text("utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    sums = [line.split("=") for block in blocks for line in block.splitlines() if "=" in line]
    assert len(sums) > 20
    for words, asked, reported in sums:
        expression = re.sub(r"[^\d.+*/() -]", "", asked.replace("×", "*").replace("÷", "/"))
        shown = re.match(r"\s*([\d,.]*\d)", reported)
        assert shown, reported
        result = float(shown[1].replace(",", ""))
        assert eval(expression) == pytest.approx(result, rel=0.01), (words, asked, reported)
