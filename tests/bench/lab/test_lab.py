"""The lab from outside: a process, HTTPS, SMTP on real sockets, and its end."""

import base64
import contextlib
import json
import os
import select
import signal
import smtplib
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.rcode
import httpx
import pytest

from mailprobe.bench.lab import SCENARIO_NAMES, Lab, LabFailed, start_lab
from mailprobe.bench.lab.scenarios import SCENARIOS, alabel
from mailprobe.engine.verdict import Outcome


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab("default") as lab:
        yield lab


class Resolver:
    """A client of the lab's resolver, as RFC 8484 has it."""

    def __init__(self, lab: Lab) -> None:
        self.url = lab.env["MAILPROBE_DOH_URLS"]
        tls = ssl.create_default_context(cafile=lab.env["MAILPROBE_DOH_CA_FILE"])
        self.http = httpx.Client(http2=True, verify=tls, trust_env=False)

    def resolve(self, name: str, kind: str) -> dns.message.Message:
        query = dns.message.make_query(name, kind, id=0).to_wire()
        headers = {"content-type": "application/dns-message"}
        answer = self.http.post(self.url, content=query, headers=headers)
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        assert answer.headers["content-type"] == "application/dns-message"
        return dns.message.from_wire(answer.content)

    def exchange_of(self, domain: str) -> str:
        """The IP address of the domain's first exchange."""
        (exchanges,) = self.resolve(domain, "MX").answer
        first = min(exchanges, key=lambda mx: mx.preference).exchange.to_text()
        (addresses,) = self.resolve(first, "A").answer
        address: str = addresses[0].address
        return address


@pytest.fixture(scope="module")
def resolver(lab: Lab) -> Iterator[Resolver]:
    client = Resolver(lab)
    with client.http:
        yield client


# Not of one address: what went before, or what else is asked at the same time, decides; or a setting or an account's bounces do.
IN_SEQUENCE = {
    Outcome.HOST_CHANGED,
    Outcome.HOST_BUDGET,
    Outcome.UNCONFIRMED,
    Outcome.NO_CONNECTION_FREE,
    Outcome.NO_EGRESS,
    Outcome.NOT_ASKED,
    Outcome.PAUSED,
    Outcome.BOUNCED,
}


def dial(lab: Lab, address: str) -> smtplib.SMTP:
    return smtplib.SMTP(
        address, int(lab.env["MAILPROBE_SMTP_PORT"]), lab.env["MAILPROBE_SMTP_HELO"], timeout=5
    )


def test_the_first_line_names_settings_and_addresses_of_every_outcome(lab):
    assert lab.env["MAILPROBE_ALLOW_PRIVATE"] == "1"
    assert lab.env["MAILPROBE_SMTP_HELO"] == "probe.lab.test"
    assert set(lab.addresses) == {outcome.value for outcome in set(Outcome) - IN_SEQUENCE}
    assert all(len(addresses) >= 3 for addresses in lab.addresses.values())


def test_a_question_travels_the_whole_way_to_a_mailbox(lab, resolver):
    """As a prober would: MX and A over HTTPS, then RCPT at the address."""
    domain = alabel("müller-söhne.test")
    address = resolver.exchange_of(domain)
    assert address.startswith("127.")
    with dial(lab, address) as smtp:
        smtp.ehlo()
        assert smtp.has_extn("pipelining")
        smtp.mail("")
        assert smtp.rcpt(f"hugo.nunez@{domain}")[0] == 250
        code, text = smtp.rcpt(f"nobody@{domain}")
        assert (code, text[:5]) == (550, b"5.1.1")


@pytest.mark.parametrize(
    ("domain", "rcode"),
    [
        ("nothing.example", "NXDOMAIN"),
        ("never-registered.test", "NXDOMAIN"),
        ("parked-domain.test", "NOERROR"),
        ("broken-dnssec.test", "SERVFAIL"),
        ("refused-zone.test", "REFUSED"),
    ],
)
def test_missing_names_and_names_without_mail_have_their_own_rcodes(resolver, domain, rcode):
    answer = resolver.resolve(domain, "MX")
    assert dns.rcode.to_text(answer.rcode()) == rcode
    assert not answer.answer


def test_a_captive_portal_answers_with_html(resolver):
    query = dns.message.make_query("captive-portal.test", "MX", id=0).to_wire()
    headers = {"content-type": "application/dns-message"}
    answer = resolver.http.post(resolver.url, content=query, headers=headers)
    assert answer.headers["content-type"] == "text/html"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/dns-query", 415), ("GET", "/dns-query", 400), ("GET", "/elsewhere", 404)],
)
def test_an_invalid_doh_request_gets_its_status(resolver, method, path, status):
    assert resolver.http.request(method, httpx.URL(resolver.url, path=path)).status_code == status


