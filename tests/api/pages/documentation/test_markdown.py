"""Markdown to HTML: anchors, links, code, and what a page may not do."""

import re

import pytest

from mailprobe.api.pages.markdown import anchor_of, render
from mailprobe.api.pages.page import PageLink


def nowhere(target: str) -> PageLink | None:
    return None


def to_pages(target: str) -> PageLink | None:
    return PageLink(f"/docs/{target.replace('.md', '')}", "Its title")


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("Spend caps", "spend-caps"),
        ("What the answers mean, in one table", "what-the-answers-mean-in-one-table"),
        ("Layer 1: syntax", "layer-1-syntax"),
        ("`GET /v1/jobs/{id}`", "get-v1jobsid"),
        ("Größe", "größe"),
    ],
)
def test_anchors_are_those_of_github(title: str, anchor: str) -> None:
    assert anchor_of(title.replace("`", "")) == anchor
    assert render(f"# {title}", nowhere).sections[0].anchor == anchor


def test_equal_headings_get_numbers() -> None:
    page = render("# Run\n\n## Run\n\n## Run\n", nowhere)
    assert [each.anchor for each in page.sections] == ["run", "run-1", "run-2"]
    assert '<h2 id="run-2">' in page.html


def test_a_section_holds_its_text_and_code() -> None:
    page = render(
        "# A\n\none `two`\nthree\n\n```sh\nfour\n```\n\n| five |\n|---|\n| six |\n", nowhere
    )
    assert page.sections[0].text == "one two three four five six"


def test_raw_html_is_shown_and_not_run() -> None:
    html = render(
        "<script>alert(1)</script> and <b onclick=x>\n\n[x](javascript:alert)", nowhere
    ).html
    assert "<script" not in html
    assert "<b" not in html
    assert "href" not in html


def test_a_file_that_is_no_page_keeps_its_text() -> None:
    html = render("see [the unit](../deploy/mailprobe.service), then [two](b.md)", nowhere).html
    assert "see <span>the unit</span>, then <span>two</span>" in html


def test_the_name_of_a_file_becomes_the_title_of_its_page() -> None:
    html = render("[b.md](b.md#x) and [that page](b.md)", to_pages).html
    assert '<a href="/docs/b#x">Its title</a> and <a href="/docs/b">that page</a>' in html


def test_links_within_a_page_and_outside_stay() -> None:
    html = render("[a](#a) [b](https://www.rfc-editor.org/rfc/rfc5321)", nowhere).html
    assert '<a href="#a">a</a>' in html
    assert '<a href="https://www.rfc-editor.org/rfc/rfc5321" rel="noreferrer">b</a>' in html


def test_code_is_coloured_where_its_language_is_known() -> None:
    html = render("```python\nimport trio  # <b>\n```\n\n```nonsense\n<b>\n```\n", nowhere).html
    assert '<span class="kn">import</span>' in html
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


def test_blocks_in_different_languages_are_tabs() -> None:
    html = render("```sh\na\n```\n\n```python\nb\n```\n\n```go\nc\n```\n", nowhere).html
    assert re.findall("<label[^>]*>([^<]+)", html) == ["curl", "Python", "Go"]
    assert html.count(" checked") == 1
    names = set(re.findall('type="radio" name="([^"]+)"', html))
    assert len(names) == 1
    assert html.count('<div class="code">') == 3


@pytest.mark.parametrize(
    "between",
    ["```sh\nb\n```", "and\n\n```go\nb\n```", "```text\nb\n```"],
    ids=["same", "text", "other"],
)
def test_other_blocks_are_no_tabs(between: str) -> None:
    assert 'class="languages"' not in render(f"```sh\na\n```\n\n{between}\n", nowhere).html
