"""README.md is short, and its table of answers is the code's."""

import re

from mailprobe.api.results.advice import answer_of
from mailprobe.engine.verdict import LADDER, judge, light_of
from tests.docs.pages import ROOT, bare, table_of

LINES_MAX = 160


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= LINES_MAX


def test_the_table_of_answers_has_every_status_confidence_and_light() -> None:
    rows = table_of("README.md", "status", "confidence", "what happened", "light", "verdict")
    verdicts = [judge("ann@example.org", outcome) for outcome in LADDER]
    assert {(bare(row[0]), float(row[1]), *row[3:]) for row in rows} == {
        (each.status, each.confidence, light_of(each), answer_of(each).word) for each in verdicts
    }
    assert len(rows) == len({row[1] for row in rows})


def test_pictures_show_no_path_of_the_machine_that_made_them() -> None:
    texts = {path.name: path.read_text("utf-8") for path in (ROOT / "dev/pictures").rglob("*.svg")}
    assert "terminal.svg" in texts
    shown = {
        name: re.findall(r"(?<![\w<.])/[a-z]+/[\w./-]+", bare_svg(text))
        for name, text in texts.items()
    }
    assert {name: paths for name, paths in shown.items() if paths} == {}


def bare_svg(text: str) -> str:
    """What a picture shows, without its marks."""
    return re.sub(r"<style.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL).replace("&#160;", " ")
