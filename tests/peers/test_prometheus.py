"""Prometheus's promtool accepts the alert rules and the dashboard's queries, and runs both.

https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import ALERTS_FILE
from tests.deploy.metrics import series
from tests.deploy.test_alerts import CASES_FILES
from tests.deploy.test_dashboard import GRAPHS, query
from tests.peers.programs.process import make_folder
from tests.peers.programs.promtool import matchers, promtool

TARGET = {"job": "mailprobe", "instance": "a"}
MINUTES = 75  # more than the longest range of a query, an hour
LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")


@pytest.fixture
def folder() -> Path:
    return make_folder("prometheus")


def test_alerts_fire_in_their_cases_and_not_before(folder: Path) -> None:
    shutil.copy(ALERTS_FILE, folder)
    promtool("check", "rules", f"/peers/prometheus/{ALERTS_FILE.name}")
    for file in CASES_FILES:
        text = file.read_text("utf-8").replace("../../deploy/", "/peers/prometheus/")
        (folder / file.name).write_text(text)
        promtool("test", "rules", f"/peers/prometheus/{file.name}")


def test_every_query_of_the_dashboard_has_a_result_with_its_legends_labels(folder: Path) -> None:
    """Of a service that has every series there can be."""
    given = [
        {"series": name + matchers(labels | TARGET), "values": f"0+1x{MINUTES}"}
        for name, all_of in series().items()
        for labels in all_of
    ]
    (folder / "empty.yaml").write_text("groups: []\n")
    file = {
        "rule_files": ["empty.yaml"],
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": list(queries())}],
    }
    (folder / "queries.yaml").write_text(json.dumps(file))
    promtool("test", "rules", "/peers/prometheus/queries.yaml")


def queries() -> Iterator[dict[str, Any]]:
    """For each query and each label of its legend: whether a series of the result has the label."""
    for panel in GRAPHS:
        for target in panel["targets"]:
            text = query(target["expr"])
            for label in LEGEND_LABEL.findall(target["legendFormat"]) or [None]:
                wanted = f'"{label}", ".+"' if label else '"", ""'
                marked = f'label_replace({text}, "has", "it", {wanted})'
                yield {
                    "expr": f'group by (has) ({marked}) and on (has) label_replace(vector(1), "has", "it", "", "")',
                    "eval_time": f"{MINUTES}m",
                    "exp_samples": [{"labels": '{has="it"}', "value": 1}],
                }
