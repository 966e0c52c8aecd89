"""Reads `egress.toml`, the file that MAILPROBE_EGRESS_FILE names: the ways by which probes leave.

The file is taken whole or not at all: an unknown key, a name or an address that is there twice,
and a value of the wrong kind are errors. Each is one line with the egress and the key, and
without the password of a proxy.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from mailprobe.engine.egress import (
    EGRESSES_MAX,
    NAME_CHARACTERS_MAX,
    ONE_EGRESS,
    DailyLimit,
    Egress,
    Egresses,
)

from ..setting_values import HELO, MAIL_FROM, ValueType, read_proxy_url
from ..settings_files import Unreadable, read_toml

WEIGHT_MAX = 1_000_000  # beyond it the other egresses would get nothing
ADDRESSES_MAX = 1_000_000_000  # a day; more than one address of ours can ask
STEPS_MAX = 366  # a limit for each day of a year
VALUE_CHARACTERS_MAX = 60  # of a wrong value in its error: enough for an IPv6 address

NAME_TAKES = (
    f"1 to {NAME_CHARACTERS_MAX} letters, digits, dots, hyphens and underscores,"
    " the first a letter or a digit"
)
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}", re.ASCII)
_HAS_PASSWORD = frozenset({"proxy"})  # keys whose wrong values are not shown


def read_egress_file(text: str) -> Egresses:
    """Read the file of this path; ONE_EGRESS without one. Raises ValueError with a line."""
    if not text:
        return ONE_EGRESS
    try:
        return egresses_of(read_toml(Path(text)))
    except Unreadable as error:
        raise ValueError(f"the file {error}; it takes the path of a TOML file") from None


def egresses_of(content: Mapping[str, Any]) -> Egresses:
    """Return the egresses of a file's content. Raises ValueError with a line."""
    _check_keys("the file", content, ("egress", "quarantine_share"))
    tables = content.get("egress")
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise ValueError("the file has no [[egress]]: it takes a table for each egress")
    if not 0 < len(tables) <= EGRESSES_MAX:
        raise ValueError(f"the file has {len(tables):,} egresses; it takes 1 to {EGRESSES_MAX}")
    rows: dict[str, Egress] = {}
    ways: dict[str | None, str] = {}
    for number, table in enumerate(tables, start=1):
        row = _egress(number, table)
        if row.name.lower() in rows:
            raise ValueError(f"egress {row.name}: name: another egress has this name")
        way = row.source or row.proxy
        if way in ways:
            raise ValueError(f"egress {row.name}: {_SAME_WAY[_way_key(row)]} {ways[way]}")
        rows[row.name.lower()], ways[way] = row, row.name
    share = content.get("quarantine_share", Egresses().quarantine_share)
    if not _is_number(share) or not 0 < share <= 1:
        raise ValueError(
            f"quarantine_share is {_shown(share)}; it takes a number above 0, at most 1"
        )
    return Egresses(tuple(rows.values()), float(share))


_SAME_WAY = {
    "address": "address: it is also that of egress",
    "proxy": "proxy: it is also that of egress",
    "": "only one may have neither address nor proxy, as has egress",
}


def _way_key(row: Egress) -> str:
    return "address" if row.source else "proxy" if row.proxy else ""


def _egress(number: int, table: Mapping[str, object]) -> Egress:
    """One table. Its name is read first, because errors name it."""
    try:
        name = _name(table["name"]) if "name" in table else None
    except _Wrong as wrong:
        raise ValueError(f"egress {number}: name is {_shown(table['name'])}; {wrong}") from None
    if name is None:
        raise ValueError(f"egress {number} has no name; it takes {NAME_TAKES}")
    _check_keys(f"egress {name}", table, tuple(_READERS))
    values: dict[str, Any] = {}
    for key, value in table.items():
        field, read = _READERS[key]
        try:
            values[field] = read(value)
        except _Wrong as wrong:
            shown = "" if key in _HAS_PASSWORD else f" is {_shown(value)}"
            raise ValueError(f"egress {name}: {key}{shown}; {wrong}") from None
    if "source" in values and "proxy" in values:
        raise ValueError(f"egress {name}: address and proxy; it takes one of the two")
    if both := sorted(values.get("only", frozenset()) & values.get("never", frozenset())):
        raise ValueError(f"egress {name}: {both[0]} is in only_operators and in never_operators")
    return Egress(**values)


