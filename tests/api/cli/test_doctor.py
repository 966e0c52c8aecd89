"""`mailprobe doctor`: each check passing and failing, the clock, and the output."""

import io
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
import trio
from trio.testing import memory_stream_pair

from mailprobe.api.cli import doctor
from mailprobe.api.cli.closed_port import closed_port, saying_closed_port
from mailprobe.api.doctor.blocklists import BACKSCATTER_LISTS, LISTS, entry_of
from mailprobe.api.doctor.checks import CHECKS, CLOCK
from mailprobe.api.doctor.machine import (
    EndpointCheck,
    Network,
    check_clock,
    check_database,
    check_store,
    examine_with,
)
from mailprobe.api.doctor.named_sender import WITHOUT_A_SENDER, missing_sender
from mailprobe.engine.dns.response import DohResponse, TransportFailed
from mailprobe.engine.dns.routes import open_routes
from mailprobe.engine.net.tcp import CannotConnect
from mailprobe.engine.settings import EngineSettings
from mailprobe.storage import open_store

NOW = 1_750_000_000.0
FIRST, SECOND = "https://11.0.0.1/q", "https://11.0.0.2/q"
OURS, HELO = "11.0.9.9", "probe.shop.test"

ZONES = (*LISTS.values(), *BACKSCATTER_LISTS.values())

RECORDS = {
    ("gmail.com", "MX"): ["5 mx.gmail.com."],
    ("outlook.com", "MX"): ["5 mx.outlook.com."],
    ("gmx.net", "MX"): ["5 mx.gmx.net."],
    ("mx.gmail.com", "A"): ["11.0.1.1"],
    ("mx.outlook.com", "A"): ["11.0.1.2"],
    ("mx.gmx.net", "A"): ["11.0.1.3"],
    (HELO, "A"): [OURS],
    ("9.9.0.11.in-addr.arpa", "PTR"): [f"{HELO.upper()}."],
    **{(f"2.0.0.127.{zone}", "A"): ["127.0.0.2"] for zone in ZONES},
}