def test_a_question_may_come_by_get(resolver):
    query = dns.message.make_query("startdeck.test", "MX", id=0).to_wire()
    unpadded = base64.urlsafe_b64encode(query).decode().rstrip("=")  # RFC 8484 6
    answer = resolver.http.get(resolver.url, params={"dns": unpadded})
    assert dns.message.from_wire(answer.content).answer[0].name.to_text() == "startdeck.test."


def test_nothing_listens_beyond_loopback(lab):
    """No socket of the lab's is bound to an address that another machine can reach."""
    ports = {int(lab.env["MAILPROBE_SMTP_PORT"]), httpx.URL(lab.env["MAILPROBE_DOH_URLS"]).port}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1].split(":") for row in rows if row[3] == "0A"]
    ours = [address for address, port in listening if int(port, 16) in ports]
    assert ours
    assert all(address.endswith("7F") for address in ours)  # little-endian 127.x.y.z


def test_a_refusing_host_refuses_and_an_unanswered_connect_hangs(lab, resolver):
    port = int(lab.env["MAILPROBE_SMTP_PORT"])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((resolver.exchange_of("nobody-home.test"), port), timeout=5)
    with pytest.raises(TimeoutError):
        socket.create_connection((resolver.exchange_of("unanswered-calls.test"), port), timeout=0.2)


def test_records_tell_what_hosts_have_seen(lab, resolver):
    address = resolver.exchange_of("startdeck.test")
    lab.forget()
    with dial(lab, address) as smtp:
        smtp.ehlo()
        smtp.mail("")
        smtp.rcpt("nobody@startdeck.test")
        smtp.docmd("VRFY", "ann")
    host = lab.records()["hosts"][address]
    assert (host["sessions"], host["connections_peak"], host["quits"]) == (1, 1, 1)
    assert (host["turnarounds"], host["refusals_most"]) == ([5], 1)
    assert "VRFY" in host["mistakes"][0]
    lab.forget()
    assert lab.records()["hosts"] == {}


def test_a_lost_client_harms_nobody(lab, resolver):
    """Broken TLS, broken HTTP/2 and a reset connection: the next question is answered."""
    url = httpx.URL(lab.env["MAILPROBE_DOH_URLS"])
    for octets in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b""):
        with socket.create_connection((url.host, url.port), timeout=5) as plain:
            plain.sendall(octets)
    tls = ssl.create_default_context(cafile=lab.env["MAILPROBE_DOH_CA_FILE"])
    with (
        socket.create_connection((url.host, url.port), timeout=5) as plain,
        tls.wrap_socket(plain, server_hostname=url.host) as secure,
    ):
        secure.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(OSError):
            secure.recv(4096)
    assert resolver.resolve("startdeck.test", "MX").answer


@contextlib.contextmanager
def command(*arguments: str, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """`mailprobe lab` as a person starts it."""
    code = "from mailprobe.api.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "lab", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_a_signal_ends_it_and_its_files_go(number, code):
    with command() as process:
        assert process.stdout is not None
        env = json.loads(process.stdout.readline())["env"]
        assert Path(env["MAILPROBE_DOH_CA_FILE"]).exists()
        process.send_signal(number)
        assert process.wait(10) == code
        assert not Path(env["MAILPROBE_DOH_CA_FILE"]).parent.exists()
        assert process.stdout.read() == ""
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_an_unknown_scenario_is_one_clear_line_and_exit_2():
    with command("--scenario", "nonesuch") as process:
        out, err = process.communicate(timeout=10)
    assert process.returncode == 2
    assert out == ""
    assert "no scenario 'nonesuch'" in err
    assert "hostile" in err


def test_the_end_of_its_input_does_not_end_a_persons_lab():
    with command(stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.stdin.write("nonsense\n")
        process.stdin.close()
        assert "error" in json.loads(process.stdout.readline())
        process.stdin = None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)


def test_a_reader_that_has_gone_ends_it_quietly():
    code = "from mailprobe.api.cli import main; main()"
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-c", code, "lab"],
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_a_lab_never_outlives_the_process_that_started_it():
    """Not even one that was killed; two labs run side by side meanwhile."""
    code = (
        "import os, sys\n"
        "from mailprobe.bench.lab import start_lab\n"
        "with start_lab('slow') as lab, start_lab('slow') as other:\n"
        "    print(lab.process.pid, other.process.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    for descriptor in watched:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(10_000)
        os.close(descriptor)


def test_a_lab_that_cannot_start_says_so(monkeypatch, capfd):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LabFailed, match="has gone"), start_lab():
        pass


@pytest.mark.parametrize("call", ["bind", "connect"])
def test_a_lab_without_loopback_says_so_in_one_line(call):
    code = (
        "import runpy, socket, sys\n"
        "def refuse(*_): raise OSError(101, 'Network is unreachable')\n"
        f"socket.socket.{call} = refuse\n"
        "sys.argv = ['lab', 'default', '0']\n"
        "runpy.run_module('mailprobe.bench.lab', run_name='__main__')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("mailprobe lab: the loopback addresses (127.0.0.0/8)")
    assert ended.stderr.endswith(
        "Network is unreachable; see that the interface is up (ip link set lo up)\n"
    )
    assert ended.stderr.count("\n") == 1


def test_a_scenario_that_needs_more_files_than_there_may_be_says_what_to_do():
    code = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))\n"
        "sys.argv = ['lab', 'hostile', '0']\n"
        "runpy.run_module('mailprobe.bench.lab', run_name='__main__')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert ended.returncode == 1
    assert "ulimit -n" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_two_thousand_hosts_open_their_doors():
    with start_lab("hostile") as lab:
        assert len(lab.addresses["deliverable"]) == 1_000
        failing = lab.addresses["timed_out"] + lab.addresses["conversation_failed"]
        assert len(failing) == 1_000
        client = Resolver(lab)
        with client.http, dial(lab, client.exchange_of("healthy0999.test")) as smtp:
            smtp.ehlo()
            smtp.mail("")
            assert smtp.rcpt("known.ann@healthy0999.test")[0] == 250


