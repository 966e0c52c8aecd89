"""The suite of the peers without the peers: the same way, with verifiers of a few lines.

What needs namespaces is chosen by MAY_ENTER, found by asking the system itself
and not the code under test: root of a container may lack the right.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.message
import dns.rcode
import pytest
import trio
from msgspec.structs import replace

from mailprobe.bench.harness.figures import MissingRequirement
from mailprobe.bench.peers import fixture_domains, in_namespace, install, namespace, resolver
from mailprobe.bench.peers.in_namespace import (
    NoAnswer,
    Runner,
    RunnerOutput,
    Task,
    run_runner,
    turnarounds,
)
from mailprobe.bench.peers.runner import BAD, CATCH_ALL, GOOD, UNSURE
from mailprobe.bench.suites import peers
from mailprobe.bench.world.host_log import HostLog
from mailprobe.bench.world.zone import Zone
from mailprobe.engine.lists.lists import load_lists

MAY_ENTER = (
    os.geteuid() == 0
    and shutil.which("unshare") is not None
    and subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"], capture_output=True
    ).returncode
    == 0
)
A_LIST, ONE_DOMAIN = fixture_domains.build().a_list, fixture_domains.build().one_domain
WHOLE_S = 60.0  # a run with verifiers this small takes some seconds

SAYS_GOOD = """
import json, sys
told = dict.fromkeys(json.load(sys.stdin), "good")
print("chatter")
print(json.dumps({"told": told, "took_s": 0.5, "cpu_s": 0.25, "raised": 1}))
"""
ASKS_THREE = """
import json, smtplib, sys
told = dict.fromkeys(json.load(sys.stdin), "unsure")
for address in [each for each in told if each.endswith("@slow.example.com")][:3]:
    with smtplib.SMTP("mx1.slow.example.com", timeout=30) as host:
        host.ehlo()
        host.mail("probe@example.org")
        told[address] = "good" if host.rcpt(address)[0] == 250 else "bad"