@dataclass
class Internet:
    """Fake endpoints and mail hosts for one run of the checks."""

    records: dict[tuple[str, str], list[str]] = field(default_factory=lambda: dict(RECORDS))
    failing: dict[str, str] = field(default_factory=dict)  # URL -> error text
    silent: bool = False
    unanswered: set[str] = field(default_factory=set)  # names
    date: str | None = field(default_factory=lambda: formatdate(NOW, usegmt=True))
    refused: str | None = None  # why every connection fails
    banner: bytes = b"220 mx ready\r\n"
    ehlo: bytes = b"250-mx at your service, [11.0.9.9]\r\n250 PIPELINING\r\n"
    dialled: list[tuple[str, int]] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    nursery: trio.Nursery | None = None
    known_to_system: dict[str, list[str]] = field(default_factory=dict)

    async def post(self, url: str, query: bytes) -> DohResponse:
        return DohResponse(await self.exchange(url, query), self.date)

    async def exchange(self, url: str, query: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.silent:
            await trio.sleep_forever()
        if url in self.failing:
            raise TransportFailed(self.failing[url])
        asked = dns.message.from_wire(query)
        question = asked.question[0]
        name = question.name.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(question.rdtype)
        if name in self.unanswered:
            await trio.sleep_forever()
        message = dns.message.make_response(asked)
        if records := self.records.get((name, kind)):
            rrset = dns.rrset.from_text_list(question.name, 300, "IN", kind, records)
            message.answer.append(rrset)
        elif not any(name == known for known, _ in self.records):
            message.set_rcode(dns.rcode.NXDOMAIN)
            soa = "ns.test. hostmaster.test. 1 7200 3600 86400 300"
            message.authority.append(dns.rrset.from_text("test.", 300, "IN", "SOA", soa))
        return message.to_wire()

    async def system(self, host: str) -> list[str]:
        """The resolver of the machine itself."""
        await trio.lowlevel.checkpoint()
        if host not in self.known_to_system:
            raise OSError("no such host")
        return self.known_to_system[host]

    async def dial(self, address: str, port: int) -> trio.abc.Stream:
        self.dialled.append((address, port))
        await trio.lowlevel.checkpoint()
        if self.silent:
            await trio.sleep_forever()
        if self.refused:
            raise CannotConnect(self.refused)
        client, server = memory_stream_pair()
        assert self.nursery is not None
        self.nursery.start_soon(self.serve, server)
        return client

    async def serve(self, stream: trio.abc.Stream) -> None:
        said = {b"EHLO": self.ehlo, b"QUIT": b"221 bye\r\n"}
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.send_all(self.banner)
            async for octets in stream:
                octets = bytes(octets)
                self.received.append(octets)
                await stream.send_all(said[octets[:4].upper()])


@asynccontextmanager
async def open_network(internet: Internet, settings: EngineSettings):
    async with trio.open_nursery() as nursery:
        internet.nursery = nursery
        async with open_routes(settings, transport=internet, rng=Random(1)) as routes:
            yield Network(internet, routes, internet.dial, lambda: NOW, internet.system)
        nursery.cancel_scope.cancel()


async def examined(internet: Internet, database: object, **settings: Any) -> dict[str, Any]:
    """Return the checks by the first word of their names, and a list of them as "all"."""
    chosen = EngineSettings(doh_urls=(FIRST, SECOND), **{"helo_name": HELO, **settings})
    async with open_network(internet, chosen) as network:
        checks = await examine_with(network, chosen, str(database))
    assert all((check.advice is not None) == (check.status == "failed") for check in checks)
    return {check.check.split(",")[0].split()[0]: check for check in checks} | {"all": checks}


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ({}, None),
        ({"banner": b"554 go away\r\n"}, None),  # the port is open
        ({"failing": {FIRST: "no", SECOND: "no"}}, None),  # nothing is known of the port
        ({"refused": "timed out"}, "--no-smtp or MAILPROBE_LAYERS=1-3,5"),
    ],
)
async def test_a_closed_port_is_said_at_the_start_and_nothing_else(autojump_clock, trouble, says):
    settings = EngineSettings(doh_urls=(FIRST, SECOND))
    async with open_network(Internet(**trouble), settings) as network:
        line = await closed_port(network, settings)
    assert (line is None) is (says is None)
    assert line is None or (says in line and "gmail.com" in line and "\n" not in line)


async def test_looking_for_the_port_delays_nothing_and_ends_with_the_block(
    autojump_clock, monkeypatch
):
    settings = EngineSettings(doh_urls=(FIRST, SECOND))
    internet, said = Internet(refused="timed out"), list[str]()
    monkeypatch.setattr(
        "mailprobe.api.doctor.machine.open_network", partial(open_network, internet)
    )
    async with saying_closed_port(settings, said.append):
        assert said == []
        await trio.sleep(20)
    assert len(said) == 1
    async with saying_closed_port(replace(settings, asks_hosts=False), said.append):
        await trio.sleep(20)
    with pytest.raises(CannotConnect):
        async with saying_closed_port(settings, said.append):
            raise CannotConnect("of the block")
    assert len(said) == 1


async def test_without_layer_4_the_port_is_not_needed(autojump_clock, tmp_path):
    checks = await examined(Internet(refused="timed out"), tmp_path / "db", asks_hosts=False)
    assert checks["port"].status == "skipped"


async def test_where_nothing_is_missing_all_is_ok(autojump_clock, tmp_path):
    internet = Internet()
    checks = await examined(internet, tmp_path / "mailprobe.db")
    assert [check.status for check in checks["all"]] == ["ok"] * 8
    assert sorted(internet.dialled) == [("11.0.1.1", 25), ("11.0.1.2", 25), ("11.0.1.3", 25)]
    assert internet.received.count(b"QUIT\r\n") == 3
    assert internet.received.count(f"EHLO {HELO}\r\n".encode()) == 3
    assert not list(tmp_path.iterdir())


