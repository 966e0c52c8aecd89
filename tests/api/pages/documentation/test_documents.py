"""The pages that are served: all of `docs/`, with links and anchors that exist."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.pages import documents, rendering
from mailprobe.api.refusals import Section

DOCS = Path(__file__).parents[4] / "docs"


def test_every_page_of_the_folder_is_in_one_group() -> None:
    assert sorted(documents.names()) == sorted(path.stem for path in DOCS.glob("*.md"))


def test_the_served_files_are_made_of_these_pages() -> None:
    """If not, `make docs` has not run since one was changed."""
    assert rendering.is_current(rendering.digest())
    assert documents.names() == rendering.NAMES


def test_a_changed_page_is_rendered_and_a_deleted_one_disappears(tmp_path: Path) -> None:
    rendering.render_documents(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(made) == len(rendering.NAMES) + 2
    (tmp_path / "deleted.json").touch()
    contents = tmp_path / rendering.CONTENTS
    contents.write_bytes(made[rendering.CONTENTS].replace(b'"made_of": "', b'"made_of": "x'))
    rendering.render_documents(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == made


def test_a_build_renders_them_with_its_own_packages_alone() -> None:
    """Where a wheel or an image is built, only what [build-system] names is installed."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['msgspec', 'trio', 'click', 'quart']))\n"
        "import mailprobe.api.pages.rendering, mailprobe.api.pages.markdown"
    )
    subprocess.run([sys.executable, "-c", code], cwd=DOCS.parent, check=True)


def test_the_service_needs_no_renderer() -> None:
    code = (
        "import sys, mailprobe.api.serve\n"
        "from mailprobe.api.pages import documents, search, views\n"
        "assert views.llms_text() and documents.document('api')\n"
        "assert search.SearchIndex(documents.INDEX_FILE).search('greylisting')\n"
        "print({'markdown_it', 'pygments.lexers.python', 'pygments.formatters.html'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", documents.names())
def test_every_link_between_pages_opens_its_section(name: str) -> None:
    page = documents.document(name)
    assert page is not None
    for url in re.findall(r'href="([^"]+)"', page.page.html):
        if not url.startswith(("/", "#")):
            assert url.startswith("https://"), url
            continue
        path, _, anchor = url.partition("#")
        named = name if not path else path.removeprefix("/docs").strip("/") or documents.HOME
        target = documents.document(named)
        assert target is not None, url
        assert not anchor or anchor in {each.anchor for each in target.page.sections}, url


def test_the_links_of_error_bodies_open_their_section() -> None:
    guide = documents.document("api")
    assert guide is not None
    anchors = {each.anchor for each in guide.page.sections}
    assert {operation.section for operation in OPERATIONS} | set(get_args(Section)) <= anchors


def test_the_start_page_leads_to_every_page() -> None:
    start = documents.document(documents.HOME)
    assert start is not None
    linked = set(re.findall(r'href="/docs/([a-z-]+)"', start.page.html))
    assert linked == set(documents.names()) - {documents.HOME}


def test_a_name_from_outside_opens_no_other_file() -> None:
    for name in ("../README", "..", "", "api.md", "/etc/passwd", "API"):
        assert documents.document(name) is None