print(json.dumps({"told": told, "took_s": 1.0, "cpu_s": 0.5, "raised": 0}))
"""


def program(text: str, **more: Any) -> Runner:
    return Runner("tiny", (sys.executable, "-c", text), **more)


# -- a runner's protocol ---------------------------------------------------------------------


async def test_a_runner_answers_by_its_last_line():
    answer = await run_runner(program(SAYS_GOOD), ["ann@a.test", "ben@b.test"], {})
    reported = {"ann@a.test": "good", "ben@b.test": "good"}
    assert answer == RunnerOutput(reported, took_s=0.5, cpu_s=0.25, raised=1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise SystemError('no such luck')", "ended with 1: SystemError: no such luck"),
        ("", "gave no answer"),
        ("print('good morning')", "gave no answer"),
        ("print('[]')", "gave no answer"),
        ('print(\'{"told": {}, "took_s": 1, "cpu_s": 1, "raised": 0}\')', "other addresses"),
        (SAYS_GOOD.replace('"good"', '"splendid"'), "other words"),
    ],
)
async def test_a_runner_without_an_answer_fails_with_the_reason(text, why):
    with pytest.raises(NoAnswer, match=why):
        await run_runner(program(text), ["ann@a.test"], {})


async def test_a_runner_that_hangs_ends_at_its_limit_with_all_its_processes():
    """The pipe of its output ends only when all of them have: a left one would be waited for."""
    hanging = Runner("tiny", ("sh", "-c", "sleep 300 & sleep 300"), limit_s=0.3)
    with trio.fail_after(WHOLE_S), pytest.raises(NoAnswer, match=r"still at work after 0\.3 s"):
        await run_runner(hanging, ["ann@a.test"], {})


# -- counting --------------------------------------------------------------------------------


def test_turnarounds_are_banners_and_writes_but_quit():
    record = HostLog()
    polite, rude = record.open_session(0.0), record.open_session(0.0)
    polite.turnarounds, polite.quit = 4, True  # EHLO, MAIL, RCPT, QUIT
    rude.turnarounds = 2
    assert turnarounds(record) == (1 + 3) + (1 + 2)


def task(runner: str, word: str = GOOD, **seen: Any) -> Task:
    return Task(runner, "one domain", dict.fromkeys(ONE_DOMAIN, word), **seen)


def test_ours_is_compared_with_the_best_peer_whose_verdicts_are_all_right():
    whole = [
        task("mailprobe", turnarounds=8, took_s=0.5, cpu_s=0.1),
        task("slow", turnarounds=200, took_s=9.0, cpu_s=0.1),
        task("hasty", turnarounds=240, took_s=1.0, cpu_s=0.1),
        task("hasty at once", turnarounds=240, took_s=0.25, cpu_s=0.1),
        task("mute", UNSURE, turnarounds=0, took_s=0.1, cpu_s=0.1),
        Task("broken", "one domain", remark="ended with 1"),
    ]
    reported = {figure.what: figure.value for figure in peers.figures(whole)}
    assert reported["turn-arounds: the best peer's against ours"] == 25
    assert reported["time: the quickest peer's against ours"] == 2
    assert reported["time: the quickest at once against ours"] == 0.5
    assert "mute: turn-arounds" in reported
    assert not any(what.startswith("broken") for what in reported)


def test_of_several_rounds_the_median_time_and_the_wrongest_answers_count():
    rounds = [task("mailprobe", turnarounds=8, took_s=took_s) for took_s in (0.9, 0.5, 0.4)]
    rounds[2] = replace(rounds[2], answers={**rounds[2].answers, next(iter(ONE_DOMAIN)): BAD})
    peer = task("peer", turnarounds=200, took_s=1.0)
    reported = {figure.what: figure.value for figure in peers.figures([*rounds[:2], peer])}
    assert reported["mailprobe: 50 of one domain"] == 0.9
    with pytest.raises(peers.NothingToCompare):
        peers.figures([*rounds, peer])


def test_a_round_without_an_answer_speaks_for_all():
    rounds = [task("peer", took_s=1.0), Task("peer", "one domain", remark="ended with 1")]
    with pytest.raises(peers.NothingToCompare):
        peers.figures([task("mailprobe", took_s=0.5, turnarounds=8), *rounds])


def test_without_a_peer_whose_verdicts_are_right_there_is_no_comparison():
    with pytest.raises(peers.NothingToCompare):
        peers.figures([task("mailprobe", took_s=1, turnarounds=8), task("mute", UNSURE)])


def test_a_list_gives_rightness_rate_and_processor_time():
    reported = dict.fromkeys(A_LIST, BAD)
    [right, wrong, rate, cpu, *_] = peers.figures(
        [
            Task("mailprobe", "list", reported, took_s=2.0, cpu_s=0.4),
            task("mailprobe", turnarounds=8, took_s=1),
            task("peer", turnarounds=8, took_s=1),
        ]
    )
    wrongly_bad = sum(kind in ("deliverable", "catch-all") for kind in A_LIST.values())
    assert right.value == len(A_LIST) - wrongly_bad
    assert wrong.value == wrongly_bad
    assert right.missed
    assert wrong.missed
    assert rate.value == len(A_LIST) / 2
    assert cpu.value == 400 / len(A_LIST)


def test_remarks_count_wrong_verdicts_by_kind():
    reported = dict.fromkeys(A_LIST, GOOD)
    assert peers.remarks(Task("peer", "list", reported, raised=3), A_LIST) == [
        "peer, list: raised an error for 3 addresses",
        "peer, list: 20 × catch-all -> good",
        "peer, list: 10 × no MX -> good",
        "peer, list: 10 × syntax -> good",
        "peer, list: 20 × throwaway -> good",
        "peer, list: 40 × unknown mailbox -> good",
    ]


@pytest.mark.parametrize("word", [CATCH_ALL, UNSURE])
def test_of_a_catch_all_anything_but_a_plain_answer_is_right(word):
    assert word in fixture_domains.RIGHT["catch-all"]
    assert not {GOOD, BAD} & fixture_domains.RIGHT["catch-all"]


# -- the town --------------------------------------------------------------------------------


def test_the_fixture_domains_has_every_kind_and_is_the_same_each_time():
    kinds = list(A_LIST.values())
    assert {kind: kinds.count(kind) for kind in fixture_domains.RIGHT} == {
        "deliverable": 100,
        "unknown mailbox": 40,
        "catch-all": 20,
        "throwaway": 20,
        "syntax": 10,
        "no MX": 10,
    }
    assert len(ONE_DOMAIN) == 50
    assert (
        fixture_domains.build().scenario.zone.names == fixture_domains.build().scenario.zone.names
    )


def test_the_lists_agree_on_which_domains_are_throwaway():
    lists = load_lists()
    for address, kind in A_LIST.items():
        if kind != "syntax":
            assert lists.is_disposable(address.partition("@")[2]) == (kind == "throwaway")


# -- the resolver ----------------------------------------------------------------------------


async def test_the_resolver_answers_over_udp_and_tcp():
    zone = Zone()
    zone.mx("shop.example.com", "mx1.shop.example.com")
    address = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # nobody else listens there
    known = dns.message.make_query("shop.example.com", "MX")
    unknown = dns.message.make_query("nowhere.example.com", "A")
    async with trio.open_nursery() as nursery:
        port = await nursery.start(resolver.serve, zone, address, 0)
        with trio.fail_after(WHOLE_S):
            by_udp = await dns.asyncquery.udp(known, address, port=port)
            by_tcp = await dns.asyncquery.tcp(known, address, port=port)
            nothing = await dns.asyncquery.udp(unknown, address, port=port)
        nursery.cancel_scope.cancel()
    assert by_udp.answer == by_tcp.answer
    assert by_udp.answer[0].to_text().endswith("IN MX 10 mx1.shop.example.com.")
    assert nothing.rcode() == dns.rcode.NXDOMAIN


# -- the pins --------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", [peer for peer in install.PEERS if not peer.is_for_node])
def test_pip_pins_are_exact_and_hashed(peer):
    packages = re.split(r"\n(?=\S)", peer.pins.read_text("utf-8").strip())
    assert all(re.match(r"[\w.-]+==[\w.]+ \\\n", package) for package in packages)
    assert all("--hash=sha256:" in package for package in packages)
    assert any(package.startswith(f"{peer.name}=={peer.version} ") for package in packages)


def test_npm_pins_are_exact_and_hashed():
    peer = install.EMAIL_VALIDATOR_JS
    lock = json.loads((peer.pins / "package-lock.json").read_text("utf-8"))["packages"]
    wanted = json.loads((peer.pins / "package.json").read_text("utf-8"))["dependencies"]
    assert wanted == {f"@emailcheck/{peer.name}": peer.version}
    packages = [package for name, package in lock.items() if name]
    assert all(package["integrity"].startswith("sha512-") for package in packages)
    assert lock[f"node_modules/@emailcheck/{peer.name}"]["version"] == peer.version


def test_pins_name_no_index():
    """Which index is asked is the machine's affair."""
    pins = [install.HERE / "email-validator-js" / "package.json"]
    pins += [*install.HERE.glob("*.txt"), pins[0].with_name("package-lock.json")]
    assert len(pins) == 4
    for file in pins:
        assert not re.search(r"://|resolved|index-url", file.read_text("utf-8"))