async def test_a_world_that_is_silent_takes_under_ten_seconds(autojump_clock, tmp_path):
    began = trio.current_time()
    checks = await examined(Internet(silent=True), tmp_path / "x.db")
    assert trio.current_time() - began < 10
    reported = [check.status for check in checks["all"]]
    assert reported == ["failed", "failed", "skipped", "skipped", "ok", "skipped"]


async def test_each_endpoint_is_reported_by_itself(autojump_clock, tmp_path):
    internet = Internet(failing={SECOND: "certificate not accepted: self-signed"})
    first, second, *others = (await examined(internet, tmp_path / "x.db"))["all"]
    assert (first.status, second.status) == ("ok", "failed")
    assert "MAILPROBE_DOH_CA_FILE" in second.advice
    assert [check.status for check in others] == ["ok"] * 6


async def test_an_endpoint_that_only_fails_to_answer_is_a_failure(autojump_clock, tmp_path):
    class Refusing(Internet):
        async def exchange(self, url: str, query: bytes) -> bytes:
            message = dns.message.make_response(dns.message.from_wire(query))
            message.set_rcode(dns.rcode.REFUSED)
            await trio.lowlevel.checkpoint()
            return message.to_wire()

    first, *_ = (await examined(Refusing(), tmp_path / "x.db"))["all"]
    assert (first.status, first.found) == ("failed", "REFUSED")


PORT = {
    "closed": (Internet(refused="connection timed out"), {}, "open the port"),
    "proxies fail": (
        Internet(refused="no proxy could be used: connection refused"),
        {"proxies": ("socks5://127.0.0.1:1",)},
        "MAILPROBE_SMTP_PROXIES",
    ),
    "banner refuses": (Internet(banner=b"554 blocked by zen\r\n"), {}, "block list"),
    "EHLO refused": (Internet(ehlo=b"550 go away\r\n"), {}, "block list"),
    "garbage": (Internet(banner=b"SSH-2.0-x\r\n"), {}, "block list"),
}


@pytest.mark.parametrize(("internet", "settings", "advice"), PORT.values(), ids=PORT)
async def test_a_port_that_is_no_use(autojump_clock, tmp_path, internet, settings, advice):
    check = (await examined(internet, tmp_path / "x.db", **settings))["port"]
    assert check.status == "failed"
    assert advice in check.advice
    assert check.found.startswith("gmail.com, outlook.com, gmx.net: ")


async def test_the_port_is_tested_though_the_endpoints_fail(autojump_clock, tmp_path):
    """And one cause is said once, not again for each check that needs the endpoints."""
    internet = Internet(
        failing=dict.fromkeys((FIRST, SECOND), "connection refused"),
        known_to_system={"gmail-smtp-in.l.google.com": ["11.0.1.1"]},
    )
    checks = await examined(internet, tmp_path / "x.db")
    assert checks["port"].status == "ok"
    assert internet.dialled == [("11.0.1.1", 25)]
    reported = [check.found for check in checks["all"]]
    assert reported.count("connection refused") == 2  # one for each endpoint
    assert [check.status for check in checks["all"]].count("skipped") == 2  # clock, and the rest


LISTED = {"9.9.0.11.zen.spamhaus.org": "127.0.0.4", "9.9.0.11.bl.spamcop.net": "127.0.0.2"}


async def test_an_address_on_a_blocklist_is_reported_with_the_lists(autojump_clock, tmp_path):
    internet = Internet()
    internet.records |= {(name, "A"): [code] for name, code in LISTED.items()}
    check = (await examined(internet, tmp_path / "x.db"))["blocklists"]
    assert (check.status, check.found) == ("failed", f"{OURS} is on Spamhaus ZEN, SpamCop")


