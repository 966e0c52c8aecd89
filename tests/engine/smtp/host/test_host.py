"""The connections to one mail host: how many, to which address, and when none at all."""

from collections import Counter

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Close, Late, SendLine, StaySilent
from mailprobe.bench.world.host_profiles import SPAMHAUS, new_host
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.engine import (
    in_order,
    open_answers,
)
from tests.engine.engine_runs import (
    CATCH_ALL,
    DELIVERABLE,
    FAILED,
    TIMED_OUT,
    UNDELIVERABLE,
    UNKNOWN,
    fields_of,
    knowns,
    open_checked_engine,
    open_test_engine,
    verify,
    verify_lists,
    verify_once,
)

# -- one limit for one host ------------------------------------------------------------------


@pytest.mark.parametrize("host_connections", [1, 2, 4])
async def test_many_accounts_share_one_limit(autojump_clock, host_connections):
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.1)
        network.add("shop.test", host)
        async with open_checked_engine(network, host_connections=host_connections) as engine:
            lists = [[f"known{a}x{n}@shop.test" for n in range(60)] for a in range(6)]
            seen = await verify_lists(engine, *lists)
        assert seen[DELIVERABLE] > 10
        assert host.record.connections_peak == host_connections


async def test_exchanges_of_other_names_and_the_same_address_share_one_limit(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.02)
        domains = [f"d{number}.test" for number in range(10)]
        for domain in domains:
            network.add(domain, host)
        async with open_checked_engine(network, host_connections=3) as engine:
            await verify_lists(engine, *(knowns(30, domain) for domain in domains))
            assert len(engine.probing.egresses[0].hosts) == 1
        assert host.record.connections_peak == 3


