"""The alert rules: Prometheus's format, expressions that can be true, and a runbook for each."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import ALERTS_FILE, ROOT
from tests.deploy.metrics import checked
from tests.docs.pages import headings_of

# https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/
FILE: dict[str, Any] = yaml.safe_load(ALERTS_FILE.read_text("utf-8"))
RULES: list[dict[str, Any]] = [rule for group in FILE["groups"] for rule in group["rules"]]
CASES_FILE = Path(__file__).parent / "alert_cases.yaml"
PAGE = ROOT / "docs/operating.md"
TEMPLATES = re.compile(r"\{\{(.*?)\}\}")
VALUES = {"$value", "$value | humanize", "$value | humanizePercentage"}
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def test_the_file_is_one_of_rules_and_their_names_are_distinct() -> None:
    assert set(FILE) == {"groups"}
    assert all(set(group) == {"name", "rules"} for group in FILE["groups"])
    for names in ([each["name"] for each in FILE["groups"]], [each["alert"] for each in RULES]):
        assert len(names) == len(set(names))
    assert len(RULES) > 10


@each_rule
def test_a_rule_has_what_prometheus_and_its_reader_need(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Mailprobe[A-Z][A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[smhd]", rule["for"])
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert all(isinstance(text, str) and text for text in rule["annotations"].values())


@each_rule
def test_an_alerts_expression_is_of_series_that_exist(rule: dict[str, Any]) -> None:
    found = checked(rule["expr"])
    assert found.type == "vector"
    for selector in found.selectors:
        assert ("job", "=", "mailprobe") in selector.matchers, rule["expr"]


@each_rule
def test_an_alerts_text_names_only_labels_that_it_has(rule: dict[str, Any]) -> None:
    labels = checked(rule["expr"]).labels
    assert "instance" in labels
    for text in rule["annotations"].values():
        for template in TEMPLATES.findall(text):
            name = template.strip()
            assert name in VALUES or name.removeprefix("$labels.") in labels, text


@each_rule
def test_an_alert_leads_to_its_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert ROOT / page == PAGE
    assert anchor == rule["alert"].lower()
    assert anchor in headings_of(PAGE)


def test_every_runbook_has_its_alert() -> None:
    described = re.findall(r"^#+ (Mailprobe\w+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert described == [rule["alert"] for rule in RULES]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="this machine has no promtool")
@pytest.mark.parametrize("words", [("check", ALERTS_FILE), ("test", CASES_FILE)])
def test_prometheus_accepts_the_rules(words: tuple[str, Path]) -> None:
    """In the cases each alert that they name begins when it should, and not before."""
    kind, file = words
    done = subprocess.run(["promtool", kind, "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
