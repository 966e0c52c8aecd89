"""Three services behind nginx on a PostgreSQL that is 1 ms away: lists, an outage, a kill, alerts.

The tests share one fleet, in the order of the file: each goes on with what the ones before have
left. They compare with the places for probes and with what the same run has shown, never with a
time, so that they hold on a busy machine.
"""

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from mailprobe.bench.lab.scenarios import REFUSED_SOURCE
from mailprobe.bench.load.running_lists import answered
from tests.api.stores import asked
from tests.deploy.files import ALERTS_FILE
from tests.peers.fleet import (
    PATIENCE_S,
    PLACES,
    POLL_S,
    SERVICES,
    Fleet,
    Samples,
    open_fleet,
    wait_until,
)
from tests.peers.programs.process import make_folder
from tests.peers.programs.promtool import matchers, promtool

LISTS, ROWS = 1_000, 3
READ_EACH = 10  # of these lists: the results of one are read
UPLOADED = 3  # more lists, through nginx
ALONE_ROWS = 500
KILLED_LISTS, KILLED_ROWS = 5, 40
REQUESTS = 100
CUT = 1  # the machine that loses its database
MINUTES = 6  # of an alert: longer than each of them waits
ALERTS = ("MailprobeDown", "MailprobeEgressQuarantined", "MailprobeStoreUnavailable")


