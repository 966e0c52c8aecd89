"""The parser of PromQL and the check of series refuse what Prometheus would refuse, or never find."""

import pytest

from tests.deploy.metrics import checked, labels_of, missing
from tests.deploy.promql import NotPromQL, parse

REQUESTS = "mailprobe_requests_total"
SMTP = "mailprobe_layer_seconds_bucket"


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (f"sum by (operation) (rate({REQUESTS}[5m]))", {"operation"}),
        (f'rate({REQUESTS}{{status="200", operation=~"verify_.+",}}[5m])', {"operation", "status", "job", "instance"}),
        (f"sum(rate({REQUESTS}[5m])) / 2 > 0.5", set()),
        (f"sum by (status) (rate({REQUESTS}[5m])) / scalar(sum(rate({REQUESTS}[5m])))", {"status"}),
        (f"histogram_quantile(0.9, sum by (le, layer) (rate({SMTP}[5m])))", {"layer"}),
        (f"topk(3, sum by (status) (increase({REQUESTS}[1h] offset 1w)))", {"status"}),
        ('up{job="a"} == 0 or absent(up{job="a"})', {"job", "instance"}),
        ("mailprobe_workers unless on (instance) changes(process_start_time_seconds[5m]) > 0", {"job", "instance"}),
        ("time() - process_start_time_seconds", {"job", "instance"}),
    ],
)  # fmt: skip
def test_an_expression_is_understood(text: str, labels: set[str]) -> None:
    found = checked(text)
    assert found.type == "vector"
    assert set(found.labels) == labels


@pytest.mark.parametrize(
    "text",
    [
        "mailprobe_nothing_total",  # no such metric
        "mailprobe_requests",  # without its _total
        "mailprobe_layer_seconds",  # a histogram has no series of its own name
        f'{REQUESTS}{{layer="smtp"}}',  # no such label
        f"{REQUESTS}{{status~'200'}}",  # no such sign
        f"rate({REQUESTS})",  # not of a range
        f"{REQUESTS}[5m] / 2",  # of a range
        f"rate({REQUESTS}[5])",  # no duration
        f"rate({REQUESTS}[5m]",  # not closed
        f"rate({REQUESTS}[5m]))",  # closed twice
        f"quantile_of({REQUESTS})",  # no such function
        f"sum by (layer) (rate({REQUESTS}[5m]))",  # by a label that is not there
        f"sum by (status) (sum(rate({REQUESTS}[5m])))",  # by a label that is gone
        f"sum by (status) (rate({REQUESTS}[5m])) / sum(rate({REQUESTS}[5m]))",  # never match
        f"histogram_quantile(0.9, sum by (layer) (rate({SMTP}[5m])))",  # without le
        f"{REQUESTS} and 1",  # and of a number
        "sum()",
        "",
    ],
)
def test_an_expression_that_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(NotPromQL):
        parse(text, labels_of())


@pytest.mark.parametrize(
    "text",
    [
        f'{REQUESTS}{{status="299"}}',
        f'{REQUESTS}{{status=~"200|299"}}',  # one alternative
        f'{REQUESTS}{{operation="health",status="402"}}',  # each exists, but not together
        f'{REQUESTS}{{status!~".*"}}',
        f'{SMTP}{{le="3.0"}}',  # the bound is 3.05
        'mailprobe_verdicts_total{rule="no-such-rule"}',
        'mailprobe_store_seconds_count{method="no_such_method"}',
    ],
)
def test_a_selector_that_finds_no_series_is_seen(text: str) -> None:
    found = parse(text, labels_of())
    assert [each for selector in found.selectors for each in missing(selector)] != []


def test_a_quantile_above_every_bucket_is_seen() -> None:
    """`histogram_quantile` returns at most the last finite bound, so the alert would never fire."""
    text = f"histogram_quantile(0.99, sum by (le) (rate({SMTP}[5m]))) > "
    checked(text + "2.9")
    with pytest.raises(AssertionError, match="never be true"):
        checked(text + "3.05")