async def test_a_backscatter_list_asks_for_a_named_sender(autojump_clock, tmp_path):
    internet = Internet()
    internet.records["9.9.0.11.ips.backscatterer.org", "A"] = ["127.0.0.2"]
    check = (await examined(internet, tmp_path / "x.db"))["blocklists"]
    assert (check.status, check.found) == ("failed", f"{OURS} is on Backscatterer")
    assert "MAILPROBE_SMTP_MAIL_FROM" in str(check.advice)


@pytest.mark.parametrize(
    "answers",
    [
        {"127.0.0.2": None},  # its answer for any address
        {"127.0.0.2": "127.255.255.254", OURS: "127.255.255.254"},  # this resolver is refused
        {"127.0.0.1": "127.0.0.2", OURS: "127.0.0.2"},  # it has ended, and lists all addresses
        {OURS: "127.255.255.255"},  # refused between two questions
        {"127.0.0.2": "never"},
    ],
)
async def test_a_list_that_fails_its_test_entries_proves_nothing(autojump_clock, tmp_path, answers):
    internet, zone = Internet(), LISTS["Spamhaus ZEN"]
    for address, answer in answers.items():
        name = entry_of(address, zone)
        if answer == "never":
            internet.unanswered.add(name)
        elif answer is None:
            internet.records.pop((name, "A"))
        else:
            internet.records[name, "A"] = [answer]
    check = (await examined(internet, tmp_path / "x.db"))["blocklists"]
    assert check.status == "ok"
    assert check.found.endswith(
        "SEM-Backscatter; unknown, no right answer to this resolver: Spamhaus ZEN"
    )


async def test_without_any_list_nothing_is_said_of_our_address(autojump_clock, tmp_path):
    internet = Internet(unanswered={entry_of("127.0.0.2", zone) for zone in ZONES})
    check = (await examined(internet, tmp_path / "x.db"))["blocklists"]
    assert check.status == "skipped"


def test_an_ipv6_address_has_test_entries_of_its_family():
    assert entry_of("::ffff:7f00:2", "x.test") == f"2.0.0.0.0.0.f.7.f.f.f.f.{'0.' * 20}x.test"


@pytest.mark.parametrize(
    ("settings", "notice"),
    [
        (EngineSettings(), WITHOUT_A_SENDER),
        (EngineSettings(mail_from="probe@shop.test"), None),
        (EngineSettings(allow_private=True), None),
    ],
)
def test_a_missing_sender_is_reported_on_one_line_but_not_in_a_lab(settings, notice):
    assert missing_sender(settings) == notice
    assert "\n" not in WITHOUT_A_SENDER


SPF = {
    "permitted": (["v=spf1 ip4:11.0.9.0/24 -all"], "ok"),
    "not permitted": (["v=spf1 ip4:11.0.8.0/24 -all"], "failed"),
    "two records": (["v=spf1 -all", "v=spf1 +all"], "failed"),
    "no record": (["google-site-verification=x"], "ok"),
    "a macro": (["v=spf1 exists:%{i}.shop.test -all"], "skipped"),
}


@pytest.mark.parametrize(("texts", "status"), SPF.values(), ids=SPF)
async def test_the_sender_of_probes_is_checked_by_spf(autojump_clock, tmp_path, texts, status):
    internet = Internet()
    internet.records["shop.test", "TXT"] = [f'"{text}"' for text in texts]
    checks = await examined(internet, tmp_path / "x.db", mail_from="probe@shop.test")
    assert checks["SPF"].status == status


async def test_without_a_public_address_nothing_is_said_of_it(autojump_clock, tmp_path):
    checks = await examined(Internet(ehlo=b"250 mx\r\n"), tmp_path / "x.db")
    assert (checks["blocklists"].status, checks["SPF"].status) == ("skipped", "skipped")


