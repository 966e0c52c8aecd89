"""dev/lists.md describes every list."""

from tests.docs.pages import ROOT, bare, table_of


def test_every_list_is_described() -> None:
    reported = {bare(row[0]) for row in table_of("dev/lists.md", "file", "kept", "says")}
    files = {path.name for path in (ROOT / "engine/data").iterdir() if path.name[0] != "."}
    assert reported == files - {"SOURCES.md"}
