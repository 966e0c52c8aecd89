"""What the pages say about files: folders and files that are drawn or named exist."""

import re

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


def test_files_that_are_drawn_exist() -> None:
    assert {path for path in drawn("CONTRIBUTING.md") if not (ROOT / path).exists()} == set()


def test_modules_that_are_called_pure_are_tested_as_pure() -> None:
    text = (ROOT / "dev/engine.md").read_text("utf-8")
    sentence = text[text.index("These import no") :].partition("\n\n")[0]
    reported = re.findall(r"`(engine/[\w/]+)\.py`", sentence)
    assert sorted(reported) == sorted(
        name.removeprefix("mailprobe.").replace(".", "/") for name in PURE
    )


def test_modules_that_the_architecture_names_exist() -> None:
    text = (ROOT / "dev/architecture.md").read_text("utf-8")
    named = set(re.findall(r"`((?:api|bench|engine|storage)/[\w/.]+)`", text))
    assert len(named) > 40
    assert {path for path in named if not (ROOT / path).exists()} == set()