async def test_a_silent_mail_host_is_reported(autojump_clock, tmp_path):
    check = (await examined(Internet(banner=b""), tmp_path / "x.db"))["port"]
    assert (check.status, "no greeting in time" in check.found) == ("failed", True)


async def test_one_welcome_is_enough(autojump_clock, tmp_path):
    internet = Internet()
    del internet.records["mx.gmail.com", "A"], internet.records["outlook.com", "MX"]
    check = (await examined(internet, tmp_path / "x.db"))["port"]
    assert (check.status, check.found) == ("ok", "mx.gmx.net: 250-mx at your service, [11.0.9.9]")


HELOS = {
    "no public name": ({}, {"helo_name": "localhost.localdomain"}, "MAILPROBE_SMTP_HELO"),
    "one label": ({}, {"helo_name": "vm"}, "MAILPROBE_SMTP_HELO"),
    "no name at all": ({}, {"helo_name": "a..b"}, "MAILPROBE_SMTP_HELO"),
    "does not resolve": ({(HELO, "A"): None}, {}, f"address record: {OURS}"),
    "another address": ({(HELO, "A"): ["11.0.7.7"]}, {}, f" to {OURS}, or set"),
    "no reverse name": ({("9.9.0.11.in-addr.arpa", "PTR"): None}, {}, "a PTR record"),
    "another reverse name": (
        {("9.9.0.11.in-addr.arpa", "PTR"): ["host9.isp.test."]},
        {},
        "MAILPROBE_SMTP_HELO to host9.isp.test",
    ),
}


@pytest.mark.parametrize(("changes", "settings", "advice"), HELOS.values(), ids=HELOS)
async def test_a_helo_name_that_does_not_fit(autojump_clock, tmp_path, changes, settings, advice):
    records = {key: value for key, value in {**RECORDS, **changes}.items() if value}
    check = (await examined(Internet(records), tmp_path / "x.db", **settings))["HELO"]
    assert check.status == "failed"
    assert advice in check.advice


async def test_where_nobody_says_who_we_are_the_names_own_address_is_checked(
    autojump_clock, tmp_path
):
    internet = Internet(ehlo=b"250 mx [not.an.address] [10.0.0.1]\r\n")
    check = (await examined(internet, tmp_path / "x.db"))["HELO"]
    assert (check.status, check.found) == ("ok", f"is {OURS}, and back")


@pytest.mark.parametrize(
    ("ahead", "status", "found"),
    [
        ((0.0,), "ok", "agrees"),
        ((-29.0, 500.0), "ok", "agrees"),
        ((None, 2.0), "ok", "agrees"),
        ((90.0, None), "failed", "90 s behind"),
        ((-90.0, -200.0), "failed", "90 s ahead of"),
        ((None, None), "skipped", "no endpoint"),
    ],
)
def test_the_clock(ahead, status, found):
    blank = CLOCK.ok("")
    check = check_clock([EndpointCheck(blank, seconds) for seconds in ahead])
    assert check.status == status
    assert found in check.found


@pytest.mark.parametrize("date", [None, "", "yesterday", "99 Foo 2025"])
async def test_a_date_that_is_none_is_let_be(autojump_clock, tmp_path, date):
    check = (await examined(Internet(date=date), tmp_path / "x.db"))["clock"]
    assert check.status == "skipped"


async def test_a_database_that_exists_is_not_touched(tmp_path):
    path = tmp_path / "mailprobe.db"
    async with open_store(str(path), secret_key=None):
        pass
    before, octets = path.stat(), path.read_bytes()
    names = {file.name for file in tmp_path.iterdir()}
    assert check_database(str(path)).status == "ok"
    assert path.read_bytes() == octets
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert {file.name for file in tmp_path.iterdir()} == names


