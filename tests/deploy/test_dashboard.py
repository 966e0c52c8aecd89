"""The Grafana dashboard: its rows, its layout, and queries of series that exist.

Prometheus itself runs the queries: tests/peers/test_prometheus.py.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from mailprobe.api.observability.catalogue import families
from mailprobe.api.operations.table import OPERATIONS
from tests.deploy.files import DASHBOARD_FILE
from tests.deploy.metrics import TARGET_LABELS, selectors

DASHBOARD: dict[str, Any] = json.loads(DASHBOARD_FILE.read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
WIDTH = 24  # of Grafana's grid
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"percentunit", "reqps", "s", "short"}
ROWS = [
    "Requests",
    "Latency",
    "Verdicts",
    "Mail hosts",
    "Resolver",
    "Quota",
    "Jobs and callbacks",
    "Store",
    "Process",
    "Egresses",
]
each_graph = pytest.mark.parametrize("panel", GRAPHS, ids=lambda panel: panel["title"])


def query(text: str) -> str:
    """The expression with Grafana's variables filled in."""
    text = text.replace("$__rate_interval", "5m").replace("$job", ".+").replace("$instance", ".+")
    assert "$" not in text
    return text


def test_the_dashboard_has_its_rows_and_each_has_graphs() -> None:
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == ROWS
    kinds = [panel["type"] for panel in PANELS]
    assert all(kinds[at + 1] != "row" for at, kind in enumerate(kinds[:-1]) if kind == "row")
    assert kinds[-1] != "row"


def test_every_panel_has_a_place_of_its_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken = list(squares())
    assert len(taken) == len(set(taken))
    assert all(0 <= x < WIDTH for x, _ in taken)


def squares() -> Iterator[tuple[int, int]]:
    for panel in PANELS:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            yield from ((x, y) for y in range(place["y"], place["y"] + place["h"]))


@each_graph
def test_a_graph_shows_series_that_exist(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"] == SOURCE
    references = [target["refId"] for target in panel["targets"]]
    assert len(references) == len(set(references)) > 0
    for target in panel["targets"]:
        assert target["datasource"] == SOURCE
        for selector in selectors(query(target["expr"])):  # the reader's choice holds for each
            assert {("job", "=~", ".+"), ("instance", "=~", ".+")} <= set(selector.matchers)


@each_graph
def test_the_lines_of_a_graph_have_different_legends(panel: dict[str, Any]) -> None:
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert len(legends) == len(set(legends))
    assert all(legends)


def test_variables_are_filled_from_a_metric_that_every_service_has() -> None:
    source, *choices = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    for choice in choices:
        assert choice["datasource"] == SOURCE
        text = choice["query"]["query"]
        assert choice["definition"] == text
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", text)
        assert found
        assert selectors(query(found[1]))
        assert found[2] in TARGET_LABELS
        assert found[2] == choice["name"]


def test_every_metric_of_the_catalogue_is_on_the_dashboard() -> None:
    text = DASHBOARD_FILE.read_text("utf-8")
    absent = [
        each.name
        for each in families(OPERATIONS)
        if not re.search(rf"\b{each.name}(_total|_bucket|_count)?\{{", text)
    ]
    assert absent == []
