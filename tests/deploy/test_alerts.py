"""The alert rules: series that exist, a runbook and a case for each.

Prometheus itself checks the rules and runs the cases: tests/peers/test_prometheus.py.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import ALERTS_FILE, ROOT
from tests.deploy.metrics import selectors
from tests.docs.pages import headings_of

# https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/
FILE: dict[str, Any] = yaml.safe_load(ALERTS_FILE.read_text("utf-8"))
RULES: list[dict[str, Any]] = [rule for group in FILE["groups"] for rule in group["rules"]]
CASES_FILES = sorted(Path(__file__).parent.glob("alert_*cases.yaml"))
CASES = [case for each in CASES_FILES for case in yaml.safe_load(each.read_text("utf-8"))["tests"]]
PAGE = ROOT / "docs/runbook.md"
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
    for selector in selectors(rule["expr"]):
        assert ("job", "=", "mailprobe") in selector.matchers, rule["expr"]


@each_rule
def test_an_alert_has_a_case_in_which_it_fires(rule: dict[str, Any]) -> None:
    """The case has the alert's texts, so they name only labels that it has."""
    checks = [check for case in CASES for check in case["alert_rule_test"]]
    own = [check["exp_alerts"] for check in checks if check["alertname"] == rule["alert"]]
    assert [] in own
    assert any(own)


def test_the_cases_are_of_series_that_exist() -> None:
    for case in CASES:
        for each in case["input_series"]:
            selectors(each["series"])


@each_rule
def test_an_alert_leads_to_its_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert ROOT / page == PAGE
    assert anchor == rule["alert"].lower()
    assert anchor in headings_of(PAGE)


def test_every_runbook_has_its_alert() -> None:
    described = re.findall(r"^#+ (Mailprobe\w+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert described == [rule["alert"] for rule in RULES]