@dataclass(frozen=True)
class Scraped:
    """What Prometheus would have read of each machine, time after time; None if it is gone."""

    times: list[list[Samples | None]] = field(default_factory=list)

    def scrape(self, fleet: Fleet, gone: int | None = None) -> None:
        self.times.append(
            [
                None if number == gone else machine.samples()
                for number, machine in enumerate(fleet.machines)
            ]
        )

    def series(self) -> Iterator[dict[str, str]]:
        """For promtool: each time lasts MINUTES."""
        for number in range(SERVICES):
            target = {"job": "mailprobe", "instance": f"{number}"}
            seen = [time[number] for time in self.times]
            up = " ".join(f"{int(samples is not None)}x{MINUTES - 1}" for samples in seen)
            yield {"series": f"up{matchers(target)}", "values": up}
            for name, labels in sorted({key for samples in seen if samples for key in samples}):
                if name.startswith("mailprobe_") and not name.endswith("_bucket"):
                    values = (samples.get((name, labels)) if samples else None for samples in seen)
                    texts = ("_" if value is None else repr(value) for value in values)
                    yield {
                        "series": name + matchers(dict(labels) | target),
                        "values": " ".join(f"{text}x{MINUTES - 1}" for text in texts),
                    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with open_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def scraped() -> Scraped:
    return Scraped()


def left(fleet: Fleet) -> int:
    return sum(len(each.texts) for each in fleet.lists) - answered(fleet.database).addresses


def probes(fleet: Fleet) -> list[float]:
    return [machine.probes() for machine in fleet.machines]


def places_used(fleet: Fleet) -> list[float]:
    """Return the share of its places that each service uses while lists have work for all.

    The share that a service has reached in a tenth of the samples: a busy machine stops it for
    some of the time, as do answers of the database that come too late.
    """
    samples, latest, until = list[list[float]](), 0, 0.0
    while (still := left(fleet)) > 2 * SERVICES * PLACES:
        if still != latest:
            latest, until = still, time.monotonic() + PATIENCE_S
        assert time.monotonic() < until, samples
        samples.append([under_way / PLACES for under_way in probes(fleet)])
        time.sleep(POLL_S)
    return [sorted(shares)[9 * len(shares) // 10] for shares in zip(*samples, strict=True)]


def test_lists_of_many_accounts_run_at_the_rate_of_the_places(
    fleet: Fleet, scraped: Scraped
) -> None:
    scraped.scrape(fleet)
    keys = [account.key for account in fleet.accounts]
    for key in keys[:UPLOADED]:
        fleet.send_list(key, ROWS)
    fleet.store_lists([keys[number % len(keys)] for number in range(LISTS)], ROWS)
    assert min(places_used(fleet)) >= 0.9
    fleet.wait_for_lists()


def test_a_list_alone_uses_nine_of_ten_places_of_all_services(fleet: Fleet) -> None:
    fleet.store_lists([fleet.accounts[0].key], ALONE_ROWS)
    assert min(places_used(fleet)) >= 0.9


def test_a_service_without_its_database_costs_hardly_a_request(
    fleet: Fleet, scraped: Scraped
) -> None:
    """It is no longer ready, and the proxy repeats at another one what it refuses."""
    key, machine = fleet.accounts[1].key, fleet.machines[CUT]
    scraped.scrape(fleet)
    before = sum(fleet.is_served(key) for _ in range(REQUESTS))
    machine.way.cut()
    wait_until(lambda: not machine.is_ready())
    without = sum(fleet.is_served(key) for _ in range(REQUESTS))
    scraped.scrape(fleet)
    machine.way.mend()
    wait_until(machine.is_ready)
    assert without >= 0.99 * before
    assert before


def test_lists_outlive_a_service_that_is_killed(fleet: Fleet, scraped: Scraped) -> None:
    keys = [account.key for account in fleet.accounts[:KILLED_LISTS]]
    under_way = [0.0]
    while max(under_way) <= PLACES / 2:  # a machine that stood still has made hosts rest
        fleet.store_lists(keys, KILLED_ROWS)
        wait_until(lambda: max(probes(fleet)) > PLACES / 2 or not left(fleet))
        under_way = probes(fleet)
    killed = under_way.index(max(under_way))
    fleet.machines[killed].service.kill()
    scraped.scrape(fleet, gone=killed)
    fleet.wait_for_lists()


def test_every_address_is_answered_and_billed_once(fleet: Fleet) -> None:
    found = Counter[str]()
    longer = [each for each in fleet.lists if len(each.texts) > ROWS]
    for each in fleet.lists[::READ_EACH] + longer:
        results = fleet.results(each)
        assert [result["email"] for result in results] == each.texts
        found.update(result["reason"] for result in results)
    rows = sum(len(each.texts) for each in fleet.lists)
    [[in_usage]], [[billed]], [[requests]] = asked(
        fleet.database,
        "SELECT count(*) FROM usage WHERE operation = 'list'",
        "SELECT sum(billable)::bigint FROM months",
        "SELECT count(*) FROM usage WHERE operation <> 'list'",
    )
    assert answered(fleet.database).addresses == rows == in_usage == billed - requests
    assert found["blocked_us"] <= 0.01 * found.total()


def test_a_refused_egress_connects_to_few_mail_hosts(fleet: Fleet) -> None:
    """What one service has learned of an egress the others know: it is in quarantine."""
    hosts = fleet.lab.records()["hosts"].values()
    sources = sum((Counter(host["sources"]) for host in hosts), Counter[str]())
    assert 0 < sources[REFUSED_SOURCE] <= 3 * SERVICES * PLACES


def test_alerts_fire_for_what_happened(scraped: Scraped) -> None:
    """By promtool, as if what was read of the services had stood for minutes each time."""
    folder = make_folder("prometheus-fleet")
    shutil.copy(ALERTS_FILE, folder)
    minutes = MINUTES * len(scraped.times)
    fired = (
        f'max_over_time(ALERTS{{alertstate="firing",alertname=~"{"|".join(ALERTS)}"}}[{minutes}m])'
    )
    expected = {
        "expr": f"group by (alertname) ({fired})",
        "eval_time": f"{minutes - 1}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in ALERTS],
    }
    test = {
        "interval": "1m",
        "input_series": list(scraped.series()),
        "promql_expr_test": [expected],
    }
    file = {"rule_files": [ALERTS_FILE.name], "evaluation_interval": "1m", "tests": [test]}
    (folder / "cases.yaml").write_text(json.dumps(file))
    promtool("test", "rules", "/peers/prometheus-fleet/cases.yaml")