async def test_a_connection_serves_the_domains_that_share_its_host(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        for number in range(5):
            network.add(f"d{number}.test", host)
        async with open_checked_engine(network) as engine:
            for number in range(5):
                [verdict] = await verify(engine, f"known@d{number}.test")
                assert fields_of(verdict) == DELIVERABLE
            assert host.record.sessions_seen == 1


async def test_an_exchange_of_several_addresses_keeps_one_limit_in_all(autojump_clock):
    async with open_fake_network() as network:
        hosts = [new_host("no pipelining", latency_s=0.02) for _ in range(3)]
        addresses = [network.add(f"other{n}.test", host) for n, host in enumerate(hosts)]
        network.zone.mx("shop.test", "mx.shop.test")
        network.zone.host("mx.shop.test", *addresses)
        peak = 0
        async with (
            open_checked_engine(network, host_connections=2) as engine,
            open_answers(engine, knowns(300), account="me", deferred_start=True) as answers,
        ):
            async for _ in answers:
                peak = max(peak, sum(host.record.connections_now for host in hosts))
        assert peak == 2
        assert sum(host.record.sessions_seen > 0 for host in hosts) > 1  # in turn


@pytest.mark.parametrize("host_connections", [1, 2])
async def test_sets_of_addresses_that_overlap_keep_the_limit_of_each_address(
    autojump_clock, host_connections
):
    async with open_fake_network() as network:
        hosts = [new_host("no pipelining", latency_s=0.02) for _ in range(3)]
        one, two, three = (network.add(f"single{n}.test", host) for n, host in enumerate(hosts))
        for name, ips in {"ab": (one, two), "bc": (two, three), "abc": (one, two, three)}.items():
            network.zone.mx(f"{name}.test", f"mx.{name}.test")
            network.zone.host(f"mx.{name}.test", *ips)
        async with open_checked_engine(network, host_connections=host_connections) as engine:
            lists = [
                knowns(20, f"{name}.test") for name in ("single0", "single1", "ab", "bc", "abc")
            ]
            seen = await verify_lists(engine, *lists)
        assert set(seen) <= {DELIVERABLE, UNKNOWN}, "who found no permit does not blame the host"
        for host in hosts:
            assert host.record.connections_peak <= host_connections


async def test_an_idle_connection_gives_its_permit_to_another_host(autojump_clock):
    """A host that needs a permit takes it from an idle connection, before its three seconds end."""
    async with open_fake_network() as network:
        hosts = [MailHost(latency_s=0.01) for _ in range(2)]
        addresses = [network.add(f"d{number}.test", host) for number, host in enumerate(hosts)]
        network.zone.mx("both.test", "mx.both.test")
        network.zone.host("mx.both.test", *addresses)
        async with open_checked_engine(network, host_connections=1) as engine:
            for number in range(5):
                for domain in ("d0.test", "d1.test", "both.test"):
                    [verdict] = await verify(engine, f"known{number}@{domain}")
                    assert fields_of(verdict) == DELIVERABLE
                    assert verdict.latency_ms < 100
        for host in hosts:
            assert host.record.connections_peak == 1
            assert all(session.quit for session in host.record.sessions)


async def test_a_busy_address_is_not_a_failed_one(autojump_clock):
    """Of two addresses one is dead, and the other one has no free permit yet."""
    async with open_fake_network() as network:
        busy = MailHost(latency_s=0.1)
        address = network.add("busy.test", busy)
        dead = network.add("both.test", new_host("refused"), mx="mx.both.test")
        network.zone.host("mx.both.test", dead, address)
        async with (
            open_test_engine(network, host_connections=1) as engine,
            trio.open_nursery() as nursery,
        ):

            async def keep_busy() -> None:
                texts = knowns(40, "busy.test")
                await verify(engine, *texts, account="a")

            nursery.start_soon(keep_busy)
            await trio.sleep(0.3)
            [verdict] = await verify(engine, "known@both.test", account="b")
        assert fields_of(verdict) == DELIVERABLE


async def test_an_idle_connection_of_another_host_is_not_a_failure(autojump_clock):
    """It gives its permit up; until then the address has not been tried."""
    async with open_fake_network() as network:
        address = network.add("one.test", MailHost(latency_s=0.01))
        dead = network.add("gone.test", new_host("refused"))
        network.zone.mx("two.test", "mx.two.test")
        network.zone.host("mx.two.test", address, dead)
        async with open_test_engine(network, host_connections=1) as engine:
            for text in ("known@one.test", "known1@two.test", "known2@two.test"):
                [verdict] = await verify(engine, text)
                assert fields_of(verdict) == DELIVERABLE


async def test_a_host_does_not_starve_another_at_the_same_address(autojump_clock):
    """Pools whose addresses overlap take turns, as accounts do."""
    seen: Counter[object] = Counter()
    async with open_fake_network() as network:
        hosts = [MailHost(reply_s=0.05) for _ in range(2)]
        addresses = [network.add(f"d{number}.test", host) for number, host in enumerate(hosts)]
        network.zone.mx("both.test", "mx.both.test")
        network.zone.host("mx.both.test", *addresses)
        async with (
            open_test_engine(network, host_connections=1) as engine,
            trio.open_nursery() as nursery,
        ):

            async def clean(domain: str) -> None:
                texts = knowns(2000, domain)
                await verify(engine, *texts, account=domain, deferred_start=True)

            nursery.start_soon(clean, "d0.test")
            nursery.start_soon(clean, "d1.test")
            for number in range(20):
                await trio.sleep(1)
                text = f"known{number}@both.test"
                [verdict] = await verify(engine, text, account="neighbour")
                seen[fields_of(verdict)] += 1
            nursery.cancel_scope.cancel()
    assert seen == {DELIVERABLE: 20}


async def test_an_idle_connection_is_closed_after_three_seconds(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await verify(engine, "known@shop.test")
            await trio.sleep(2.9)
            assert host.record.connections_now == 1
            await trio.sleep(0.2)
            assert host.record.connections_now == 0
        assert host.record.sessions[0].quit


# -- operators -------------------------------------------------------------------------------


async def test_an_operator_gets_no_more_connections_than_its_limit(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.02)
        network.add("shop.test", host, mx="mta5.am0.yahoodns.net")
        async with open_checked_engine(network, host_connections=10) as engine:
            seen = await verify_lists(engine, knowns(200), deferred_start=True)
        assert set(seen) == {DELIVERABLE}
        assert host.record.connections_peak == 2


async def test_an_operator_never_gets_more_than_the_setting_either(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.02)
        network.add("shop.test", host, mx="mta5.am0.yahoodns.net")
        async with open_checked_engine(network, host_connections=1) as engine:
            await verify_lists(engine, knowns(50), deferred_start=True)
        assert host.record.connections_peak == 1


async def test_an_operator_is_known_whichever_domain_came_first(autojump_clock):
    """An exchange of another name at the same address does not lift an operator's limits."""
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.1)
        address = network.add("vanity.test", host)
        network.add("yahoo.test", host, mx="mta5.am0.yahoodns.net", address=address)
        async with open_test_engine(network) as engine:
            for count, domain in ((1, "vanity.test"), (200, "yahoo.test")):
                texts = knowns(count, domain)
                await verify(engine, *texts)
        assert host.record.connections_peak <= 2


async def test_an_operator_that_wants_each_by_itself_gets_that_from_the_start(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(recipients_max=1)
        network.add("shop.test", host, mx="shop-test.olc.protection.outlook.com")
        async with open_checked_engine(network) as engine:
            seen = await verify_lists(engine, knowns(10))
        assert set(seen) == {DELIVERABLE}
        for session in host.record.sessions:
            lines = [spoken.line.split(" ")[0] for spoken in session.commands_seen]
            assert lines.count("MAIL") == lines.count("RCPT")
            replies = [reply for reported_of in session.replies().values() for reply in reported_of]
            assert not any(reply.startswith("452") for reply in replies)


# -- slow start ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connect_s", "took_s", "turnarounds"), [(0.0, 0.39, [6, 4]), (0.05, 0.5, [7, 3])]
)
async def test_fifty_addresses_of_one_domain_take_few_turn_arounds(
    autojump_clock, connect_s, took_s, turnarounds
):
    """50 ms a round trip: one or two connections, at most ten round trips, under a second.

    A few times a silence of 10 ms proves that no reply was one too many.
    """
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.05, connect_s=connect_s)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            seen = await verify_lists(engine, knowns(50))
            assert seen == {DELIVERABLE: 50}
            assert trio.current_time() == pytest.approx(took_s)
            assert [session.turnarounds for session in host.record.sessions] == turnarounds
            assert host.record.turnarounds <= 10
            assert host.record.connections_peak <= 2


