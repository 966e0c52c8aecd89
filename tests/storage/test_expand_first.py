"""Schemas expand first and contract one version later: dev/releasing.md.

A script of the newest version only adds, so that services of the version before go on while it is
rolled out. What removes or changes something names the version that stopped using it, in a
comment before the statement: "-- Not used since 1.4.0".
"""

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = ("sqlite", "postgres")

# What a service of the version before would notice. Indexes are nobody's names.
REMOVES = re.compile(
    r"\b(?:DROP\s+(?:TABLE|COLUMN|CONSTRAINT)|RENAME|SET\s+NOT\s+NULL|ALTER\s+COLUMN\s+\w+\s+TYPE)\b"
    r"|\bADD\s+COLUMN\s+\w+\s+\w+\s+NOT\s+NULL(?!\s+DEFAULT)",
    re.I,
)
NOT_USED = re.compile(r"^-- Not used since (\d+\.\d+\.\d+)\b", re.M)
ROW = re.compile(r"^\| (\d+\.\d+\.\d+) \| \d+ to (\d+) \| \d+ to (\d+) \|$", re.M)


def numbers_of(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def breaking_in(script: str, version: str) -> list[str]:
    """The statements of a version's script that remove what the version before may use."""
    found = []
    for statement in re.split(r";\s*\n", script):
        unused = NOT_USED.search(statement)
        was_left = unused is not None and numbers_of(unused[1]) < numbers_of(version)
        if REMOVES.search(re.sub(r"--.*", "", statement)) and not was_left:
            found.append(statement.strip())
    return found


def released() -> list[tuple[str, int, int]]:
    """The versions of the page with the newest schemas that they know, the newest version first."""
    rows = ROW.findall((ROOT / "docs/upgrade.md").read_text("utf-8"))
    versions = [(version, int(sqlite), int(postgres)) for version, sqlite, postgres in rows]
    return sorted(versions, key=lambda row: numbers_of(row[0]), reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_version_only_adds_to_what_the_one_before_reads(kind: str) -> None:
    """The first version has none before it."""
    newest, *before = released()
    if not before:
        return
    place = 1 + KINDS.index(kind)
    scripts = sorted((ROOT / "storage/schema" / kind).glob("*.sql"))[int(before[0][place]) :]
    broken = {each.name: breaking_in(each.read_text("utf-8"), newest[0]) for each in scripts}
    assert not any(broken.values()), broken


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("CREATE TABLE a (b TEXT NOT NULL);\nCREATE INDEX c ON a (b);\n", 0),
        ("ALTER TABLE a ADD COLUMN b TEXT;\nDROP INDEX c;\n", 0),
        ("ALTER TABLE a ADD COLUMN b bigint NOT NULL DEFAULT 0;\n", 0),
        ("-- It says DROP TABLE.\nCREATE TABLE a (b TEXT);\n", 0),
        ("ALTER TABLE a ADD COLUMN b bigint NOT NULL;\n", 1),
        ("DROP TABLE a;\nALTER TABLE b RENAME TO a;\n", 2),
        ("ALTER TABLE a DROP COLUMN b;\n", 1),
        ("ALTER TABLE a ALTER COLUMN b TYPE text;\n", 1),
        ("ALTER TABLE a ALTER COLUMN b SET NOT NULL;\n", 1),
        ("-- Not used since 1.3.0: the counts of days.\nDROP TABLE a;\n", 0),
        ("-- Not used since 1.3.0.\nDROP TABLE a;\nDROP TABLE b;\n", 1),
        ("-- Not used since 1.4.0.\nDROP TABLE a;\n", 1),
    ],
)
def test_a_removal_names_the_version_before(script: str, count: int) -> None:
    assert len(breaking_in(script, "1.4.0")) == count


def test_the_page_has_a_row_for_each_version() -> None:
    versions = released()
    assert versions
    for (_, *newer), (_, *older) in pairwise(versions):
        assert newer >= older
