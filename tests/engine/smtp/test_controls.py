"""Controls: an address with a known answer is sent again, to a host that refused several."""

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import ReplyFault, StaySilent
from mailprobe.bench.world.host_behaviours import Turning
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine.smtp.catchall import DomainAcceptance, DomainAtHost
from mailprobe.engine.smtp.controls import (
    SAMPLED_FROM,
    HostControls,
    Known,
    KnownAddresses,
    Treatment,
    wording,
)
from mailprobe.engine.smtp.wire import SmtpReply
from tests.engine.engine_runs import (
    DELIVERABLE,
    UNDELIVERABLE,
    UNKNOWN,
    fields_of,
    knowns,
    open_checked_engine,
    verify,
)

REFUSED = [f"gone{number}@shop.test" for number in range(3)]
FIRST = [DELIVERABLE, UNDELIVERABLE, UNDELIVERABLE, UNDELIVERABLE]


async def test_an_acceptance_whose_control_is_not_answered_stands_at_the_deadline(autojump_clock):
    slow_s: dict[str, float] = {}
    async with open_fake_network() as network:
        faults: dict[str, ReplyFault] = {}
        network.add("shop.test", MailHost(slow_s=slow_s, faults=faults))
        async with open_checked_engine(network, mint=lambda shape: "somebody.else") as engine:
            first = await verify(engine, "known@shop.test", *REFUSED)
            assert [fields_of(verdict) for verdict in first] == FIRST
            slow_s["known"] = 0.95  # so that the control is sent shortly before the deadline
            faults["somebody.else"] = StaySilent()
            verdicts = await verify(engine, *knowns(3))
    assert [fields_of(verdict) for verdict in verdicts] == [DELIVERABLE] * 3


async def test_an_acceptance_is_unknown_where_the_control_is_accepted_too(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(turn=Turning(5)))
        async with open_checked_engine(network, mint=lambda shape: "somebody.else") as engine:
            first = await verify(engine, "known@shop.test", *REFUSED)
            assert [fields_of(verdict) for verdict in first] == FIRST
            verdicts = await verify(engine, "gone9@shop.test", *knowns(3))
    assert fields_of(verdicts[0]) == UNDELIVERABLE
    assert [fields_of(verdict) for verdict in verdicts[1:]] == [UNKNOWN] * 3


async def test_an_acceptance_is_unknown_at_the_deadline_where_the_host_has_changed(autojump_clock):
    """Another session has seen the contradiction; this one waits for slow replies meanwhile."""
    slow_s: dict[str, float] = {}
    replies: dict[str, str] = {}
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(ehlo_lines=NO_PIPELINING, slow_s=slow_s, replies=replies))
        async with open_checked_engine(
            network, mint=lambda shape: "somebody.else", host_connections=1
        ) as engine:
            first = await verify(engine, "known@shop.test", *REFUSED)
            assert [fields_of(verdict) for verdict in first] == FIRST
            [probed] = engine.probing.egresses[0].hosts.values()
            slow_s["known"] = 0.13  # not late, so the session goes on to the deadline

            async def contradict() -> None:
                await trio.sleep(1.5)
                replies["somebody.else"] = "250 2.1.5 Ok"
                domain = DomainAcceptance(DomainAtHost("another.test"))
                known = probed.controls.known.find(Treatment.REFUSED, domain, trio.current_time())
                assert known is not None
                probed.controls.contradict(known, Treatment.ACCEPTED, trio.current_time())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(contradict)
                verdicts = await verify(engine, "gone9@shop.test", *knowns(30))
    assert fields_of(verdicts[1]) == UNKNOWN
    assert {verdict.status for verdict in verdicts[1:]} == {"unknown"}


@pytest.mark.parametrize("sent", [False, True])
def test_accepted_addresses_are_kept_at_once_while_too_few_may_be_sent(sent):
    """Those that went out as controls show nothing for an hour, so they do not count."""
    known, domain = KnownAddresses(), DomainAcceptance(DomainAtHost("shop.test"))
    for mailbox in (f"ann{number}@shop.test" for number in range(SAMPLED_FROM)):
        assert known.next_sample_at <= 10.0
        known.sample(mailbox, domain, 10.0)
        if sent:
            known.asks(mailbox, 10.0)
    known.sample("bob@shop.test", domain, 10.0)
    assert (known.next_sample_at <= 10.0) is sent


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("no user ann", "no user bob.x", True),
        ("ann: unknown", "bob.x: unknown", True),
        ("no ann, ann is unknown", "no bob.x, bob.x is unknown", True),
        ("no user joann", "no user bob.x", False),
        ("no user annann", "no user bob.x", False),
        ("no user ann_a", "no user bob.x", False),
        ("no user ann", "no user", False),
    ],
)
def test_refusals_are_worded_alike_but_for_the_name_refused(one, other, alike):
    words = wording(SmtpReply(550, (one,)), "Ann@shop.test")
    assert (words == wording(SmtpReply(550, (other,)), "bob.x@shop.test")) is alike


def test_a_mailbox_that_is_gone_does_not_show_that_its_host_accepts_everybody():
    """Any account can remove a mailbox of its own."""
    controls, domain = HostControls(), DomainAcceptance(DomainAtHost("shop.test"))
    known = Known("bob@shop.test", domain, 5.0)
    controls.contradict(known, Treatment.REFUSED, 10.0)
    assert not controls.accepted_all(10.0)
    controls.contradict(known, Treatment.ACCEPTED, 20.0)
    assert controls.accepted_all(20.0)
    assert not controls.accepted_all(20.0 + 6 * 3_600.0)


def test_a_host_that_goes_on_as_it_changed_shows_no_lower_limit():
    controls, domain = HostControls(), DomainAcceptance(DomainAtHost("shop.test"))
    for second in range(6):
        controls.note_refused(float(second))
    controls.note_accepted("ann@shop.test", domain, 5.0)
    known = Known("bob@shop.test", domain, 5.0)
    assert controls.contradict(known, Treatment.REFUSED, 10.0) == 4
    assert controls.contradict(known, Treatment.REFUSED, 3_620.0) is None
    controls.note_seen(Treatment.ACCEPTED)
    assert controls.contradict(known, Treatment.REFUSED, 3_700.0) == 1
