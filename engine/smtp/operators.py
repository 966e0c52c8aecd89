"""Finds the mail operator of a host, and its limits on connections, recipients and refusals.

Thousands of domains share one operator's hosts. `data/operators.toml` names the
operators by the ending of their exchanges' names. An operator may have a lower
limit of connections, or accept only one recipient per transaction. How many refused
recipients a host tolerates is known of operators, and of mail servers by their greeting.

Microsoft names an exchange after the domain that it serves. Its consumer
mail and its tenants share the ending `mx.microsoft`. So an ending may have
brands: a host whose first label is a domain of one of them belongs to another
operator than the rest below that ending.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mailprobe.engine.smtp.refusal_budget import RefusalAllowance

# What follows a brand in a host's first label: -com, -fr, -co-uk, -com-br
BRAND_ENDING = re.compile(r"-(?:[a-z]{2,3}|com?-[a-z]{2})")

OTHERS = "other"  # hosts of no operator and no software that we know
STRICT = RefusalAllowance(session=2, hour=8, share=0.5)  # where no file says otherwise

IDS_MAX = 10_000  # some MB; a list's domains share far fewer hosts

OPERATORS_FILE = Path(__file__).parents[1] / "data" / "operators.toml"


@dataclass(frozen=True, slots=True)
class MailOperator:
    """One operator: its id in the reply rules, and its limits."""

    id: str
    refusals: RefusalAllowance | None = None
    connections_max: int | None = None
    one_each: bool = False


class MailOperators:
    """Operators by the ending of a host name, and by the brand before that ending."""

    def __init__(
        self,
        by_ending: Mapping[str, MailOperator],
        by_brand: Mapping[tuple[str, str], MailOperator] | None = None,
        by_greeting: Mapping[str, tuple[str, RefusalAllowance]] | None = None,
        others: RefusalAllowance = STRICT,
    ) -> None:
        """`by_brand`: (ending, brand) -> the operator of that brand's hosts below the ending.

        `by_greeting`: a word of a greeting -> the id and the allowance of that software.
        """
        self._by_ending = by_ending
        self._by_brand = by_brand or {}
        self._by_greeting = by_greeting or {}
        self._others = others
        self._ids: dict[str, str] = {}  # by host; at most IDS_MAX

    def refusals_of(self, greeting: str) -> tuple[str, RefusalAllowance]:
        """The id and the allowance of the software that greets so; of all others by default."""
        greeting = greeting.lower()
        for word, row in self._by_greeting.items():
            if word in greeting:
                return row
        return OTHERS, self._others

    def find(self, host: str) -> MailOperator | None:
        """The operator of this host name (lower case, no dot at the end), or None."""
        labels = host.split(".")
        for place in range(len(labels) - 1):
            ending = ".".join(labels[place:])
            if site := self._by_ending.get(ending):
                return self._of_brand(labels[0], ending) or site
        return None

    def id_of(self, host: str) -> str:
        """The id of this host's operator; OTHERS if it is none that we know. Called for each address."""
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
    """The names of all allowances of refusals, for metrics."""
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
            _allowance(row.get("refusals")),
            row.get("connections_max"),
            row.get("one_each", False),
        )
        by_ending |= dict.fromkeys(row["endings"], site)
        for ending, brands in row.get("brands", {}).items():
            by_brand |= {(ending, brand): site for brand in brands}
    by_greeting = {
        row["greeting"]: (row["id"], RefusalAllowance(**row["refusals"]))
        for row in rows["software"]
    }
    return MailOperators(by_ending, by_brand, by_greeting, RefusalAllowance(**rows["refusals"]))


def _allowance(row: dict[str, Any] | None) -> RefusalAllowance | None:
    return None if row is None else RefusalAllowance(**row)
