"""What the pages say about files: folders that are drawn exist, and each module of the engine is drawn."""

import re

import pytest

from tests.docs.pages import ROOT, blocks_of
from tests.test_layers import PURE


def drawn(page: str) -> set[str]:
    """The paths in a page's drawing of folders, which begins with a folder's name."""
    [drawing] = [block for block in blocks_of(ROOT / page) if re.match(r"\w+/ ", block.text)]
    paths: set[str] = set()
    folders: list[str] = []
    for line in drawing.text.splitlines():
        found = re.match(r"( *)([\w.]+/?)(?: +|$)", line)
        assert found, line
        depth = len(found[1]) // 2
        folders[depth:] = [found[2]]
        paths.add("".join(folders))
    return paths


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_are_drawn_exist(page: str) -> None:
    assert {path for path in drawn(page) if not (ROOT / path).exists()} == set()


def test_every_file_of_the_engine_is_drawn() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "engine").rglob("*.py")}
    faces = {path for path in files if path.endswith("__init__.py")}  # drawn as their folders
    assert files - faces - drawn("docs/architecture.md") == set()


def test_modules_that_are_called_pure_are_tested_as_pure() -> None:
    text = (ROOT / "docs/engine.md").read_text("utf-8")
    sentence = text[text.index("These import no") :].partition("\n\n")[0]
    reported = re.findall(r"`(engine/[\w/]+)\.py`", sentence)
    assert sorted(reported) == sorted(
        name.removeprefix("mailprobe.").replace(".", "/") for name in PURE
    )
