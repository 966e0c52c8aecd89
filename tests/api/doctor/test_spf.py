"""SPF as RFC 7208 has it: its examples, its limits, and hostile records."""

from typing import Any

import pytest
import trio

from mailprobe.api.doctor.blocklists import entry_of
from mailprobe.api.doctor.dns_questions import DnsFailed
from mailprobe.api.doctor.spf import check_host

# RFC 7208 appendix A
EXAMPLE: dict[tuple[str, str], list[str]] = {
    ("example.com", "A"): ["192.0.2.10", "192.0.2.11"],
    ("amy.example.com", "A"): ["192.0.2.65"],
    ("bob.example.com", "A"): ["192.0.2.66"],
    ("mail-a.example.com", "A"): ["192.0.2.129"],
    ("mail-b.example.com", "A"): ["192.0.2.130"],
    ("mail-c.example.org", "A"): ["192.0.2.140"],
    ("example.com", "MX"): ["mail-a.example.com", "mail-b.example.com"],
    ("example.org", "MX"): ["mail-c.example.org"],
    ("six.example.com", "AAAA"): ["2001:db8::1"],
}


class Questions:
    """Answers from a table; a name in `failing` has no answer."""

    def __init__(self, records: dict[tuple[str, str], list[str]], failing: Any = ()) -> None:
        self.records_by_name = records
        self.failing = failing
        self.asked = 0

    async def records(self, name: str, kind: str) -> list[str]:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if name in self.failing:
            raise DnsFailed("SERVFAIL")
        if not name or ".." in name:
            raise ValueError
        return self.records_by_name.get((name, kind), [])


async def result(address: str, record: str | None) -> str:
    texts = {("example.com", "TXT"): [record]} if record is not None else {}
    questions: Any = Questions({**EXAMPLE, **texts})
    return await check_host(address, "example.com", questions)


@pytest.mark.parametrize(
    ("record", "address", "wanted"),
    [
        ("v=spf1 +all", "192.0.2.1", "pass"),
        ("v=spf1 a -all", "192.0.2.10", "pass"),
        ("v=spf1 a -all", "192.0.2.65", "fail"),
        ("v=spf1 a:example.org -all", "192.0.2.10", "fail"),
        ("v=spf1 mx -all", "192.0.2.129", "pass"),
        ("v=spf1 mx -all", "192.0.2.10", "fail"),
        ("v=spf1 mx:example.org -all", "192.0.2.140", "pass"),
        ("v=spf1 mx mx:example.org -all", "192.0.2.140", "pass"),
        ("v=spf1 mx/30 mx:example.org/30 -all", "192.0.2.131", "pass"),
        ("v=spf1 mx/30 mx:example.org/30 -all", "192.0.2.143", "pass"),
        ("v=spf1 mx/30 mx:example.org/30 -all", "192.0.2.144", "fail"),
        ("v=spf1 ptr -all", "192.0.2.65", "fail"),
        ("v=spf1 ip4:192.0.2.128/28 -all", "192.0.2.129", "pass"),
        ("v=spf1 ip4:192.0.2.128/28 -all", "192.0.2.65", "fail"),
        ("v=spf1 ip6:2001:db8::/32 -all", "2001:db8::9", "pass"),
        ("v=spf1 a:six.example.com//64 -all", "2001:db8::2", "pass"),
        ("v=spf1 a:six.example.com/24//64 -all", "2001:db8::2", "pass"),
        ("V=SPF1 IP4:192.0.2.1 ~ALL", "192.0.2.2", "softfail"),
        ("v=spf1 ?all", "192.0.2.2", "neutral"),
        ("v=spf1", "192.0.2.2", "neutral"),
        ("v=spf1 unknown=x exp=why.example.com -all", "192.0.2.2", "fail"),
        ("v=spf10 +all", "192.0.2.2", "none"),
        (None, "192.0.2.2", "none"),
        ("v=spf1 frobnicate -all", "192.0.2.2", "permerror"),
        ("v=spf1 ip4:192.0.2.0/99 -all", "192.0.2.2", "permerror"),
        ("v=spf1 ip4:here -all", "192.0.2.2", "permerror"),
        ("v=spf1 a/99 -all", "192.0.2.2", "permerror"),
        ("v=spf1 a:.. -all", "192.0.2.2", "permerror"),
        ("v=spf1 include:nowhere.test -all", "192.0.2.2", "permerror"),
        ("v=spf1 redirect=nowhere.test", "192.0.2.2", "permerror"),
        ("v=spf1 exists:%{ir}.example.org -all", "192.0.2.2", "unclear"),
        ("v=spf1 redirect=%{d}", "192.0.2.2", "unclear"),
    ],
)
async def test_a_record_is_read_as_receivers_do(record, address, wanted) -> None:
    assert await result(address, record) == wanted


async def test_included_and_redirected_records_decide(autojump_clock) -> None:
    other = {
        ("in.test", "TXT"): ["v=spf1 ip4:192.0.2.9 -all"],
        ("on.test", "TXT"): ["v=spf1 include:in.test ~all"],
    }
    assert await result("192.0.2.9", "v=spf1 include:in.test -all") == "permerror"
    questions: Any = Questions(EXAMPLE | other | {("a.test", "TXT"): ["v=spf1 redirect=on.test"]})
    assert await check_host("192.0.2.9", "a.test", questions) == "pass"
    assert await check_host("192.0.2.8", "a.test", questions) == "softfail"


async def test_a_record_that_includes_itself_ends() -> None:
    questions: Any = Questions({("loop.test", "TXT"): ["v=spf1 include:loop.test -all"]})
    assert await check_host("192.0.2.1", "loop.test", questions) == "permerror"
    assert questions.asked <= 12


async def test_a_record_of_a_thousand_terms_asks_ten_questions() -> None:
    record = "v=spf1 " + " ".join(f"a:h{n}.test" for n in range(1000))
    questions: Any = Questions({("many.test", "TXT"): [record]})
    assert await check_host("192.0.2.1", "many.test", questions) == "permerror"
    assert questions.asked <= 12


async def test_an_answer_that_does_not_come_is_no_result() -> None:
    questions: Any = Questions({}, failing=("gone.test",))
    assert await check_host("192.0.2.1", "gone.test", questions) == "temperror"


def test_entries_of_lists_are_named_by_rfc_5782() -> None:
    assert entry_of("192.0.2.99", "bad.example.com") == "99.2.0.192.bad.example.com"
    six = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2"
    assert entry_of("2001:db8::1", "list.test") == f"{six}.list.test"