@pytest.mark.parametrize("octets", [b"", b"Dear Ann", b"Dear Ann, the cake was good." * 100])
def test_a_file_that_is_no_database_fails_the_check(tmp_path, octets):
    """It was said to be fine, and the service did not start on it."""
    path = tmp_path / "mailprobe.db"
    path.write_bytes(octets)
    check = check_database(str(path))
    assert (check.status, "no database" in check.found) == ("failed", True)
    assert path.read_bytes() == octets


async def test_a_database_of_a_newer_version_fails_the_check(tmp_path):
    path = tmp_path / "mailprobe.db"
    async with open_store(str(path), secret_key=None):
        pass
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    check = check_database(str(path))
    assert (check.status, "newer version" in check.found) == ("failed", True)


async def test_a_key_of_the_database_that_cannot_be_read_fails_the_check(tmp_path):
    """It was said to be fine, and the service did not start without the key."""
    path, key = tmp_path / "mailprobe.db", tmp_path / "mailprobe.db.key"
    async with open_store(str(path), secret_key=bytes(32)):
        pass
    key.mkdir()  # root may read any file
    check = check_database(str(path))
    assert (check.status, str(key) in check.found) == ("failed", True)
    assert check_database(str(path), bytes(32)).status == "ok"


@pytest.mark.parametrize("place", ["file/x.db", "folder", "/proc/none/x.db", "missing/x.db"])
def test_a_database_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    check = check_database(str(tmp_path / place))
    assert check.status == "failed"
    assert check.advice is not None
    assert "MAILPROBE_DATABASE" in check.advice


async def test_the_report_of_an_unreachable_postgresql_server_has_no_password():
    check = await check_store("postgresql://u:s3cret@127.0.0.1:1/mailprobe", bytes(32))
    assert check.status == "failed"
    assert "127.0.0.1:1/mailprobe" in check.found
    assert "s3cret" not in repr(check)
    assert check.advice is not None
    assert "MAILPROBE_DATABASE" in check.advice


def run_doctor(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run `mailprobe doctor` where no host answers."""
    environ = {
        **os.environ,
        "MAILPROBE_DOH_URLS": "http://127.0.0.1:1/q,https://127.0.0.1:1/q",
        "MAILPROBE_SMTP_HELO": "vm",
    }
    script = (
        "import sys; from mailprobe.api.cli import main; main(sys.argv[1:], prog_name='mailprobe')"
    )
    command = [sys.executable, "-c", script, "doctor", *arguments]
    return subprocess.run(command, env=environ, cwd=directory, capture_output=True, text=True)


SAID = f"mailprobe: {WITHOUT_A_SENDER}\nmailprobe: 3 of 7 checks failed\n"


def test_json_is_one_object_and_a_failure_exits_1(tmp_path):
    done = run_doctor("--json", directory=tmp_path)
    assert (done.returncode, done.stderr) == (1, SAID)
    reported = json.loads(done.stdout)
    assert reported["ok"] is False
    assert [list(check) for check in reported["checks"]] == [
        ["check", "status", "found", "advice"]
    ] * 7
    assert not list(tmp_path.iterdir())


def test_a_person_gets_a_table_with_advice(tmp_path):
    done = run_doctor(directory=tmp_path)
    assert done.returncode == 1
    assert "MAILPROBE_SMTP_HELO" in done.stdout
    assert done.stderr == SAID
    questions = {row.question for row in CHECKS if row.question in done.stdout}
    assert len(questions) == 6


def test_each_check_has_a_question_and_advice_that_says_what_to_do():
    assert len({row.name for row in CHECKS}) == len({row.question for row in CHECKS}) == len(CHECKS)
    for row in CHECKS:
        assert row.question[0].isupper()
        assert row.question.endswith("?")
        for advice in row.advice.values():
            assert advice[0].isupper()
            assert advice.endswith(".")


def test_replies_of_hosts_cannot_control_a_terminal(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    doctor.print_table([CLOCK.failed("wrong", "\x1b]0;owned\x07[bold]x")])
    assert "\x1b" not in out.getvalue()
    assert "[bold]x" in out.getvalue()
