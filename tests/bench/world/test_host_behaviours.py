"""Hosts that turn, judge the look of a name, greylist by tries or rename recipients."""

from typing import Any

import pytest
import trio

from mailprobe.bench.lab.sequences import NAMES
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.host_behaviours import ClientHistory, Turning, looks_random
from mailprobe.bench.world.mail_host import MailHost
from tests.bench.world.test_mail_hosts import HELLO, KNOWN, MAIL, UNKNOWN, Client, meet

POLICY = "550 5.7.1 <{rcpt}>: too many invalid recipients"


async def open_session(network: FakeNetwork, host: MailHost) -> Client:
    client = await meet(network, host)
    await client.reply()
    await client.exchange(HELLO, MAIL)
    return client


async def codes(client: Client, *lines: str) -> str:
    return " ".join(reply[:3] for reply in await client.exchange(*lines))


async def test_a_host_accepts_everybody_after_some_refusals(autojump_clock: Any) -> None:
    async with open_fake_network() as network:
        client = await open_session(network, MailHost(turn=Turning(2)))
        assert await codes(client, UNKNOWN, KNOWN, UNKNOWN, UNKNOWN, KNOWN) == "550 250 550 250 250"


async def test_a_host_gives_everybody_its_reply_after_some_refusals(autojump_clock: Any) -> None:
    async with open_fake_network() as network:
        client = await open_session(network, MailHost(turn=Turning(1, reply=POLICY)))
        assert await codes(client, KNOWN, UNKNOWN) == "250 550"
        (reply,) = await client.exchange(KNOWN)
        assert reply == "550 5.7.1 <known.ann@shop.test>: too many invalid recipients"


@pytest.mark.parametrize(("each_connection", "seen"), [(True, "550"), (False, "250")])
async def test_refusals_are_counted_for_a_connection_or_for_the_client(
    autojump_clock: Any, each_connection: bool, seen: str
) -> None:
    host = MailHost(turn=Turning(1, each_connection=each_connection))
    async with open_fake_network() as network:
        first = await open_session(network, host)
        assert await codes(first, UNKNOWN, UNKNOWN) == "550 250"
        second = await open_session(network, host)
        assert await codes(second, UNKNOWN) == seen


async def test_a_host_judges_again_after_its_rest_and_counts_anew(autojump_clock: Any) -> None:
    async with open_fake_network() as network:
        client = await open_session(network, MailHost(turn=Turning(2, rest_s=5)))
        assert await codes(client, UNKNOWN, UNKNOWN, UNKNOWN) == "550 550 250"
        await trio.sleep(5)
        assert await codes(client, UNKNOWN, UNKNOWN, UNKNOWN) == "550 550 250"


async def test_a_host_turns_by_time(autojump_clock: Any) -> None:
    async with open_fake_network() as network:
        client = await open_session(network, MailHost(turn=Turning(after_s=1)))
        assert await codes(client, UNKNOWN) == "550"
        await trio.sleep(1)
        assert await codes(client, UNKNOWN) == "250"


def test_the_rest_begins_with_the_last_refusal_that_was_allowed() -> None:
    history, turn = ClientHistory(), Turning(1, rest_s=10)
    assert not history.has_turned(turn, 0)
    history.count_refusal(turn, 3)
    assert history.has_turned(turn, 12.9)
    assert not history.has_turned(turn, 13)


def test_a_record_that_is_cleared_forgets_the_turn() -> None:
    host = MailHost(turn=Turning(1))
    host.record.history.count_refusal(Turning(1), 0.0)
    host.record.clear()
    assert host.record.history == ClientHistory()


async def test_an_address_is_refused_at_its_first_tries(autojump_clock: Any) -> None:
    async with open_fake_network() as network:
        client = await open_session(network, MailHost(greylist_tries=2))
        assert await codes(client, KNOWN, KNOWN, KNOWN, UNKNOWN) == "450 450 250 450"


async def test_names_that_look_random_get_their_own_reply(autojump_clock: Any) -> None:
    host = MailHost(catch_all=True, shape_reply="550 5.7.1 suspicious recipient")
    async with open_fake_network() as network:
        client = await open_session(network, host)
        lines = ("RCPT TO:<emma.nowak83@shop.test>", "RCPT TO:<r4h2kd93jx@shop.test>")
        assert await codes(client, *lines) == "250 550"


async def test_replies_name_the_recipient_at_another_domain(autojump_clock: Any) -> None:
    async with open_fake_network() as network:
        client = await open_session(network, MailHost(renames={"shop.test": "store.test"}))
        (reply,) = await client.exchange(UNKNOWN)
        assert "<nobody@store.test>" in reply


def test_no_name_of_the_lab_looks_random() -> None:
    assert not [name for name in NAMES if looks_random(name) or looks_random(f"{name}83")]


@pytest.mark.parametrize(
    "local", ["r4h2kd93jx", "xkcdqwrt", "abcdefghijklmnopqrstuvw", "anna5b.nowak"]
)
def test_a_made_up_name_looks_random(local: str) -> None:
    assert looks_random(local)