def test_a_restless_resolver_ends_its_connections():
    """GOAWAY after fifty questions; a client that connects anew loses none that were answered."""
    with start_lab("restless") as lab:
        client = Resolver(lab)
        with client.http:
            for _ in range(120):
                assert client.resolve("startdeck.test", "MX").answer
        assert lab.records()["doh_connections"] >= 3


def test_a_resolver_speaks_http_1_too(lab):
    """At a port of its own: an answer, a question that hangs, and one that is none."""
    tls = ssl.create_default_context(cafile=lab.env["MAILPROBE_DOH_CA_FILE"])
    query = dns.message.make_query("startdeck.test", "MX", id=0).to_wire()
    headers = {"content-type": "application/dns-message"}
    with httpx.Client(http2=True, verify=tls, trust_env=False) as http:
        for _ in range(2):
            answer = http.post(lab.http1_url, content=query, headers=headers)
            assert answer.http_version == "HTTP/1.1"
            assert dns.message.from_wire(answer.content).answer
        assert http.get(lab.http1_url).status_code == 400
        assert http.post(lab.http1_url, content=bytes(5_000), headers=headers).status_code == 400
    url = httpx.URL(lab.http1_url)
    with (
        socket.create_connection((url.host, url.port), timeout=5) as plain,
        tls.wrap_socket(plain, server_hostname=url.host) as secure,
    ):
        secure.sendall(b"no HTTP at all\r\n\r\n")
        assert secure.recv(4096) == b""


def test_a_scenario_can_sort_its_addresses_in_other_ways():
    with start_lab("adverse") as lab:
        assert len(lab.groups["tarpit list"]) == 400
        assert not lab.truth
        question = dns.message.make_query(lab.groups["dead"][0].partition("@")[2], "MX", id=0)
        tls = ssl.create_default_context(cafile=lab.env["MAILPROBE_DOH_CA_FILE"])
        headers = {"content-type": "application/dns-message"}
        for url in (lab.env["MAILPROBE_DOH_URLS"], lab.http1_url):
            with (
                httpx.Client(http2=True, verify=tls, trust_env=False, timeout=0.3) as http,
                pytest.raises(httpx.ReadTimeout),
            ):
                http.post(url, content=question.to_wire(), headers=headers)
    with start_lab("internet") as lab:
        assert sum(map(len, lab.truth.values())) == 5_000
        assert not lab.groups


def test_scenario_names_are_those_of_the_scenarios():
    assert set(SCENARIO_NAMES) == set(SCENARIOS)


LAB = "from mailprobe.api.cli import main; main()"


@pytest.mark.parametrize(
    ("script", "code", "output"),
    [
        ("import os; print(os.environ['MAILPROBE_ALLOW_PRIVATE']); raise SystemExit(7)", 7, "1\n"),
        ("import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()", 143, ""),
    ],
)
def test_a_command_runs_in_the_lab_which_ends_with_its_exit_code(
    script: str, code: int, output: str
) -> None:
    words = [sys.executable, "-c", LAB, "lab", "--", sys.executable, "-c", script]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=180)
    assert (ended.returncode, ended.stdout) == (code, output), ended.stderr


def test_a_command_of_the_lab_may_be_one_of_this_programs_folder(tmp_path: Path) -> None:
    """So `.venv/bin/mailprobe lab -- mailprobe ...` runs in a checkout."""
    words = [sys.executable, "-c", LAB, "lab", "--", Path(sys.executable).name, "-c", "print(1)"]
    ended = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


def test_a_command_that_does_not_exist_is_wrong_usage() -> None:
    words = [sys.executable, "-c", LAB, "lab", "--", "no-such-command"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=180)
    assert ended.returncode == 2
    assert "there is no command 'no-such-command' to run in the lab" in ended.stderr