async def test_replies_that_always_come_together_leave_the_window_as_it_is(autojump_clock):
    """The mean gap between replies shrinks at every batch, and must not underflow."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.01))
        async with open_checked_engine(network) as engine:
            await verify(engine, *knowns(8))
            (probed,) = engine.probing.egresses[0].hosts.values()
            for _ in range(3_000):
                probed.times.batch_done(0.001, 0.0, 0.001)
                assert probed.window() == 8


async def test_one_address_takes_one_connection(autojump_clock):
    """Connect, EHLO, then MAIL, RCPT and the random address in one write."""
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.05, connect_s=0.05)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await verify(engine, "known@shop.test")
            assert trio.current_time() == pytest.approx(0.2)
            [session] = host.record.sessions
            assert session.turnarounds == 2


async def test_a_host_that_is_fast_needs_no_second_connection(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.001)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await verify_lists(engine, knowns(50))
        assert host.record.connections_peak == 1


async def test_eight_refusals_a_connection_and_few_connections_at_once(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.05, connect_s=0.05)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            seen = await verify_lists(engine, [f"nobody{n}@shop.test" for n in range(50)])
        assert seen == {UNDELIVERABLE: 50}
        assert host.record.connections_peak <= 2
        assert host.record.sessions_seen == 7
        assert all(session.refusals <= 8 for session in host.record.sessions)


async def test_a_host_that_allows_fewer_connections_answers_every_probe(autojump_clock):
    """The host refuses a connection too many; every probe still gets its verdict."""
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.02, connections_max=1)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            seen = await verify_lists(engine, knowns(200), deferred_start=True)
        assert seen == {DELIVERABLE: 200}


async def test_a_host_that_allows_one_connection_is_seldom_tried_with_two(autojump_clock):
    """A connection refused while others are open shows the host's limit."""
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.02, connections_max=1)
        network.add("shop.test", host)
        texts = knowns(200)
        async with (
            open_test_engine(network) as engine,
            open_answers(engine, texts, account="me", deferred_start=True) as answers,
        ):
            await in_order(answers, len(texts))
    assert sum(not session.recipients for session in host.record.sessions) <= 20


