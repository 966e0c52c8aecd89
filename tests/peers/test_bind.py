"""BIND as the resolver: another implementation of DNS over HTTPS, with its own TLS and HTTP/2.

Nothing listens at the exchanges, so a domain that has mail ends `conversation_failed`.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio

from mailprobe.bench.load.private_postgres import free_port
from mailprobe.engine import Engine, open_answers, open_engine
from mailprobe.engine.verdict import Outcome
from tests.engine.invariants import assert_whole
from tests.peers.engine_runs import Finding, assert_outcome, engine_settings, verify
from tests.peers.programs.bind import Bind, prepare_bind

EXCHANGES = 100  # the engine keeps 64; the message is larger than 4 KB
LONG = "a-name-as-long-as-those-of-the-largest-operators-are"


def chain(name: str, links: int) -> str:
    """`links` CNAMEs from this name to one that has mail."""
    steps = [name, *(f"{name}-{number}" for number in range(1, links)), "plain"]
    return "".join(f"{one} CNAME {next_}\n" for one, next_ in pairwise(steps))


RECORDS = (
    """
@ TXT "the zone itself"
plain MX 20 second
plain MX 10 mx
mx A 127.0.40.1
second A 127.0.40.2
text TXT "no mail"
addressed A 127.0.40.1
null MX 0 .
null-beside MX 0 .
null-beside MX 10 mx
nowhere CNAME missing
far CNAME missing.elsewhere.
to-text CNAME text
to-broken CNAME www.broken.test.
loop CNAME pool
pool CNAME loop
xn--bcher-kva MX 10 mx
homeless MX 10 missing
aliased MX 10 mx-alias
mx-alias CNAME mx
unknown-host MX 10 mx.broken.test.
numbered MX 10 127.0.40.1.
lettered MX 10 MX
six MX 10 mx6
mx6 AAAA ::1
equal MX 10 b.equal
equal MX 10 a.equal
a.equal A 127.0.40.1
b.equal A 127.0.40.2
*.burst MX 10 mx
*.silent MX 0 .
"""
    + chain("eight", 8)
    + chain("nine", 9)
    + chain("twenty", 20)
    + "".join(f"large MX {place} {LONG}-{place:03}\n" for place in range(EXCHANGES, 0, -1))
    + "".join(f"{LONG}-{place:03} A 127.0.40.1\n" for place in range(1, EXCHANGES + 1))
    + "".join(f"huge MX {place} {LONG}-{place:03}\n" for place in range(1, 300))
)

OTHERS = 10  # domains that are looked up when the burst is over
FAILED, NO_MX, FOUND = Outcome.RESOLVER_FAILED, Outcome.NO_MX, Outcome.CONVERSATION_FAILED

# domain under peers.test (or a whole one), outcome, mx_found, mx_host's first label
CASES = [
    ("plain", FOUND, True, "mx"),
    ("PLAIN", FOUND, True, "mx"),
    ("missing", NO_MX, False, None),
    ("text", NO_MX, False, None),
    ("addressed", NO_MX, False, None),  # an address record is not a mail host
    ("null", NO_MX, False, None),
    ("null-beside", FOUND, True, "mx"),
    ("nowhere", NO_MX, False, None),
    ("far", NO_MX, False, None),
    ("to-text", NO_MX, False, None),
    ("to-broken", FAILED, False, None),
    ("eight", FOUND, True, "mx"),
    ("nine", FAILED, False, None),
    ("twenty", FAILED, False, None),
    ("loop", FAILED, False, None),
    ("bücher", FOUND, True, "mx"),
    ("xn--bcher-kva", FOUND, True, "mx"),
    ("homeless", FOUND, True, "missing"),
    ("aliased", FOUND, True, "mx-alias"),
    ("unknown-host", FAILED, True, "mx.broken.test"),
    ("numbered", FAILED, False, None),  # its only exchange is 127.0.0.1.
    ("lettered", FOUND, True, "mx"),
    ("six", FOUND, True, "mx6"),
    ("equal", FOUND, True, "a.equal"),
    ("large", FOUND, True, f"{LONG}-001"),
    ("huge", FOUND, True, f"{LONG}-001"),
    ("www.broken.test", FAILED, False, None),
    ("www.lame.test", FAILED, False, None),
    ("www.elsewhere", NO_MX, False, None),
]


@pytest.fixture(scope="module")
def prepared() -> Bind:
    return prepare_bind({"peers.test": RECORDS})


@pytest.fixture(scope="module")
def bind(prepared) -> Iterator[Bind]:
    with prepared.running():
        yield prepared


@asynccontextmanager
async def open_engine_for(bind: Bind) -> AsyncIterator[Engine]:
    """An engine with BIND as its only resolver. The exchanges' port is free, so they refuse at once."""
    async with open_engine(engine_settings(bind.url, bind.authority, free_port())) as engine:
        yield engine
    assert_whole(engine)


