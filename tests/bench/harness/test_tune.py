"""`mailprobe bench tune`: what it concludes from tables of trials, and one small run of it."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click.testing
import pytest

import mailprobe.bench.load.trials
from mailprobe.api.cli import main
from mailprobe.api.settings import Settings
from mailprobe.bench.harness.figures import read_run
from mailprobe.bench.harness.tune import (
    HOST_LIMIT,
    Findings,
    Trial,
    advise,
    knee,
    probes_handled,
    words_on,
)
from mailprobe.bench.load.smtp_sink import start_sink
from mailprobe.bench.load.trials import settings_for, values_to

ROOT = Path(__file__).parents[3]


def trials(*rows: Sequence[float]) -> list[Trial]:
    """Rows of value, addresses a second, and how many got wrong verdicts."""
    return [Trial(int(value), rate, int(*wrong)) for value, rate, *wrong in rows]


KNEES = {
    "it rises to the last": (trials((1, 100), (2, 200), (4, 400)), 4),
    "it rises, then no more": (trials((1, 100), (2, 190), (4, 200), (8, 201)), 2),
    "it is flat": (trials((1, 200), (2, 201), (4, 199)), 1),
    "it falls": (trials((1, 200), (2, 150), (4, 20)), 1),
    "it has a peak": (trials((1, 50), (2, 200), (4, 120)), 2),
    "in any order": (trials((8, 200), (1, 50), (4, 195)), 4),
    "one trial": (trials((3, 7)), 3),
    "nothing was told": (trials((1, 0), (2, 0)), 1),
}


@pytest.mark.parametrize("name", KNEES)
def test_the_knee_is_the_least_that_gives_almost_the_best(name: str) -> None:
    tried, least = KNEES[name]
    assert knee(tried) == least


BEARABLE = {
    "all are fine": (trials((100, 500), (500, 510), (2000, 505)), 2000),
    "it falls": (trials((100, 500), (500, 510), (2000, 300)), 500),
    "the most come too late": (trials((100, 300), (500, 400), (2000, 410, 3)), 500),
    "what lies beyond a wrong one is chance": (trials((100, 400), (500, 500, 1), (2000, 500)), 100),
    "a wrong one's rate counts for nothing": (trials((100, 200), (500, 900, 1)), 100),
    "all come too late": (trials((100, 500, 1), (500, 500)), None),
}


@pytest.mark.parametrize("name", BEARABLE)
def test_probes_handled_is_the_highest_load_without_wrong_verdicts(name: str) -> None:
    tried, most = BEARABLE[name]
    assert probes_handled(tried) == most


def findings(delay_ms: float, most: int = 8, load_us: float = 10.0) -> Findings:
    """Where more connections are better, as many as there are, and 500 probes are borne."""
    return Findings(
        delay_ms,
        trials(*((value, value * 100) for value in values_to(most))),
        [
            Trial(250, 600, cpu_us=300, load_cpu_us=load_us),
            Trial(500, 620, cpu_us=300, load_cpu_us=load_us),
            Trial(1000, 620, wrong=2),
        ],
        trials((1, 20), (4, 80), (8, 150), (16, 155)),
    )


def test_connections_stay_within_what_hosts_bear() -> None:
    assert advise([findings(50)]).host_connections == HOST_LIMIT
    assert advise([findings(50)], host_limit=8).host_connections == 8
    assert not any("refuse" in words for words in words_on(advise([findings(50)]), HOST_LIMIT))
    [warning] = [words for words in words_on(advise([findings(50)], 8), 8) if "refuse" in words]
    assert "hosts of your own" in warning


def test_the_advice_serves_every_latency() -> None:
    fast = Findings(0, trials((1, 700), (4, 710)), trials((250, 700), (500, 710)), trials((1, 700)))
    advice = advise([fast, findings(50)])
    assert (advice.host_connections, advice.probes_max, advice.together) == (4, 500, 8)
    slow = Findings(0, fast.connections, trials((250, 700), (500, 710, 9)), fast.together)
    assert advise([slow, findings(50)]).probes_max == 250


def test_the_advice_for_an_overloaded_machine_says_that_it_is_busy() -> None:
    bad = Findings(0, trials((1, 9)), trials((100, 9, 1), (250, 9, 5)), trials((1, 9)))
    advice = advise([bad])
    assert advice.probes_max == 100
    assert "too busy now" in advice.remarks[0]


def test_the_advice_says_if_the_mail_hosts_were_the_limit() -> None:
    assert not any("took more" in remark for remark in advise([findings(0)]).remarks)
    [remark] = [r for r in advise([findings(0, load_us=900)]).remarks if "took more" in r]
    assert remark.startswith("at 0 ms the mail hosts took more of the processor")


def test_the_limit_itself_is_tried() -> None:
    assert values_to(4) == [1, 2, 3, 4]
    assert values_to(5) == [1, 2, 3, 4, 5]
    assert values_to(1) == [1]


def test_a_settings_file_of_ones_own_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mailprobe.toml").write_text("host_connections = 77\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    with start_sink(hosts=2, delay_ms=0) as exchanges:
        assert settings_for(exchanges).host_connections != 77
        assert exchanges.mailbox(0).endswith("@d0.test")
        assert len({exchanges.mailbox(number) for number in range(9)}) == 9
        assert exchanges.cpu_s() > 0


@pytest.mark.usefixtures("small")
def test_it_prints_settings_that_can_be_used_as_they_are(tmp_path: Path) -> None:
    done = click.testing.CliRunner().invoke(
        main,
        [
            "bench",
            "tune",
            "--delay-ms",
            "0",
            "--seconds",
            "1",
            "--results",
            str(tmp_path),
            "--plot",
        ],
    )
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if " = " in line]
    (tmp_path / "mailprobe.toml").write_text("\n".join(lines), "utf-8")
    from_file = Settings.read({}, tmp_path).engine
    variables = [line for line in done.stdout.splitlines() if line.startswith("MAILPROBE_")]
    from_environment = Settings.read(dict(line.split("=") for line in variables), tmp_path / "x")
    assert from_file == from_environment.engine
    assert from_file.host_connections in (1, 2, 3, 4)
    assert from_file.probes_max in (4, 8)
    assert "Pipelining is not a setting" in done.stdout
    run = read_run(tmp_path / "tune.json")
    assert {series.x_label for series in run.result.series} == {
        "connections to one host",
        "probes under way, over many hosts",
        "addresses of a domain together, one connection",
    }
    assert any(rate > 0 for series in run.result.series for _, rate in series.points)
    assert json.loads((tmp_path / "tune.json").read_text())["machine"]["cores"] >= 1
    assert len([*tmp_path.glob("*.png")]) == 3


def test_an_interrupt_ends_it_and_its_mail_hosts(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "from mailprobe.api.cli import main; main()", "bench", "tune"]
    with subprocess.Popen(
        [*words, "--results", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stderr is not None
            assert "connections to one host: 1" in process.stderr.readline()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert said.endswith("\nmailprobe: interrupted\n")
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not any(tmp_path.iterdir())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HOSTS": 4,
        "CONNECTIONS": (1,),
        "PROBES": (4, 8),
        "TOGETHER": (1, 4),
        "TRIAL_S_MIN": 0.5,
        "PROBE_TRIAL_S_MIN": 0.8,
    }.items():
        monkeypatch.setattr(mailprobe.bench.load.trials, name, value)