async def test_cancelled_probes_open_no_connections(autojump_clock):
    """A cancelled probe needs no connection."""
    async with open_fake_network() as network:
        host = MailHost(faults={"CONNECT": Late(0.5)})
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            with trio.move_on_after(0.1):
                await verify(engine, *knowns(50), account="a")
            await verify(engine, "known@shop.test", account="b")
        assert host.record.connections_peak == 1


# -- back-off ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Close(),
        StaySilent(),
        SendLine("421 4.3.2 Shutting down", close=True),
        SendLine(SPAMHAUS, close=True),
    ],
)
async def test_a_host_that_fails_once_gets_no_back_off(autojump_clock, fault):
    async with open_fake_network() as network:
        host = MailHost(faults={"CONNECT": fault}, troubled_sessions=1)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            [first] = await verify(engine, "known1@shop.test")
            assert fields_of(first) in (FAILED, TIMED_OUT)
            [second] = await verify(engine, "known2@shop.test")
            assert fields_of(second) == DELIVERABLE


@pytest.mark.parametrize(("profile", "rest_s"), [("refused", 5), ("blocked at banner", 60)])
async def test_a_host_that_fails_twice_gets_a_back_off(autojump_clock, profile, rest_s):
    async with open_fake_network() as network:
        address = network.add("shop.test", new_host(profile))
        async with open_checked_engine(network) as engine:
            for number in range(2):
                await trio.sleep(2)  # failures in the same instant are one failure
                await verify(engine, f"known{number}@shop.test")
            began = trio.current_time()
            dialled = network.dialled.count((address, 25))
            [verdict] = await verify(engine, "known2@shop.test")
            assert fields_of(verdict) == FAILED
            assert trio.current_time() == began
            await trio.sleep(rest_s - 0.1)
            await verify(engine, "known3@shop.test")
            assert network.dialled.count((address, 25)) == dialled
            await trio.sleep(0.2)
            await verify(engine, "known4@shop.test")
            assert network.dialled.count((address, 25)) == dialled + 1


async def test_one_success_resets_the_failures(autojump_clock):
    """Only failures in a row count."""
    async with open_fake_network() as network:
        hosts = [MailHost(faults={"CONNECT": Close()}), MailHost()]
        address = network.add("shop.test", hosts[0])
        async with open_checked_engine(network) as engine:
            for number in range(6):
                network.hosts[address] = hosts[number % 2]
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == (FAILED, DELIVERABLE)[number % 2]
                await trio.sleep(10)


async def test_a_host_in_back_off_is_skipped_for_the_next_exchange(autojump_clock):
    async with open_fake_network() as network:
        address = network.add("shop.test", new_host("refused"), mx="mx1.shop.test", preference=10)
        network.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        async with open_checked_engine(network) as engine:
            for number in range(5):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == DELIVERABLE
                await trio.sleep(1.2)
        assert network.dialled.count((address, 25)) == 2


async def test_quit_after_a_refusal_does_not_delay_the_next_exchange(autojump_clock):
    async with open_fake_network() as network:
        first = MailHost(faults={"CONNECT": SendLine("554 No"), "QUIT": StaySilent()})
        network.add("shop.test", first, mx="mx1.shop.test", preference=10)
        network.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        [verdict] = await verify_once(network, "known@shop.test")
        assert fields_of(verdict) == DELIVERABLE
        assert verdict.latency_ms < 500


