"""Every locked package has a licence that an Apache-2.0 program may use; NOTICE names what is included."""

import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution

import pytest

from tests.architecture_map import ROOT
from tests.test_dependencies import locked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NOTICE = (ROOT / "NOTICE").read_text("utf-8")
VENDOR = ROOT / "api/pages/dashboard/static/vendor"
# SPDX identifiers of permissive licences.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0",
    "MIT-CMU", "PSF-2.0", "Public-Domain", "Unlicense", "Zlib",
}  # fmt: skip
# Licences that bind changed copies of the package itself: allowed by name, as libraries that are
# imported unchanged. Those of the runtime are in NOTICE.
IMPORTED = {
    "certifi": "MPL-2.0",
    "fqdn": "MPL-2.0",
    "hypothesis": "MPL-2.0",
    "orjson": "MPL-2.0",
    "pathspec": "MPL-2.0",
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
    "publicsuffixlist": "MPL-2.0",
}
UNDECLARED = {"axe-playwright-python": "MIT"}  # by the licence file that it installs
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Public Domain": "Public-Domain",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
# The field of old metadata is free text; the words of packages without a classifier.
TEXTS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
}


def installed(lock: str) -> dict[str, Distribution]:
    """The locked packages that this interpreter and system need."""
    found = {}
    for name in locked(lock):
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # of another interpreter or system
    return found


def licence_of(name: str, package: Distribution) -> str:
    """The SPDX expression that the package's metadata give, empty if they give none."""
    metadata = package.metadata
    if expression := metadata["License-Expression"]:
        return expression
    classified = [
        CLASSIFIERS.get(each.rpartition(" :: ")[2], each)
        for each in metadata.get_all("Classifier") or []
        if each.startswith("License :: ") and each != "License :: OSI Approved"
    ]
    if classified:
        return " AND ".join(classified)
    text = (metadata["License"] or "").strip()
    return TEXTS.get(text, text) or UNDECLARED.get(name, "")


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Return whether the SPDX expression can be met: AND binds more than OR."""
    if inner := re.search(r"\(([^()]*)\)", expression):
        met = "MIT" if is_allowed(inner[1], allowed) else "none"
        return is_allowed(expression.replace(inner[0], met), allowed)
    return any(
        all(each.strip() in allowed for each in choice.split(" AND "))
        for choice in expression.split(" OR ")
    )


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_every_package_has_a_licence_of_the_list(lock: str) -> None:
    packages = installed(lock)
    assert len(packages) > 30
    refused = {
        name: expression
        for name, package in packages.items()
        if not is_allowed(
            expression := licence_of(name, package), ALLOWED | {IMPORTED.get(name, "MIT")}
        )
    }
    assert refused == {}


def test_an_expression_is_met_as_spdx_says() -> None:
    for expression, met in {
        "MIT": True,
        "GPL-3.0-only": False,
        "GPL-3.0-only OR MIT": True,
        "MIT AND GPL-3.0-only": False,
        "MPL-2.0 AND (Apache-2.0 OR MIT)": False,
        "BSD-3-Clause AND (GPL-2.0-only OR MIT)": True,
        "": False,
    }.items():
        assert is_allowed(expression, ALLOWED) is met, expression


def test_the_notice_names_each_library_that_is_not_permissive() -> None:
    for name in set(IMPORTED) & set(locked("requirements-mcp.lock")):
        assert re.search(rf"\b{name}\b.*(MPL|LGPL)", NOTICE), name


def test_the_notice_names_what_is_vendored_and_whose_lists_are_used() -> None:
    vendored = re.findall(r"^== (.+)$", (VENDOR / "LICENSES.txt").read_text("utf-8"), re.M)
    files = {path.stem.removesuffix("-bold") for path in VENDOR.iterdir()} - {"LICENSES"}
    assert len(vendored) == len(files)
    assert [each for each in vendored if each.lower() not in NOTICE.lower()] == []
    sources = (ROOT / "engine/data/SOURCES.md").read_text("utf-8")
    rows = re.findall(
        r"^\| ([\w-]+)[^|]*\|[^|]+\| (?:PyPI|npm)[^|]*\|[^|]+\| ([\w.-]+)", sources, re.M
    )
    assert len(rows) > 10
    for name, licence in rows:
        assert re.search(rf"^{name}\b.*\b{licence}", NOTICE, re.M), name


def test_the_licence_is_declared_and_its_files_are_there() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text("utf-8").lstrip().startswith("Apache License\n")
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])
