"""The README's first two commands, and the library from the wheel, on a Debian with nothing but Python."""

import csv
import re
import shutil
from pathlib import Path

from tests.docs.pages import ROOT
from tests.first_use.conftest import CleanMachine

LIBRARY = """
import asyncio
import warnings

import trio

from mailprobe import HeloNameWarning, averify, verify

warnings.simplefilter("ignore", HeloNameWarning)  # this machine has no public name
for way in (verify, lambda each: asyncio.run(averify(each)), lambda each: trio.run(averify, each)):
    verdict = way("bob@mailinator.com")
    print(verdict.status, verdict.reason)
"""


def test_the_readmes_first_two_commands_lead_to_a_cleaned_list(
    clean: CleanMachine, checkout: Path
) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = [line for block in blocks for line in block.splitlines()]
    shutil.copytree(checkout, clean.home / "mailprobe", symlinks=True)
    for command in commands[:2]:
        clean.run("sh", "-ec", command, at="mailprobe")
    with (ROOT / "examples/list.csv").open() as given:
        rows = list(csv.DictReader(given))
    [cleaned] = (clean.home / "mailprobe").rglob("*.verified.csv")
    with cleaned.open() as made:
        found = list(csv.DictReader(made))
    assert len(found) == len(rows) > 0
    assert {"deliverable", "undeliverable", "invalid"} <= {row["status"] for row in found}


def test_the_installed_library_verifies_in_sync_asyncio_and_trio(
    clean: CleanMachine, wheel: Path
) -> None:
    shutil.copy(wheel, clean.home)
    clean.run("python3", "-m", "venv", "library")
    clean.run("library/bin/pip", "install", "--quiet", wheel.name)
    printed = clean.run("library/bin/python", "-c", LIBRARY)
    assert printed.splitlines() == ["invalid disposable"] * 3
