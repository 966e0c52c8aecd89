"""Which mail operator a host belongs to, and how it wants to be treated.

Thousands of domains share one operator's hosts. `data/sites.toml` names the
operators by the ending of their exchanges' names; an operator may ask for
fewer connections, or for one recipient a transaction from the start.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

SITES = Path(__file__).with_name("data") / "sites.toml"


@dataclass(frozen=True, slots=True)
class Site:
    """One operator: its id in the reply rules, and its wishes."""

    id: str
    connections_max: int | None = None
    one_each: bool = False


class Sites:
    """Operators by the ending of a host name."""

    def __init__(self, by_ending: dict[str, Site]) -> None:
        self._by_ending = by_ending

    def find(self, host: str) -> Site | None:
        """The operator of this host name (lower case, no dot at the end), if we know it."""
        labels = host.split(".")
        for place in range(len(labels) - 1):
            if site := self._by_ending.get(".".join(labels[place:])):
                return site
        return None


def load_sites() -> Sites:
    by_ending = {}
    for row in tomllib.loads(SITES.read_text("utf-8"))["site"]:
        site = Site(row["id"], row.get("connections_max"), row.get("one_each", False))
        for ending in row["endings"]:
            by_ending[ending] = site
    return Sites(by_ending)