class _Wrong(ValueError):
    """What a key takes."""


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _Wrong(f"it takes {NAME_TAKES}")
    return value


def _address(value: object) -> str:
    takes = _Wrong("it takes an IP address of this machine, such as 192.0.2.10")
    if not isinstance(value, str):
        raise takes
    try:
        address = ip_address(value)
    except ValueError:
        raise takes from None
    if address.is_unspecified or address.is_multicast or "%" in value:
        raise takes
    return str(address)


def _proxy(value: object) -> str:
    if not isinstance(value, str):
        raise _Wrong("it takes socks5://[user:pass@]address:port")
    try:
        return read_proxy_url(value)
    except ValueError:  # its message may have the password
        raise _Wrong(
            "it takes socks5://[user:pass@]address:port, the host as an IP address"
        ) from None


def _text_of(kind: ValueType[str]) -> Callable[[object], str]:
    def read_value(value: object) -> str:
        with suppress(ValueError):
            if isinstance(value, str):
                return kind.read(value)
        raise _Wrong(f"it takes {kind.takes}")

    return read_value


def _weight(value: Any) -> float:
    if not _is_number(value) or not 0 < value <= WEIGHT_MAX:
        raise _Wrong(f"it takes a number above 0, at most {WEIGHT_MAX:,}")
    return float(value)


def _daily(value: object) -> tuple[DailyLimit, ...]:
    """A number for every day, or numbers by the date from which on they hold."""
    takes = f'it takes 0 to {ADDRESSES_MAX:,}, or such numbers by date: {{ "2026-11-01" = 500 }}'
    steps = {date.min.isoformat(): value} if _is_count(value) else value
    if not isinstance(steps, dict) or not 0 < len(steps) <= STEPS_MAX:
        raise _Wrong(takes)
    limits = []
    for since, addresses in steps.items():
        if not _is_count(addresses):
            raise _Wrong(takes)
        limits.append(DailyLimit(_date(since), addresses))
    return tuple(sorted(limits))


def _date(text: str) -> date:
    """A date as TOML writes it; date.fromisoformat() takes weeks and other forms, too."""
    with suppress(ValueError):
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            return date.fromisoformat(text)
    raise _Wrong(f"{_shown(text)} is not a date, such as 2026-11-01")


def _operators(value: object) -> frozenset[str]:
    from mailprobe.engine.smtp.operators import operator_labels  # reads a file

    known = operator_labels()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _Wrong(f"it takes a list of {', '.join(known)}")
    for each in value:
        if each not in known:
            raise _Wrong(f"{_shown(each)} is not an operator; {_hint(each, known)}")
    return frozenset(value)


# Key -> the field of Egress, and what reads the value.
_READERS: dict[str, tuple[str, Callable[[object], object]]] = {
    "name": ("name", _name),
    "address": ("source", _address),
    "proxy": ("proxy", _proxy),
    "helo": ("helo_name", _text_of(HELO)),
    "mail_from": ("mail_from", _text_of(MAIL_FROM)),
    "weight": ("weight", _weight),
    "addresses_a_day": ("daily", _daily),
    "only_operators": ("only", _operators),
    "never_operators": ("never", _operators),
}


def _check_keys(subject: str, table: Mapping[str, object], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{subject} has an unknown key {_shown(key)}; {_hint(key, known)}")


def _hint(word: str, known: tuple[str, ...]) -> str:
    import difflib  # a mistake only

    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= ADDRESSES_MAX


def _shown(value: object) -> str:
    """The value, quoted and cut; a table or a list by its kind, for it may hold anything."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    text = str(value)
    return repr(text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}…")
