"""Mail operators by host name, and kinds of mail servers by their words: what is known of their limits.

Thousands of domains share one operator's hosts. `data/operators.toml` names the
operators by the ending of their exchanges' names. An operator may have a lower
limit of connections, or accept only one recipient per transaction. How many refused
recipients a host tolerates is learned (see mailprobe.engine.smtp.tolerance); a row only
narrows or widens where it begins. Mail servers are recognised by the words of their greeting,
of their reply to EHLO, or of their first refusal.

Microsoft names an exchange after the domain that it serves. Its consumer
mail and its tenants share the ending `mx.microsoft`. So an ending may have
brands: a host whose first label is a domain of one of them belongs to another
operator than the rest below that ending.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from .tolerance.limits import RefusalLimits

# What follows a brand in a host's first label: -com, -fr, -co-uk, -com-br
BRAND_ENDING = re.compile(r"-(?:[a-z]{2,3}|com?-[a-z]{2})")

OTHERS = "other"  # hosts whose operator and software are in no row

# Below a country these are not a name but for all: `co.uk`, `com.br`, `ac.jp`.
SUFFIX_LABELS = (
    *("ac", "ad", "co", "com", "ed", "edu", "go", "gob", "gouv", "gov", "govt", "gr", "id", "info"),
    *("lg", "ltd", "me", "mil", "ne", "net", "nhs", "nom", "or", "org", "plc", "police", "sch"),
    *("school", "web"),
)
IDS_MAX = 10_000  # some MB; a list's domains share far fewer hosts

OPERATORS_FILE = Path(__file__).parents[1] / "data" / "operators.toml"


class MailOperator(Struct, frozen=True):
    """One operator: its id in the reply rules, and its limits."""

    id: str
    refusals: RefusalLimits | None = None
    connections_max: int | None = None
    one_each: bool = False


class MailSoftware(Struct, frozen=True):
    """One kind of mail server, and the words by which it is recognised, in lower case."""

    id: str
    limits: RefusalLimits
    words: tuple[str, ...] = ()  # of its greeting, or of its reply to EHLO
    refused: tuple[str, ...] = ()  # of its refusal of an unknown recipient


class MailOperators(Struct, eq=False):
    """Operators by the ending of a host name, and by the brand before that ending."""

    _by_ending: Mapping[str, MailOperator]
    # (ending, brand) -> the operator of that brand's hosts below the ending
    _by_brand: Mapping[tuple[str, str], MailOperator] = {}
    _software: Sequence[MailSoftware] = ()
    _ids: dict[str, str] = {}  # by host; at most IDS_MAX

    def greets_as(self, text: str) -> MailSoftware | None:
        """The software of a host with this greeting or reply to EHLO, if it tells."""
        text = text.lower()
        return next((row for row in self._software if any(w in text for w in row.words)), None)

    def refuses_as(self, text: str) -> MailSoftware | None:
        """The software of a host that refuses an unknown recipient in these words, if they tell."""
        text = text.lower()
        return next((row for row in self._software if any(w in text for w in row.refused)), None)

    def find(self, host: str) -> MailOperator | None:
        """The operator of this host name (lower case, no dot at the end), or None."""
        labels = host.split(".")
        for place in range(len(labels) - 1):
            ending = ".".join(labels[place:])
            if site := self._by_ending.get(ending):
                return self._of_brand(labels[0], ending) or site
        return None

    def id_of(self, host: str) -> str:
        """The id of this host's operator; OTHERS if it is not known. Called for each address."""
        known = self._ids.get(host)
        if known is None:
            site = self.find(host)
            if len(self._ids) >= IDS_MAX:
                self._ids.clear()
            known = self._ids[host] = OTHERS if site is None else site.id
        return known

    @property
    def endings(self) -> frozenset[str]:
        """The endings of all operators' exchanges."""
        return frozenset(self._by_ending)

    def _of_brand(self, label: str, ending: str) -> MailOperator | None:
        brand, hyphen, rest = label.partition("-")
        if not BRAND_ENDING.fullmatch(hyphen + rest):
            return None
        return self._by_brand.get((ending, brand))


def budget_labels() -> tuple[str, ...]:
    """The names of all rows with limits of refusals, for metrics."""
    rows = tomllib.loads(OPERATORS_FILE.read_text("utf-8"))
    named = [row["id"] for row in (*rows["site"], *rows["software"]) if "refusals" in row]
    return tuple(dict.fromkeys((*named, OTHERS)))


def operator_labels() -> tuple[str, ...]:
    """The ids of all operators by their exchanges, and one for all others; for metrics."""
    rows = tomllib.loads(OPERATORS_FILE.read_text("utf-8"))
    return tuple(dict.fromkeys((*(row["id"] for row in rows["site"]), OTHERS)))


def load_operators() -> MailOperators:
    by_ending: dict[str, MailOperator] = {}
    by_brand: dict[tuple[str, str], MailOperator] = {}
    rows = tomllib.loads(OPERATORS_FILE.read_text("utf-8"))
    for row in rows["site"]:
        site = MailOperator(
            row["id"],
            _limits(row.get("refusals")),
            row.get("connections_max"),
            row.get("one_each", False),
        )
        by_ending |= dict.fromkeys(row["endings"], site)
        for ending, brands in row.get("brands", {}).items():
            by_brand |= {(ending, brand): site for brand in brands}
    software = [
        MailSoftware(
            row["id"], RefusalLimits(**row["refusals"]), tuple(row["words"]), tuple(row["refused"])
        )
        for row in rows["software"]
    ]
    return MailOperators(by_ending, by_brand, software)


def _limits(row: dict[str, Any] | None) -> RefusalLimits | None:
    return None if row is None else RefusalLimits(**row)


def is_own_server(exchange: str, domain: str) -> bool:
    """Is the exchange's name at or below the registrable domain of the mail domain?"""
    parent = domain.partition(".")[2]
    second, dot, last = parent.partition(".")
    is_of_all = not dot or (len(last) == 2 and second in SUFFIX_LABELS)  # co.uk
    is_below = f".{exchange}".endswith(f".{domain}")
    return is_below or (not is_of_all and is_own_server(exchange, parent))