def test_a_changed_pin_asks_for_a_new_installation(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "ENVIRONMENTS", tmp_path)
    peer = install.VERIFY_EMAIL
    peer.folder.mkdir()
    (peer.folder / install.STAMP).write_text(peer.wanted, "utf-8")
    assert peer.installed
    (peer.folder / install.STAMP).write_text(peer.wanted.replace("sha256", "sha512"), "utf-8")
    assert not peer.installed


# -- what is lacking -------------------------------------------------------------------------


def test_peers_that_are_not_installed_are_named_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "ENVIRONMENTS", tmp_path)
    with pytest.raises(
        MissingRequirement, match=r"verify-email.*python -m mailprobe\.bench\.peers install"
    ) as lacking:
        install.check_installed()
    assert "\n" not in str(lacking.value)


def test_without_unshare_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingRequirement, match="util-linux"):
        namespace.entering()


def test_a_refusal_of_unshare_is_reported_as_missing_root(monkeypatch, tmp_path):
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: unshare failed: not permitted' >&2; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(refusing))
    with pytest.raises(MissingRequirement, match=r"needs root: unshare: .* not permitted"):
        namespace.entering()


def test_the_tasks_do_not_run_outside():
    """They would cover this machine's own resolv.conf."""
    with pytest.raises(SystemExit, match="namespaces of its own"):
        in_namespace.main()


# -- the whole, in namespaces ----------------------------------------------------------------


@pytest.mark.skipif(not MAY_ENTER, reason="this user may not make network namespaces")
def test_both_tasks_are_run_and_counted_in_there():
    outside = Path("/etc/resolv.conf").read_bytes()
    tiny = program(ASKS_THREE, rounds=2)
    broken = Runner("broken", (sys.executable, "-c", "1/0"))
    rounds = peers.play([tiny, broken])
    assert len(rounds) == 2 * tiny.rounds + 2
    listed, one_domain = rounds[0], rounds[tiny.rounds]

    assert (listed.workload, listed.turnarounds, listed.connections) == ("list", 0, 0)
    assert set(listed.answers.values()) == {UNSURE}
    # each: the banner, EHLO, MAIL, RCPT; QUIT is not waited for
    assert (one_domain.turnarounds, one_domain.connections) == (3 * 4, 3)
    assert list(one_domain.answers.values()).count(GOOD) == 3
    assert [each.remark for each in rounds[-2:]] == 2 * [
        "ended with 1: ZeroDivisionError: division by zero"
    ]
    assert Path("/etc/resolv.conf").read_bytes() == outside


@pytest.mark.skipif(not MAY_ENTER, reason="this user may not make network namespaces")
def test_our_own_runner_answers_both_tasks():
    """How well is the bench's affair; that it speaks the protocol is this test's."""
    ours = replace(install.runners()[0], rounds=1)
    rounds = peers.play([ours])
    assert {each.remark for each in rounds} == {""}
    assert {each.workload for each in rounds} == {"list", "one domain"}
    assert rounds[-1].answers.keys() == ONE_DOMAIN.keys()
    assert rounds[-1].connections >= 1
