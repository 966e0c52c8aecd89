"""`mailprobe doctor` with a file of egresses: each is checked by its own way out."""

from mailprobe.api.doctor.egresses import examine_each
from mailprobe.engine.egress import Egress
from mailprobe.engine.settings import EngineSettings
from tests.api.cli.test_doctor import FIRST, HELO, OURS, Internet, open_network

ROWS = (
    Egress("good", helo_name=HELO),
    Egress("renamed", proxy="socks5://192.0.2.1:1080", helo_name="other.shop.test"),
    Egress("absent", source="192.0.2.77"),
)


async def test_each_egress_has_checks_of_its_own_in_the_order_of_the_file(autojump_clock):
    internet = Internet()
    internet.records["other.shop.test", "A"] = ["11.0.9.8"]
    settings = EngineSettings(doh_urls=(FIRST,), helo_name="unused.example")
    async with open_network(internet, settings) as network:
        dials = {row.name: network.dial for row in ROWS}
        checks = await examine_each(network, settings, ROWS, dials)
    names = [check.check for check in checks]
    assert names[1:6] == [
        "good: port 25, outgoing",
        f"good: HELO name, {HELO}",
        "good: blocklists",
        f"good: SPF, {HELO}",
        "renamed: port 25, outgoing, by proxy",
    ]
    assert (names[0], names[-1]) == ("DNS over HTTPS, 11.0.0.1", "clock")
    found = {check.check: check for check in checks}
    wrong = found["renamed: HELO name, other.shop.test"]
    assert (wrong.status, wrong.found) == ("failed", f"is 11.0.9.8, but we are seen as {OURS}")
    assert (
        wrong.advice == f"Point other.shop.test to {OURS}, or set its helo to the name of {OURS}."
    )
    assert found["absent: address"].found == "this machine does not have 192.0.2.77"
    assert f"EHLO {HELO}\r\n".encode() in internet.received
    assert b"EHLO other.shop.test\r\n" in internet.received