@pytest.mark.parametrize("first", ["unanswered", "silent", "late banner", "silent at ehlo"])
async def test_nine_probes_leave_a_silent_exchange_as_soon_as_eight(autojump_clock, first):
    """Nine probes or more open a second connection beside the first, and it fails as well."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host(first), mx="mx1.shop.test", preference=10)
        backup = MailHost(latency_s=0.3)
        network.add("shop.test", backup, mx="mx2.shop.test", preference=20)
        for count in (8, 9):
            verdicts = await verify_once(network, *knowns(count))
            assert set(map(fields_of, verdicts)) == {DELIVERABLE}
            assert max(verdict.latency_ms for verdict in verdicts) <= 2550


# -- one host does not affect another --------------------------------------------------------


@pytest.mark.parametrize("profile", ["silent", "unanswered", "dripping", "silent at rcpt"])
async def test_silent_hosts_delay_no_other_host(autojump_clock, profile):
    async with open_fake_network() as network:
        for number in range(50):
            network.add(f"bad{number}.test", new_host(profile))
            network.add(f"good{number}.test", MailHost(latency_s=0.05))
        texts = [f"known@{kind}{number}.test" for number in range(50) for kind in ("bad", "good")]
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *texts)
        for verdict in verdicts:
            if "good" in verdict.email:
                assert fields_of(verdict) == DELIVERABLE
                assert verdict.latency_ms <= 250
            else:
                assert fields_of(verdict) == TIMED_OUT
                assert verdict.latency_ms <= 3050


async def test_a_host_that_cannot_be_reached_is_dialled_once_for_all_probes(autojump_clock):
    async with open_fake_network() as network:
        address = network.add("shop.test", new_host("unanswered"))
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *knowns(8))
        assert set(map(fields_of, verdicts)) == {TIMED_OUT}
        assert network.dialled.count((address, 25)) == 1
        assert {verdict.latency_ms for verdict in verdicts} == {1000}


async def test_a_recipient_that_gets_no_answer_costs_its_neighbours_nothing(autojump_clock):
    """The recipients behind it in the same write are probed again, each alone."""
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.01, faults={"known3": StaySilent()})
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *knowns(12))
        for number, verdict in enumerate(verdicts):
            assert fields_of(verdict)[0] == ("unknown" if number == 3 else "deliverable")
        assert fields_of(verdicts[3]) == TIMED_OUT


async def test_an_accepted_address_is_not_left_untested_by_anothers_silence(autojump_clock):
    """The random address was behind a silent recipient; it is probed again while there is time."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.05, faults={"nobody1": StaySilent()}))
        known, silent = await verify_once(network, "known@shop.test", "nobody1@shop.test")
        assert fields_of(silent) == TIMED_OUT
        assert fields_of(known) == DELIVERABLE


@pytest.mark.parametrize("lines", [EHLO_LINES, ("SIZE 100",)], ids=["pipelined", "in step"])
async def test_a_late_reply_answers_no_other_recipient(autojump_clock, lines):
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=lines, faults={"nobody3": Late(1.2)}, latency_s=0.01)
        network.add("shop.test", host)
        texts = [f"{'nobody' if n == 3 else 'known'}{n}@shop.test" for n in range(10)]
        async with open_checked_engine(network, host_connections=1) as engine:
            verdicts = await verify(engine, *texts)
        for number, verdict in enumerate(verdicts):
            assert verdict.status == ("unknown" if number == 3 else "deliverable")


async def test_a_catch_all_domain_does_not_affect_its_hosts_other_domains(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(catch_all=frozenset({"all.test"}))
        network.add("all.test", host)
        network.add("some.test", host)
        async with open_checked_engine(network) as engine:
            verdicts = await verify(
                engine, "known@all.test", "known@some.test", "nobody@all.test", "nobody@some.test"
            )
        assert list(map(fields_of, verdicts)) == [CATCH_ALL, DELIVERABLE, CATCH_ALL, UNDELIVERABLE]
