"""The metrics of egresses: bounded by the file, and the same in every worker."""

from mailprobe.api.egress.control import EgressNow
from mailprobe.api.observability.metrics import Load, Metrics, open_metrics
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.engine.egress import Egress, Egresses
from mailprobe.engine.observer import EngineStatistics
from mailprobe.engine.verdict import Outcome
from tests.api.observability.counting import read

IDLE = EngineStatistics(0, 0, 0, 0, 0, 0, 0)


def test_each_egress_of_the_file_has_its_state_its_day_and_its_replies() -> None:
    egresses = Egresses((Egress("fra-1"), Egress("fra-2", source="192.0.2.1")))
    with open_metrics(1, OPERATIONS, egresses) as board:
        now = (EgressNow("fra-1", "quarantined", 7, 500), EgressNow("fra-2", "active", 9, None))
        metrics = Metrics(board.attach())
        metrics.probe_decided("fra-1", "google", Outcome.HOST_BUDGET, "host.budget")
        metrics.probe_decided("unknown", "nobody", Outcome.HOST_BUDGET, "host.budget")
        metrics.sample(Load(IDLE, 0, 0, 0, False, now))
        reported = read(board)
    assert reported.shown("mailprobe_egress_state") == [
        {"egress": "fra-1", "state": "quarantined"},
        {"egress": "fra-2", "state": "active"},
    ]
    assert reported("mailprobe_egress_addresses_today", egress="fra-1") == 7
    assert reported("mailprobe_egress_addresses_limit", egress="fra-1") == 500
    assert reported("mailprobe_egress_addresses_limit", egress="fra-2") == 0
    assert reported.shown("mailprobe_replies_total") == [
        {"egress": "fra-1", "operator": "google", "reason": "host_budget"},
        {"egress": "other", "operator": "other", "reason": "other"},
    ]


def test_without_a_file_there_is_one_egress_and_no_state_of_it() -> None:
    with open_metrics(1, OPERATIONS) as board:
        metrics = Metrics(board.attach())
        metrics.probe_decided("default", "google", Outcome.HOST_BUDGET, "host.budget")
        metrics.sample(Load(IDLE, 0, 0, 0, False))
        reported = read(board)
    assert reported("mailprobe_replies_total", egress="default", operator="google") == 1
    assert reported.shown("mailprobe_egress_state") == []
