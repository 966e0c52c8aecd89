"""What a raw client sees of each script: the fakes themselves must be true."""

import socket
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import (
    Close,
    Drop,
    Late,
    SendLine,
    Sometimes,
    StaySilent,
    Swap,
    Twice,
)
from mailprobe.bench.world.host_profiles import HOST_PROFILES, LATIN_1, new_host
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost

HELLO = "EHLO probe.test"
MAIL = "MAIL FROM:<>"
KNOWN = "RCPT TO:<known.ann@shop.test>"
UNKNOWN = "RCPT TO:<nobody@shop.test>"


class Client:
    """A client without manners: says anything, reads for one second at most."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, *lines: str) -> None:
        await self.stream.send_all("".join(f"{line}\r\n" for line in lines).encode())

    async def reply(self, within_s: float = 1.0) -> str:
        """One whole reply; or "silent", "closed", "reset", "too much", "garbage"."""
        lines: list[str] = []
        with trio.move_on_after(within_s):
            while True:
                while b"\n" not in self.buffer:
                    try:
                        octets = await self.stream.receive_some(4096)
                    except trio.BrokenResourceError:
                        return "reset"
                    if not octets:
                        return "closed"
                    self.buffer += octets
                    if len(self.buffer) > 16384 or len(lines) > 100:
                        return "too much"
                line, _, self.buffer = self.buffer.partition(b"\n")
                if not line[:3].isdigit():
                    return "garbage"
                lines.append(line.rstrip(b"\r").decode("latin-1"))
                if line[3:4] != b"-":
                    return "\n".join(lines)
        return "silent"

    async def exchange(self, *lines: str) -> list[str]:
        """Say these one after the other, each after the reply to the one before."""
        replies = []
        for line in lines:
            await self.send(line)
            replies.append(await self.reply())
        return replies


async def meet(network: FakeNetwork, host: MailHost) -> Client:
    address = network.address_of(host) or network.add("shop.test", host)
    return Client(await network.dial(address, 25))


async def talk(host: MailHost, *lines: str, seed: int = 0) -> list[str]:
    """Banner and replies of one session, in step, up to the first that is none."""
    async with open_fake_network(seed=seed) as network:
        client = await meet(network, host)
        replies = [await client.reply()]
        for line in lines:
            if not replies[-1][:3].isdigit():
                break
            try:
                await client.send(line)
            except trio.BrokenResourceError:
                replies.append("closed")
                break
            replies.append(await client.reply())
        return replies


def codes(replies: Sequence[str]) -> str:
    return " ".join(reply[:3] if reply[:3].isdigit() else reply for reply in replies)


# personality -> what banner, EHLO, MAIL, RCPT known, RCPT unknown, QUIT get
SEEN = {
    "friendly": "220 250 250 250 550 221",
    "postfix": "220 250 250 250 550 221",
    "plain": "220 250 250 250 550 221",
    "exim": "220 250 250 250 550 221",
    "opensmtpd": "220 250 250 250 550 221",
    "exchange": "220 250 250 250 550 221",
    "google": "220 250 250 250 550 221",
    "catch all": "220 250 250 250 250 221",
    "helo only": "220 502 503 503 503 221",
    "no pipelining": "220 250 250 250 550 221",
    "no smtputf8": "220 250 250 250 550 221",
    "one recipient": "220 250 250 250 452 221",
    "one recipient declared": "220 250 250 250 452 221",
    "few connections": "220 250 250 250 550 221",
    "far away": "220 250 250 250 550 221",
    "laborious": "220 250 250 250 550 221",
    "splitting": "220 250 250 250 550 221",
    "slow banner": "220 250 250 250 550 221",
    "latin-1": "220 250 250 250 550 221",
    "greylisting": "220 250 250 450 450 221",
    "blocklisted": "220 250 250 554 554 221",
    "no reverse name": "220 250 250 550 550 221",
    "banned": "220 250 250 550 550 221",
    "blocked at mail": "220 250 554 503 503 221",
    "blocked at banner": "554 closed",
    "full": "220 250 250 452 550 221",
    "over quota": "220 250 250 552 550 221",
    "disabled": "220 250 250 550 550 221",
    "not now": "220 250 250 451 451 221",
    "silent": "silent",
    "silent at ehlo": "220 silent",
    "silent at mail": "220 250 silent",
    "silent at rcpt": "220 250 250 silent",
    "dripping": "silent",
    "dripping at ehlo": "220 silent",
    "dripping at rcpt": "220 250 250 silent",
    "stalling": "silent",
    "stalling at rcpt": "220 250 250 silent",
    "late": "220 250 250 silent",
    "late banner": "silent",
    "endless banner": "too much",
    "endless ehlo": "220 too much",
    "endless line": "220 too much",
    "garbage": "garbage",
    "garbage at ehlo": "220 garbage",
    "garbage at rcpt": "220 250 250 garbage",
    "closing": "closed",
    "closing at ehlo": "220 closed",
    "closing at mail": "220 250 closed",
    "closing at rcpt": "220 250 250 closed",
    "closing in mid reply": "220 250 250 closed",
    "resetting": "reset",
    "resetting at rcpt": "220 250 250 reset",
    "shutting down": "421 closed",
    "shutting down at ehlo": "220 421 closed",
    "shutting down at mail": "220 250 421 closed",
    "shutting down at rcpt": "220 250 250 421 closed",
    "421 at rcpt": "220 250 250 421 421 221",
    "tarpit": "220 250 250 250 silent",
    "tarpit in step": "220 250 250 250 silent",
    "silent for some": "220 250 250 250 550 221",
    "silent for some, in step": "220 250 250 250 550 221",
    "no null sender": "220 250 550 503 503 221",
    "no null sender at rcpt": "220 250 250 550 550 221",
    "no named sender": "220 250 250 250 550 221",
    "one transaction": "220 250 250 250 452 221",
    "stale": "220 250 250 250 550 221",
    "starttls offered": "220 250 250 250 550 221",
    "starttls demanded": "220 250 530 503 503 221",
    "starttls demanded at rcpt": "220 250 250 530 530 221",
    "starttls demanded, in step": "220 250 530 503 503 221",
    "starttls demanded at rcpt, in step": "220 250 250 530 530 221",
    "starttls demanded, not offered": "220 250 530 503 503 221",
    "starttls demanded at rcpt, not offered": "220 250 250 530 530 221",
    "starttls refused": "220 250 530 503 503 221",
    "doubling": "220 250 250 250 250 550",
    "doubling later": "220 250 250 250 250 550",
    "dropping": "220 250 250 250 silent",
    "swapping": "220 250 250 silent",
    "hostile text": "220 250 250 550 550 221",
}
NO_DOOR = {"refused", "unanswered", "unreachable"}


@pytest.mark.parametrize("profile", SEEN)
async def test_a_profile_is_seen_as_it_is_meant(autojump_clock, profile):
    host = new_host(profile)
    assert codes(await talk(host, HELLO, MAIL, KNOWN, UNKNOWN, "QUIT")) == SEEN[profile]
    assert host.record.connections_now == 0
    assert host.record.mistakes == (["MAIL before EHLO"] if profile == "helo only" else [])


async def test_where_ehlo_is_refused_helo_will_do(autojump_clock):
    host = new_host("helo only")
    assert codes(await talk(host, HELLO, "HELO probe.test", MAIL, KNOWN)) == "220 502 250 250 250"
    assert host.record.mistakes == []


def test_every_profile_is_tried():
    assert set(SEEN) | NO_DOOR == set(HOST_PROFILES)


@pytest.mark.parametrize("profile", ["refused", "unreachable"])
async def test_a_door_that_is_shut_raises_oserror(autojump_clock, profile):
    async with open_fake_network() as network:
        with pytest.raises(OSError, match=r"nothing listens|No route"):
            await meet(network, new_host(profile))


async def test_an_unanswered_connect_hangs_until_it_is_given_up(autojump_clock):
    async with open_fake_network() as network:
        with pytest.raises(trio.TooSlowError), trio.fail_after(100):
            await meet(network, new_host("unanswered"))
        with pytest.raises(ConnectionRefusedError):
            await network.dial("11.9.9.9", 25)
        assert network.dialled[-1] == ("11.9.9.9", 25)


async def test_pipelined_replies_overlap_like_one_round_trip(autojump_clock):
    """Fifty recipients in one write cost one latency, and one turn-around."""
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.05)
        client = await meet(network, host)
        await client.reply()
        await client.exchange(HELLO)
        start = trio.current_time()
        await client.send(MAIL, *[f"RCPT TO:<known.{n}@shop.test>" for n in range(50)])
        replies = [await client.reply() for _ in range(51)]
        assert trio.current_time() - start == pytest.approx(0.05)
        assert {reply[:3] for reply in replies} == {"250"}
        (session,) = host.record.sessions
        assert (session.turnarounds, session.commands, len(host.record.recipients)) == (2, 52, 50)


async def test_work_takes_its_time_one_reply_after_the_other(autojump_clock):
    async with open_fake_network() as network:
        client = await meet(network, MailHost(reply_s=0.05))
        await client.reply()
        await client.exchange(HELLO)
        start = trio.current_time()
        await client.send(MAIL, *[KNOWN] * 9)
        for _ in range(10):
            await client.reply()
        assert trio.current_time() - start == pytest.approx(0.5)


async def test_opensmtpd_hangs_up_on_two_commands_in_one_write(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("opensmtpd")
        client = await meet(network, host)
        await client.reply()
        await client.exchange(HELLO)
        await client.send(MAIL, KNOWN)
        assert (await client.reply()).startswith("500 5.5.1")
        assert await client.reply() == "closed"
        assert host.record.mistakes


async def test_postfix_slows_down_after_ten_refusals_and_hangs_up_after_twenty(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("postfix")
        client = await meet(network, host)
        await client.reply()
        await client.exchange(HELLO, MAIL)
        start = trio.current_time()
        for place in range(1, 21):
            await client.send(f"RCPT TO:<nobody{place}@shop.test>")
            assert (await client.reply(2.0)).startswith("550")
            assert trio.current_time() - start == pytest.approx(max(0, place - 10))
        await client.send(UNKNOWN)
        assert (await client.reply(2.0)).startswith("421")
        assert await client.reply() == "closed"
        assert host.record.sessions[0].refusals == 21


async def test_exim_hangs_up_at_the_twelfth_command_that_is_not_mail(autojump_clock):
    async with open_fake_network() as network:
        client = await meet(network, new_host("exim"))
        await client.reply()
        await client.exchange(HELLO)
        for _ in range(10):
            assert codes(await client.exchange("RSET", MAIL, KNOWN)) == "250 250 250"
        assert (await client.exchange("RSET"))[0].startswith("554 Too many nonmail")
        assert await client.reply() == "closed"


async def test_one_connection_too_many_gets_421(autojump_clock):
    async with open_fake_network() as network:
        host = new_host("few connections")
        clients = [await meet(network, host) for _ in range(3)]
        assert codes([await client.reply() for client in clients]) == "220 220 421"
        assert host.record.connections_peak == 3
        await clients[0].stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert host.record.connections_now == 1


async def test_a_host_can_refuse_clients_by_their_address(autojump_clock):
    """The address of clients in memory is empty."""
    assert codes(await talk(MailHost(refused_sources=frozenset({""})), HELLO)) == "554 closed"
    assert codes(await talk(MailHost(refused_sources=frozenset({"192.0.2.1"})), HELLO)) == "220 250"


async def test_a_greylisted_address_is_taken_when_it_comes_back_in_time(autojump_clock):
    async with open_fake_network() as network:
        client = await meet(network, MailHost(greylist_s=60))
        await client.reply()
        replies = await client.exchange(HELLO, MAIL, KNOWN)
        await trio.sleep(60)
        assert codes([*replies, *await client.exchange(KNOWN)]) == "250 250 450 250"


async def test_replies_can_follow_each_other_and_be_keyed_three_ways(autojump_clock):
    host = MailHost(
        replies={
            "ann@shop.test": ["450 4.2.0 later", "250 2.1.5 Ok"],
            "bob": "550 5.2.1 <{rcpt}> is gone",
            "@new.test": "551 5.1.6 moved",
        }
    )
    asked = [
        f"RCPT TO:<{a}>" for a in ("ann@shop.test", "Ann@shop.test", "bob@x.test", "c@new.test")
    ]
    replies = await talk(host, HELLO, MAIL, *asked)
    assert replies[3:] == [
        "450 4.2.0 later",
        "450 4.2.0 later",
        "550 5.2.1 <bob@x.test> is gone",
        "551 5.1.6 moved",
    ]
    assert host.record.sessions[0].replies()["bob@x.test"] == ["550 5.2.1 <bob@x.test> is gone"]


async def test_a_late_host_answers_after_all_and_in_order(autojump_clock):
    """The reply that a prober gave up on still comes, ahead of the next one."""
    async with open_fake_network() as network:
        client = await meet(network, MailHost(faults={"known.ann": Late(1.5)}))
        await client.reply()
        assert codes(await client.exchange(HELLO, MAIL, KNOWN)) == "250 250 silent"
        await client.send(UNKNOWN)
        assert codes([await client.reply(), await client.reply()]) == "250 550"


async def test_faults_can_end_with_the_first_session(autojump_clock):
    host = MailHost(faults={"RCPT": Close()}, troubled_sessions=1)
    assert codes(await talk(host, HELLO, MAIL, KNOWN)) == "220 250 250 closed"
    assert codes(await talk(host, HELLO, MAIL, KNOWN)) == "220 250 250 250"


async def test_a_tarpit_delays_refusals_and_what_waits_behind_them(autojump_clock):
    """Who is known is answered at once, unless a refusal is before it in the pipeline."""
    async with open_fake_network() as network:
        client = await meet(network, new_host("tarpit"))
        assert codes([await client.reply(), *await client.exchange(HELLO, MAIL)]) == "220 250 250"
        start = trio.current_time()
        await client.send(KNOWN, UNKNOWN, KNOWN)
        assert codes([await client.reply()]) == "250"
        assert trio.current_time() == start
        assert codes([await client.reply(10), await client.reply()]) == "550 250"
        assert trio.current_time() - start == 5


async def test_a_host_can_be_silent_for_some_recipients(autojump_clock):
    async with open_fake_network() as network:
        client = await meet(network, new_host("silent for some"))
        await client.reply()
        await client.exchange(HELLO, MAIL)
        await client.send(KNOWN, "RCPT TO:<known.silent1@shop.test>", KNOWN)
        assert codes([await client.reply(), await client.reply(100)]) == "250 silent"


async def test_replies_are_doubled_dropped_and_swapped_as_scripted(autojump_clock):
    async def pipelined(**faults: Any) -> str:
        host = MailHost(faults={key.replace("_", " "): t for key, t in faults.items()})
        async with open_fake_network() as network:
            client = await meet(network, host)
            await client.reply()
            await client.exchange(HELLO, MAIL)
            await client.send(KNOWN, UNKNOWN, KNOWN, "QUIT")
            return codes([await client.reply() for _ in range(5)])

    assert await pipelined() == "250 550 250 221 closed"
    assert await pipelined(RCPT_2=Twice()) == "250 550 550 250 221"
    assert await pipelined(RCPT_2=Twice(gap_s=0.005)) == "250 550 550 250 221"
    assert await pipelined(RCPT_2=Drop()) == "250 250 221 closed closed"
    assert await pipelined(RCPT_1=Swap()) == "550 250 250 221 closed"


async def test_a_trouble_can_come_sometimes(autojump_clock):
    host = MailHost(faults={"RCPT": Sometimes(0.5, Drop())})
    async with open_fake_network(seed=3) as network:
        client = await meet(network, host)
        await client.reply()
        await client.exchange(HELLO, MAIL)
        await client.send(*[KNOWN] * 100, "QUIT")
        answered = [await client.reply() for _ in range(101)].index("221 2.0.0 Bye")
        assert 30 < answered < 70


@pytest.mark.parametrize(
    ("profile", "null", "named"),
    [
        ("friendly", "250 250", "250 250"),
        ("no null sender", "550 503", "250 250"),
        ("no null sender at rcpt", "250 550", "250 250"),
        ("no named sender", "250 250", "550 503"),
    ],
)
async def test_a_host_can_refuse_one_kind_of_sender(autojump_clock, profile, null, named):
    seen = [
        codes((await talk(new_host(profile), HELLO, sender, KNOWN))[2:])
        for sender in (MAIL, "MAIL FROM:<probe@ours.test>")
    ]
    assert seen == [null, named]


async def test_a_later_transaction_can_be_refused(autojump_clock):
    refusing = MailHost(mail_again_reply="451 4.7.1 not again")
    assert codes(await talk(refusing, HELLO, MAIL, KNOWN, "RSET", MAIL)).endswith("250 451")
    closing = MailHost(mail_again_reply="421 4.7.0 not again")
    replies = await talk(closing, HELLO, MAIL, KNOWN, "RSET", MAIL, "RSET")
    assert codes(replies).endswith("250 421 closed")


async def test_a_session_that_was_idle_gets_421_at_mail(autojump_clock):
    async with open_fake_network() as network:
        client = await meet(network, new_host("stale"))
        await client.reply()
        assert (
            codes(await client.exchange(HELLO, MAIL, "RSET", MAIL, KNOWN)) == "250 250 250 250 250"
        )
        await trio.sleep(2)
        assert (
            codes([*await client.exchange("RSET", MAIL), await client.reply()]) == "250 421 closed"
        )


async def test_weather_comes_from_the_seed_alone(autojump_clock):
    weather = ((0.3, SendLine("451 4.3.0 try again")), (0.1, Close()))
    lines = (HELLO, MAIL, *[KNOWN] * 10)
    seen = [await talk(MailHost(weather=weather), *lines, seed=seed) for seed in (1, 1, 2, 3)]
    assert seen[0] == seen[1]
    assert seen[1] != seen[2] or seen[2] != seen[3]


async def test_split_replies_arrive_in_pieces_and_whole(autojump_clock):
    async with open_fake_network() as network:
        stream = (await meet(network, new_host("splitting"))).stream
        pieces = [await stream.receive_some()]
        while b"\n" not in pieces[-1]:
            pieces.append(await stream.receive_some())
        assert len(pieces) > 3
        assert b"".join(pieces) == b"220 mx.host.test ESMTP Postfix\r\n"


async def test_latin_1_words_go_out_as_latin_1(autojump_clock):
    replies = await talk(new_host("latin-1"), HELLO, MAIL, UNKNOWN)
    assert replies[-1] == LATIN_1.replace("{rcpt}", "nobody@shop.test")


async def test_smtputf8_is_wanted_for_international_names(autojump_clock):
    """Without it, or where it is not offered, such an address is not taken."""
    named = "RCPT TO:<józef@shop.test>"
    host = MailHost(mailboxes=frozenset({"józef"}))
    assert codes(await talk(host, HELLO, MAIL + " SMTPUTF8", named)) == "220 250 250 250"
    assert codes(await talk(host, HELLO, MAIL, named)) == "220 250 250 553"
    assert codes(await talk(new_host("no smtputf8"), HELLO, MAIL + " SMTPUTF8")) == "220 250 555"


async def test_an_idle_client_gets_421_and_is_disconnected(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(idle_s=30)
        client = await meet(network, host)
        await client.exchange()
        assert codes([await client.reply(), await client.reply(31)]) == "220 421"
        assert await client.reply() == "closed"
        assert host.record.sessions[0].closed == "host"


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("VRFY ann", "not a prober's"),
        ("DATA", "not a prober's"),
        ("RCPT TO:<a\0b@shop.test>", "control character"),
        ("RCPT TO:<" + "a" * 2000 + "@shop.test>", "a line of"),
        ("MAIL FROM:<>", "within a transaction"),
    ],
)
async def test_violations_by_a_dispatcher_are_logged(autojump_clock, line, mistake):
    host = MailHost()
    await talk(host, HELLO, MAIL, line)
    assert mistake in host.record.mistakes[0]


async def test_commands_in_one_write_before_ehlo_are_a_mistake(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        client = await meet(network, host)
        await client.send(HELLO, MAIL)
        assert codes([await client.reply() for _ in range(3)]) == "220 250 250"
        assert "without PIPELINING" in host.record.mistakes[0]


@pytest.mark.parametrize(
    ("profile", "lines", "closed"),
    [
        ("friendly", (HELLO, "QUIT"), "quit"),
        ("friendly", (HELLO,), "client"),
        ("closing at ehlo", (HELLO,), "host"),
        ("resetting", (), "reset"),
        ("silent", (), "client"),
    ],
)
async def test_a_session_tells_how_it_ended(autojump_clock, profile, lines, closed):
    async with open_fake_network() as network:
        host = new_host(profile)
        client = await meet(network, host)
        await client.reply()
        await client.exchange(*lines)
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        (session,) = host.record.sessions
        assert session.closed == closed
        assert session.quit == ("QUIT" in lines)
        assert host.record.connections_now == 0


async def test_a_client_that_goes_away_ends_a_silent_session(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(faults={"RCPT": StaySilent()})
        client = await meet(network, host)
        await client.reply()
        await client.exchange(HELLO, MAIL, KNOWN)
        await client.send("QUIT")
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        (session,) = host.record.sessions
        assert session.quit
        assert host.record.connections_now == 0


async def test_a_host_serves_any_stream(autojump_clock):
    client, server = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(MailHost(ehlo_lines=EHLO_LINES).serve, server, Random(1))
        assert (await Client(client).reply()).startswith("220")
        await client.aclose()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="needs Linux' TCP_INFO")
@pytest.mark.parametrize(("ended_first", "peak"), [(True, 1), (False, 2)])
async def test_the_peak_counts_no_connection_that_had_ended_before(ended_first: bool, peak: int):
    host = MailHost()
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listener.socket.getsockname()
    async with listener, trio.open_nursery() as nursery:
        with socket.create_connection(address) as first:
            nursery.start_soon(host.serve, await listener.accept())
            with socket.create_connection(address):
                second = await listener.accept()
                await trio.testing.wait_all_tasks_blocked()
                if ended_first:
                    first.close()  # nothing runs before the host accepts the second
                nursery.start_soon(host.serve, second)
                await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
    assert host.record.connections_peak == peak
    assert host.record.connections_now == 0
