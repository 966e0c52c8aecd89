"""The check of series refuses selectors that Prometheus would never find."""

import pytest

from tests.deploy.metrics import selectors

REQUESTS = "mailprobe_requests_total"
SMTP = "mailprobe_layer_seconds_bucket"


def test_all_selectors_of_an_expression_are_found() -> None:
    text = f'sum(rate({REQUESTS}{{status="200", operation=~"verify_.+",}}[5m])) / up{{job="a"}}'
    requests, up = selectors(text)
    assert (requests.metric, up.metric) == (REQUESTS, "up")
    assert requests.matchers == (("status", "=", "200"), ("operation", "=~", "verify_.+"))
    assert up.matchers == (("job", "=", "a"),)


@pytest.mark.parametrize(
    "text",
    [
        "mailprobe_nothing_total",  # no such metric
        "mailprobe_requests",  # without its _total
        "mailprobe_layer_seconds",  # a histogram has no series of its own name
        "time()",  # no metric
        f'{REQUESTS}{{layer="smtp"}}',  # no such label
        f'{REQUESTS}{{status="299"}}',
        f'{REQUESTS}{{status=~"200|299"}}',  # one alternative
        f'{REQUESTS}{{operation="health",status="402"}}',  # each exists, but not together
        f'{REQUESTS}{{status!~".*"}}',
        f'{SMTP}{{le="3.0"}}',  # the bound is 3.05
        'mailprobe_verdicts_total{rule="no-such-rule"}',
        'mailprobe_store_seconds_count{method="no_such_method"}',
    ],
)
def test_a_selector_that_finds_no_series_is_refused(text: str) -> None:
    with pytest.raises(AssertionError):
        selectors(text)
