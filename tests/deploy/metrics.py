"""Every series that the service can have, and whether an expression finds one among them."""

import re
from collections.abc import Mapping, Sequence
from functools import cache

from prometheus_client.parser import text_string_to_metric_families

from mailprobe.api.observability.catalogue import families
from mailprobe.api.observability.exposition import page
from mailprobe.api.observability.metrics import open_metrics
from mailprobe.api.rest.operations import OPERATIONS
from tests.deploy.promql import TARGET_LABELS, Expression, Labels, Selector, parse

Series = dict[str, str]


@cache
def series() -> Mapping[str, list[Series]]:
    """Sample name -> the labels of each of its series; a sparse family's from the catalogue."""
    found: dict[str, list[Series]] = {"up": [{}]}  # Prometheus's own
    with open_metrics(1, OPERATIONS) as counters:
        text = page(counters, "1").decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(dict(sample.labels))
    for each in families(OPERATIONS):
        if each.sparse:
            found[f"{each.name}_total"] = [
                dict(zip(each.labels, values, strict=True)) for values in each.series
            ]
    return found


@cache
def labels_of() -> Mapping[str, Labels]:
    return {name: frozenset(all_of[0]) for name, all_of in series().items()}


@cache
def last_bounds() -> Mapping[str, float]:
    """Histogram -> its last finite bound: no quantile is above it."""
    return {each.name: each.bounds[-1] for each in families(OPERATIONS) if each.bounds}


def checked(text: str) -> Expression:
    """Parse the expression; fail if it selects what no service ever has."""
    found = parse(text, labels_of())
    assert found.selectors, text
    for selector in found.selectors:
        assert missing(selector) == [], text
    for metric, number in found.quantiles:
        assert number < last_bounds()[metric], f"{text} can never be true"
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
        all(_matches(labels[label], sign, value) for label, sign, value in matchers)
        for labels in series()[metric]
    )


def _matches(value: str, sign: str, wanted: str) -> bool:
    matches = value == wanted if sign in ("=", "!=") else bool(re.fullmatch(wanted, value))
    return matches == sign.startswith("=")