@pytest.mark.parametrize(("name", "outcome", "mx_found", "mx_host"), CASES)
async def test_a_domain_gets_its_verdict(bind, name, outcome, mx_found, mx_host):
    text = f"ann@{name}" if "." in name else f"ann@{name}.peers.test"
    async with open_engine_for(bind) as engine:
        finding = (await verify(engine, [text]))[text]
    assert_outcome(finding, outcome)
    assert finding.verdict.mx_found is mx_found
    whole = mx_host if mx_host is None or mx_host.endswith(".test") else f"{mx_host}.peers.test"
    assert finding.verdict.mx_host == whole


def texts(count: int) -> list[str]:
    """Half of these domains have mail, the others a null MX (RFC 7505)."""
    return [
        f"ann@d{number}.{'burst' if number % 2 else 'silent'}.peers.test" for number in range(count)
    ]


def outcome_of(text: str) -> Outcome:
    return FOUND if "burst" in text else NO_MX


async def test_three_thousand_domains_at_once(bind):
    """On a busy machine some answers come too late; later look-ups on the connection succeed."""
    wanted, others = texts(3000 + OTHERS)[:3000], texts(3000 + OTHERS)[3000:]
    async with open_engine_for(bind) as engine:
        findings = await verify(engine, wanted)
        later = await verify(engine, others)
    assert findings.keys() == set(wanted)
    found = [text for text in wanted if is_found(findings[text])]
    assert len(found) >= 0.9 * len(wanted)
    assert all(is_found(each) for each in later.values())


def is_found(finding: Finding) -> bool:
    """Whether the look-up succeeded. If it failed the verdict must be unknown, else the right one."""
    if finding.rule.startswith(("resolver", "exchange.lookup-failed")):
        assert_outcome(finding, FAILED)
        return False
    assert_outcome(finding, outcome_of(finding.verdict.email))
    return True


@pytest.fixture
def another() -> Bind:
    """A BIND that is not running."""
    return prepare_bind({"peers.test": RECORDS}, "bind-another")


async def test_a_resolver_that_is_restarted_is_found_again(another):
    """Its end is a GOAWAY or a closed connection; the next query opens a new one."""
    before, between, after = (f"ann@{name}.burst.peers.test" for name in "abc")
    async with open_engine_for(another) as engine:
        with another.running():
            assert_outcome((await verify(engine, [before]))[before], FOUND)
        assert_outcome((await verify(engine, [between]))[between], FAILED)
        with another.running():
            assert_outcome((await verify(engine, [after]))[after], FOUND)


async def test_a_restart_in_a_burst_makes_no_domain_lose_its_mail(another):
    """A domain that could not be looked up is unknown; one that has mail is never `no_mx`."""
    wanted = texts(1500)
    findings: dict[str, Finding] = {}
    async with open_engine_for(another) as engine:
        with another.running() as first:
            async with open_answers(
                engine, wanted, account="me", deferred_start=True, explain=True
            ) as answers:
                async for answer in answers:
                    assert answer.evidence is not None
                    findings[answer.verdict.email] = Finding(answer.verdict, answer.evidence)
                    if len(findings) == 300:
                        await trio.to_thread.run_sync(first.stop)
    for each in findings.values():
        is_found(each)
    assert findings.keys() == set(wanted)
    assert any(each.rule.startswith("resolver") for each in findings.values())
    assert any(each.rule == "no_mx: null MX" for each in findings.values())
