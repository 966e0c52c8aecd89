"""The HTML report: what it says, and that no text from outside gets to act in it."""

import io
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from mailprobe.api.cli.cleaning.outputs import Order, output_path
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.cli.output import html_report
from mailprobe.api.cli.output.html_report import OTHERS, ReportCounts, report_page
from mailprobe.api.cli.output.summary import Summary
from mailprobe.api.errors import CommandError
from mailprobe.api.results.counts import ResultCounts
from mailprobe.api.results.row_result import RowResult
from tests.api.fake_source import FakeSource, result_of

HOSTILE = '"><script>alert(1)</script><img src=//x.test/a onerror=b>\x1b[31m&\u202e'
LIST = [
    *(f"ann+{number}@shop.test" for number in range(8)),
    *(f"nobody+{number}@old.test" for number in range(6)),
    "nobody@shop.test", "catchall@any.test", "slow@shop.test", "dan@gmial.com", "none",
]  # fmt: skip


class Page(HTMLParser):
    """The tags, attributes and text of a page; every tag must be closed."""

    VOID = ("meta", "rect")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(
    results: Iterable[RowResult], name: str = "list.csv", columns: tuple[str, ...] = ()
) -> Page:
    counts, further = ResultCounts(), ReportCounts()
    for result in results:
        counts.count(result)
        further.count(result)
    rows = counts.done
    summary = Summary((), rows, 0, rows, rows, 12.0, counts, rows, columns=columns)
    return Page(report_page(summary, further, name))


def test_it_says_what_the_list_has() -> None:
    text = page_of(map(result_of, LIST)).text
    for words in (
        "list.csv 19 rows, 19 different addresses, cleaned in 12 s.",
        "Keep Mail will most likely arrive. 8 42.1 %",
        "Drop Do not send. Mail comes back or is lost. 8 42.1 %",
        "Provider rows keep confirm drop",
        "deliverable 9 47.4 %",
        "no_mailbox: no such mailbox 7 36.8 %",
        "shop.test 10 8 1 1",
        "old.test 6 6 100%",
        "dan@gmial.com dan@gmail.com",
        "1 row could not be known",
        "1 row is of a domain that accepts every name",
    ):
        assert words in text, words


def test_no_text_from_outside_acts() -> None:
    result = msgspec.structs.replace(
        result_of("ann@shop.test"),
        email=f"{HOSTILE}@{HOSTILE}",
        mx_host=HOSTILE,
        suggestion=HOSTILE,
    )
    plain_page = page_of([result_of("ann@gmial.com")])
    page = page_of([result] * 6, HOSTILE, (HOSTILE, HOSTILE))
    assert set(page.tags) == set(plain_page.tags)
    assert page.attributes == plain_page.attributes
    assert {"script", "img", "a", "link"}.isdisjoint(page.tags)
    assert {"src", "href", "style", "onerror"}.isdisjoint(page.attributes)
    assert not {"\x1b", "\u202e"} & set(page.text)


def test_text_from_outside_is_no_template() -> None:
    assert "{{ 7 * 7 }} 1 row" in page_of([result_of("ann@shop.test")], "{{ 7 * 7 }}").text


def test_a_run_without_a_report_imports_no_templates() -> None:
    script = (
        "import sys, mailprobe.api.cli.clean, mailprobe.api.cli.cleaning.run\n"
        "assert 'jinja2' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_empty_list_has_a_report() -> None:
    assert "0 rows have a clear answer (0.0 %)" in page_of([]).text


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_report, "NAMES_MAX", 3)
    counts = ReportCounts()
    for number in range(10):
        counts.count(result_of(f"ann@d{number}.test"))
    assert {name: each.rows for name, each in counts.domains.items()} == {
        "d0.test": 1, "d1.test": 1, "d2.test": 1, OTHERS: 7,
    }  # fmt: skip


def test_it_stands_beside_the_output_and_replaces_nothing(tmp_path: Path) -> None:
    path, report = tmp_path / "list.txt", tmp_path / "report.html"
    path.write_text("\n".join(LIST))
    order = Order(path, output_path(path), report=report)
    summary = clean_list(order, FakeSource().open, standard_output=io.BytesIO())
    assert summary.report == report
    assert "list.txt 19 rows" in Page(report.read_text("utf-8")).text
    for output, other in ((tmp_path / "b.txt", report), (tmp_path / "b.txt", tmp_path / "b.txt")):
        with pytest.raises(CommandError) as refused:
            clean_list(
                Order(path, output, report=other), FakeSource().open, standard_output=io.BytesIO()
            )
        assert refused.value.exit_code == 2
    with pytest.raises(CommandError):
        clean_list(Order(path, None, report=path), FakeSource().open, standard_output=io.BytesIO())
    assert path.read_text() == "\n".join(LIST)
