"""Every series that the service can have, and whether an expression finds one among them.

Prometheus's own `promtool` checks the expressions: tests/peers/test_prometheus.py.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from mailprobe.api.observability.catalogue import families
from mailprobe.api.observability.exposition import page
from mailprobe.api.observability.metrics import open_metrics
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.engine.egress import Egress, Egresses

Series = dict[str, str]
EGRESSES = Egresses((Egress("fra-1"),))

TARGET_LABELS = frozenset({"job", "instance"})  # Prometheus adds them when it scrapes
METRIC = re.compile(r"\b(up|(?:mailprobe|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


@dataclass(frozen=True)
class Selector:
    """A metric with its matchers: label, `=` or another sign, and the value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


@cache
def series() -> Mapping[str, list[Series]]:
    """Sample name -> the labels of each of its series; a sparse family's from the catalogue."""
    found: dict[str, list[Series]] = {"up": [{}]}  # Prometheus's own
    with open_metrics(1, OPERATIONS, EGRESSES) as counters:
        text = page(counters, "1", "1").decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(dict(sample.labels))
    for each in families(OPERATIONS, EGRESSES):
        if each.sparse:
            found[f"{each.name}_total"] = [
                dict(zip(each.labels, values, strict=True)) for values in each.series
            ]
    return found


def selectors(text: str) -> list[Selector]:
    """The selectors of an expression; fails if one selects what no service ever has."""
    found = [
        Selector(metric, tuple(MATCHER.findall(matchers)))
        for metric, matchers in METRIC.findall(text)
    ]
    assert found, text
    for selector in found:
        assert missing(selector) == [], text
    return found


def missing(selector: Selector) -> list[str]:
    """What finds no series: the selector, or one alternative of a matcher such as "a|b"."""
    own = [each for each in selector.matchers if each[0] not in TARGET_LABELS]
    wanted = [own]
    for number, (label, sign, value) in enumerate(own):
        if sign == "=~" and "|" in value:
            wanted += [
                [*own[:number], (label, sign, one), *own[number + 1 :]] for one in value.split("|")
            ]
    return [f"{selector.metric}{each}" for each in wanted if not _exists(selector.metric, each)]


def _exists(metric: str, matchers: Sequence[tuple[str, str, str]]) -> bool:
    return any(
        all(
            label in labels and _matches(labels[label], sign, value)
            for label, sign, value in matchers
        )
        for labels in series().get(metric, [])
    )


def _matches(value: str, sign: str, wanted: str) -> bool:
    matches = value == wanted if sign in ("=", "!=") else bool(re.fullmatch(wanted, value))
    return matches == sign.startswith("=")
