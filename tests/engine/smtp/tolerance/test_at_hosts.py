"""What hosts of no known software are asked, how they defend themselves, and what the results are."""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
import trio
from msgspec import structs

from mailprobe.api.quota.set_aside import HOST_WAIT_S_MIN, TOGETHER, Patience
from mailprobe.bench.world.defended_hosts import defended_host
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.host_behaviours import Turning
from mailprobe.bench.world.host_defences import Defence
from mailprobe.bench.world.mail_host import HostAddress, MailHost
from mailprobe.engine import Answer, open_answers
from mailprobe.engine.smtp.tolerance.limits import HOUR_S, WINDOW_S
from tests.engine.engine_runs import open_checked_engine

PATIENCE_S = 4 * HOUR_S
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
RECHECKS_S = (300.0, 1_200.0, 3_600.0)


def neutral_host(**changes: object) -> MailHost:
    """A host that no row of the operators' table recognises; it has a postmaster."""
    described = {
        "banner": "220 {name} ESMTP ready",
        "default_unknown": "550 5.1.1 <{rcpt}>: no such mailbox here",
        "mailboxes": frozenset({"postmaster"}),
        "latency_s": 0.02,
    }
    return MailHost(**{**described, **changes})  # type: ignore[arg-type]


def mixed(count: int, bad: float, domain: str = "shop.test", start: int = 0) -> list[str]:
    """So many addresses, of which this share is unknown at the host."""
    wrong = round(count * bad)
    texts = [f"known{start + number}@{domain}" for number in range(count - wrong)]
    texts += [f"gone.x{start + number}@{domain}" for number in range(wrong)]
    random.Random(start).shuffle(texts)
    return texts


def truth(text: str) -> str:
    return "deliverable" if text.startswith("known") else "undeliverable"


@dataclass
class Results:
    """The latest answer for each address."""

    answers: dict[str, Answer] = field(default_factory=dict)

    def of(self, text: str) -> str:
        return self.answers[text].verdict.status

    def reasons(self) -> Counter[str]:
        return Counter(answer.cause.reason for answer in self.answers.values())

    def statuses(self) -> Counter[str]:
        return Counter(answer.verdict.status for answer in self.answers.values())

    def keeps(self, later: Answer) -> bool:
        """Was the address accepted, and asked again only for its domain's random name?"""
        before = self.answers.get(later.verdict.email)
        is_known = later.verdict.status != "unknown" or later.cause.reason == "host_changed"
        return before is not None and before.verdict.valid is True and not is_known

    def add(self, later: Mapping[str, Answer]) -> None:
        """Take these, but for those that say less."""
        self.answers |= {text: each for text, each in later.items() if not self.keeps(each)}

    def confidences(self) -> set[float]:
        return {answer.verdict.confidence for answer in self.answers.values()}

    def assert_true(self) -> None:
        assert {text: self.of(text) for text in self.answers} == {
            text: truth(text) for text in self.answers
        }

    def assert_none_wrong(self) -> None:
        wrong = {
            text: self.of(text)
            for text in self.answers
            if self.of(text) not in (truth(text), "unknown")
        }
        assert wrong == {}


async def ask(engine, texts: Sequence[str], account: str = "me") -> Results:
    """One request."""
    async with open_answers(engine, texts, account=account) as answers:
        return Results({answer.verdict.email: answer async for answer in answers})


async def ask_list(
    engine,
    texts: Sequence[str],
    account: str = "me",
    patience_s: float = PATIENCE_S,
    passes: int = 1_000,
) -> Results:
    """A list job's chunk: it comes back for what its hosts do not take now, until its patience ends."""
    results, began = Results(), trio.current_time()
    patience = Patience(NOON, NOON + timedelta(seconds=patience_s))
    due_at = dict.fromkeys(texts, began)
    while due_at and passes:
        passes -= 1
        now = NOON + timedelta(seconds=trio.current_time() - began)
        patience_left_s = patience.left_s(now)
        soon = trio.current_time() + TOGETHER.total_seconds()
        asked = [text for text, at in due_at.items() if at <= soon or not patience_left_s]
        async with open_answers(
            engine, asked, account=account, deferred_start=True, patience_s=patience_left_s
        ) as answers:
            found = {answer.verdict.email: answer async for answer in answers}
        results.add(found)
        now = NOON + timedelta(seconds=trio.current_time() - began)
        for text in asked:
            del due_at[text]
            if (wait_s := patience.wait_s(found[text], now)) is not None:
                due_at[text] = trio.current_time() + wait_s
        if due_at:
            await trio.sleep_until(max(min(due_at.values()), trio.current_time() + HOST_WAIT_S_MIN))
    return results


async def ask_list_again(engine, texts: Sequence[str], patience_s: float = PATIENCE_S) -> Results:
    """The same, with passes for what time may cure."""
    results = await ask_list(engine, texts, patience_s=patience_s)
    for wait_s in RECHECKS_S:
        left = [text for text, answer in results.answers.items() if answer.is_passing]
        if left:
            await trio.sleep(wait_s)
            results.add((await ask_list(engine, left, patience_s=patience_s)).answers)
    return results


def refusals(host: MailHost) -> int:
    """Recipients that it refused for good."""
    return sum(
        reply.startswith("5")
        for session in host.record.sessions
        for replies in session.replies().values()
        for reply in replies
    )


def recipients(host: MailHost) -> int:
    """Recipients that it was asked."""
    return sum(
        len(replies) for session in host.record.sessions for replies in session.replies().values()
    )


# -- the wrong addresses of others ---------------------------------------------------------------


@pytest.mark.parametrize("postmaster", [True, False], ids=["postmaster", "no postmaster"])
@pytest.mark.parametrize("way", ["own domain", "the victim's", "another name"])
@pytest.mark.parametrize("wrong", [4, 20, 200])
async def test_wrong_addresses_of_one_account_leave_the_others_their_verdicts(
    autojump_clock, wrong, way, postmaster
):
    async with open_fake_network() as network:
        mailboxes = frozenset({"postmaster"} if postmaster else ())
        host = neutral_host(mailboxes=mailboxes)
        network.add("victim.test", host, mx="mx.victim.test")
        domain = attacked_domain(network, host, way)
        async with open_checked_engine(network) as engine:
            await ask(engine, [f"gone.y{number}@{domain}" for number in range(wrong)], "attacker")
            for number in range(3):
                texts = [f"known{number}x{each}@victim.test" for each in range(10)]
                (await ask(engine, texts, f"neighbour{number}")).assert_true()


def attacked_domain(network: FakeNetwork, host: MailHost, way: str) -> str:
    match way:
        case "own domain":
            network.add("attack.test", host, mx="mx.victim.test")
        case "another name":
            network.add("attack.test", host, mx="mx.attack.test")
        case _:
            return "victim.test"
    return "attack.test"


# -- sessions that end after some refusals ---------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_requests_are_answered_where_each_session_ends_after_some_refusals(
    autojump_clock, most
):
    """Postfix's smtpd_hard_error_limit counts one session's errors: that is not a ban."""
    async with open_fake_network() as network:
        host = neutral_host(refusals_max=most)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            for number in range(4):
                (await ask(engine, mixed(12, 0.5, start=100 * number))).assert_true()


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_list_is_known_where_each_session_ends_after_some_refusals(autojump_clock, most):
    """The limit is one of refused recipients, so a session may have any number of others."""
    async with open_fake_network() as network:
        host = neutral_host(refusals_max=most)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            (await ask_list(engine, mixed(60, 0.4))).assert_true()
        assert len(host.record.sessions) <= 80  # the 24 refused, and proofs of them


@pytest.mark.parametrize("reply", ["421 4.7.0 Enough", ""], ids=["421", "without a word"])
@pytest.mark.parametrize("most", [1, 2, 3, 4])
async def test_a_list_is_known_where_a_connection_takes_few_recipients(autojump_clock, most, reply):
    """None has a place for a control: a random name shows in a connection of its own who judges."""
    async with open_fake_network() as network:
        host = neutral_host(session_recipients_max=most, session_recipients_reply=reply)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            results = await ask_list_again(engine, mixed(30, 0.5))
        results.assert_true()
        assert results.confidences() == {0.97, 0.02}
        assert len(host.record.sessions) <= 250


@pytest.mark.parametrize("seed", range(3))
async def test_a_list_is_known_at_a_host_that_greylists_random_names_too(autojump_clock, seed):
    """An accepted address that lacks the answer to its random name comes back for it."""
    async with open_fake_network() as network:
        host = neutral_host(greylist_s=300.0, default_unknown="550 no such user here")
        network.add("shop.test", host)
        texts = mixed(24, 0.4, start=seed)
        async with open_checked_engine(network) as engine:
            await ask_list(engine, texts)
            await trio.sleep(300.0)
            results = await ask_list(engine, texts)
        assert "unconfirmed" not in results.reasons()
        results.assert_true()


# -- results at a host that tolerates it ----------------------------------------------------


@pytest.mark.parametrize("postmaster", [True, False], ids=["postmaster", "no postmaster"])
async def test_unknown_addresses_one_by_one_are_all_known(autojump_clock, postmaster):
    async with open_fake_network() as network:
        network.add(
            "shop.test", neutral_host(mailboxes=frozenset({"postmaster"} if postmaster else ()))
        )
        async with open_checked_engine(network) as engine:
            for text in mixed(40, 1.0):
                (await ask(engine, [text])).assert_true()


@pytest.mark.parametrize("bad", [0.05, 0.5])
async def test_requests_of_fifty_lose_nothing(autojump_clock, bad):
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host())
        texts = mixed(400, bad)
        async with open_checked_engine(network) as engine:
            for start in range(0, 400, 50):
                (await ask(engine, texts[start : start + 50])).assert_true()


@pytest.mark.parametrize("patience_s", [60.0, 600.0])
@pytest.mark.parametrize("postmaster", [True, False], ids=["postmaster", "no postmaster"])
async def test_a_list_whose_first_addresses_are_wrong_gets_all_answers(
    autojump_clock, postmaster, patience_s
):
    """Nobody was accepted who could prove that the host judges, when its first refusals are used up."""
    async with open_fake_network() as network:
        network.add(
            "shop.test",
            neutral_host(mailboxes=frozenset({"postmaster"} if postmaster else ())),
            mx="mx.shop.test",
        )
        wrong = [f"gone.y{number}@shop.test" for number in range(4)]
        async with open_checked_engine(network) as engine:
            texts = [*wrong, *mixed(76, 0.5)]
            found = await ask_list_again(engine, texts, patience_s)
        found.assert_true()


async def test_a_list_waits_and_loses_nothing(autojump_clock):
    async with open_fake_network() as network:
        host = neutral_host()
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            texts = mixed(200, 0.05)
            first = await ask_list(engine, texts, passes=1)
            waits = {each.retry_s for each in first.answers.values()} - {None}
            assert first.reasons()["host_budget"]
            assert waits
            (await ask_list(engine, texts)).assert_true()


async def test_a_list_without_patience_is_answered_as_a_request(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host())
        async with open_checked_engine(network) as engine:
            results = await ask_list(engine, mixed(200, 0.05), patience_s=0.0)
        results.assert_true()
        assert trio.current_time() < WINDOW_S


# -- bans ----------------------------------------------------------------------------------------

BAN = Defence(hour_refusals_max=9, ban_s=500.0)
DEFENCES = {
    "421 greeting": structs.replace(BAN, ban_reply="421 4.7.0 Try again later"),
    "554 greeting": structs.replace(
        BAN, ban_reply="554 5.7.1 Too many bad recipients, you are blocked"
    ),
    "too many at RCPT": structs.replace(BAN, bans_recipients=True),
}


@pytest.mark.parametrize("how", DEFENCES)
async def test_a_ban_is_recognised_and_then_kept(autojump_clock, how):
    async with open_fake_network() as network:
        host = neutral_host(defence=DEFENCES[how])
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await ask(engine, [f"known{number}@shop.test" for number in range(5)])
            await ask(engine, mixed(30, 1.0))
            results = await ask(engine, [f"known.{number}@shop.test" for number in range(5)])
            assert results.reasons() == {"blocked_us": 5}
            assert {answer.cause.blame for answer in results.answers.values()} == {"us"}
            sessions = len(host.record.sessions)
            await trio.sleep(400.0)
            later = await ask(engine, ["known.late@shop.test"])
            assert later.reasons() == {"blocked_us": 1}
            assert len(host.record.sessions) == sessions
            await trio.sleep(HOUR_S)
            before = refusals(host)
            again = await ask(engine, mixed(30, 1.0, start=500))
            again.assert_none_wrong()
            assert "blocked_us" not in again.reasons()
            assert refusals(host) - before <= 9


@pytest.mark.parametrize("door", [HostAddress.REFUSED, HostAddress.SILENT])
async def test_a_door_that_closes_after_refusals_is_a_ban_and_no_dead_host(autojump_clock, door):
    async with open_fake_network() as network:
        host = neutral_host()
        address = network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await ask(engine, [*mixed(8, 1.0), "known@shop.test"])
            await trio.sleep(30.0)  # the connection is idle and closed
            network.hosts[address] = replace(host, address=door)
            results = await ask(engine, [f"known{number}@shop.test" for number in range(5)])
            assert results.reasons() == {"blocked_us": 5}
            assert {answer.cause.blame for answer in results.answers.values()} == {"us"}


async def test_a_network_that_is_silent_for_a_moment_is_no_ban(autojump_clock):
    """Each host has refused some, and none answers for two seconds."""
    async with open_fake_network() as network:
        hosts = {f"shop{number}.test": neutral_host() for number in range(8)}
        at = {name: network.add(name, host) for name, host in hosts.items()}
        texts = [text for name in hosts for text in mixed(20, 0.0, name)]
        async with open_checked_engine(network) as engine:
            wrong = [text for name in hosts for text in mixed(8, 1.0, name, start=100)]
            await ask(engine, [*wrong, *(f"known@{name}" for name in hosts)])
            await trio.sleep(30.0)  # the connections are idle and closed
            for name, address in at.items():
                network.hosts[address] = replace(hosts[name], address=HostAddress.SILENT)
            async with trio.open_nursery() as nursery:

                async def come_back() -> None:
                    await trio.sleep(2.0)
                    network.hosts.update({at[name]: host for name, host in hosts.items()})

                nursery.start_soon(come_back)
                first = await ask(engine, texts)
                assert "blocked_us" not in first.reasons()
            await trio.sleep(120.0)
            (await ask(engine, texts)).assert_true()


# -- random names --------------------------------------------------------------------------------

SHAPES = {
    "first.last": (r"[a-z]+\.[a-z]+", "anna.berger"),
    "prefix": (r"info-.+", "info-sales"),
    "digits": (r"\d+", "4711"),
    "at most twelve letters": (r"[a-z]{1,12}", "sales"),
}


@pytest.mark.parametrize("deferred", [False, True], ids=["request", "list"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_host_that_accepts_a_shape_proves_no_mailbox_of_that_shape(
    autojump_clock, shape, deferred
):
    pattern, local = SHAPES[shape]
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host(accepts=re.compile(pattern)))
        async with open_checked_engine(network) as engine:
            texts = ["known9_z-q@shop.test", f"{local}@shop.test", "gone__x9@shop.test"]
            for text in texts:
                results = await (ask_list if deferred else ask)(engine, [text])
                if text == texts[1]:
                    assert results.confidences() == {0.65}


@pytest.mark.parametrize("deferred", [False, True], ids=["request", "list"])
@pytest.mark.parametrize("place", [0, 5, 10])
async def test_a_catch_all_that_refuses_one_name_is_still_one(autojump_clock, place, deferred):
    async with open_fake_network() as network:
        reply = "550 5.1.1 <{rcpt}>: no such mailbox here"
        network.add("shop.test", neutral_host(catch_all=True, replies={"former": reply}))
        texts = [f"staff{chr(97 + number)}@shop.test" for number in range(10)]
        texts.insert(place, "former@shop.test")
        async with open_checked_engine(network) as engine:
            results = await (ask_list if deferred else ask)(engine, texts)
    assert results.of("former@shop.test") == "undeliverable"
    texts.remove("former@shop.test")
    assert {results.of(text) for text in texts} == {"catch_all"}


# -- a host that has accepted no recipient -------------------------------------------------------


async def test_a_list_waits_for_a_proof_that_the_host_judges(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host(mailboxes=frozenset()))
        texts = mixed(12, 1.0)
        async with open_checked_engine(network) as engine:
            first = await ask_list(engine, texts, passes=1)
            waiting = [
                answer
                for answer in first.answers.values()
                if answer.cause.reason in ("unconfirmed", "host_budget")
            ]
            assert first.reasons()["unconfirmed"] >= 1
            assert first.reasons()["no_mailbox"] <= 2
            assert all(answer.retry_s is not None for answer in waiting)
            began = trio.current_time()
            (await ask_list(engine, [answer.verdict.email for answer in waiting])).assert_true()
            assert HOUR_S - 60 < trio.current_time() - began < 2 * HOUR_S


async def test_an_accepted_postmaster_proves_that_the_host_judges(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host())
        async with open_checked_engine(network) as engine:
            began = trio.current_time()
            (await ask_list(engine, mixed(4, 1.0))).assert_true()
            assert trio.current_time() - began < HOUR_S - 60


async def test_a_request_believes_a_host_that_accepts_nobody(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host(mailboxes=frozenset()))
        async with open_checked_engine(network) as engine:
            (await ask(engine, mixed(12, 1.0))).assert_true()


async def test_an_acceptance_before_a_refusal_confirms_later_refusals(autojump_clock):
    """Accepted after more refusals than ever before: only the next refusal shows that it is true."""
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host(mailboxes=frozenset()))
        async with open_checked_engine(network, host_connections=1) as engine:
            first = ["gone.1", "gone.2", "gone.3", "known1", "gone.4"]
            await ask_list(engine, [f"{each}@shop.test" for each in first], passes=1)
            await trio.sleep(WINDOW_S)
            later = await ask_list(engine, mixed(2, 1.0, start=5), passes=1)
            later.assert_true()


# -- hosts that turn -----------------------------------------------------------------------------


REFUSES = "550 5.1.1 <{rcpt}>: no such mailbox here"


@pytest.mark.parametrize("reply", [None, REFUSES], ids=["accepts", "refuses"])
async def test_a_list_gets_nearly_all_answers_of_a_host_that_turns_once(autojump_clock, reply):
    """It comes back when the host judges again, and asks each address a few times."""
    async with open_fake_network() as network:
        host = neutral_host(turn=Turning(20, reply=reply, rest_s=HOUR_S))
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            found = await ask_list(engine, mixed(80, 0.5))
        found.assert_none_wrong()
        assert found.statuses()["unknown"] <= 8
        assert recipients(host) <= 3 * 80


@pytest.mark.parametrize("passes", [1, 2])
async def test_addresses_that_wait_at_a_host_that_turns_come_back(autojump_clock, passes):
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host(turn=Turning(3, reply=REFUSES)))
        async with open_checked_engine(network) as engine:
            found = await ask_list(engine, mixed(80, 0.3), passes=passes)
    left = [each for each in found.answers.values() if each.verdict.status == "unknown"]
    assert left
    assert all(each.retry_s for each in left)


@pytest.mark.parametrize(
    ("after", "reply", "deferred"),
    [
        (3, None, False),
        (5, None, False),
        (3, REFUSES, False),
        (5, REFUSES, False),
        (10, REFUSES, False),
        (3, REFUSES, True),
        (5, REFUSES, True),
        (10, REFUSES, True),
    ],
)
async def test_a_host_that_turns_leads_to_no_wrong_verdict(autojump_clock, after, reply, deferred):
    async with open_fake_network() as network:
        network.add("shop.test", neutral_host(turn=Turning(after, reply=reply, rest_s=1_800.0)))
        texts = mixed(100, 0.3)
        async with open_checked_engine(network) as engine:
            if deferred:
                (await ask_list(engine, texts)).assert_none_wrong()
                return
            for start in range(0, 100, 10):
                (await ask(engine, texts[start : start + 10])).assert_none_wrong()


@pytest.mark.parametrize("after", [12, 20])
@pytest.mark.parametrize("accepts", [True, False], ids=["accepts", "refuses"])
@pytest.mark.parametrize("software", ["kerio", "cisco"])
async def test_the_row_of_its_software_proves_no_answer_of_a_host_that_turns(
    autojump_clock, software, accepts, after
):
    """Anybody may greet or refuse as such a software does, which goes on to judge."""
    described = defended_host(software, "mx.host.test", latency_s=0.02, defence=None)
    turn = Turning(after, reply=None if accepts else described.default_unknown, rest_s=1_800.0)
    async with open_fake_network() as network:
        network.add("shop.test", replace(described, turn=turn))
        async with open_checked_engine(network) as engine:
            found = await ask_list(engine, mixed(100, 0.3), patience_s=8 * HOUR_S)
    found.assert_none_wrong()


async def test_an_accepted_address_is_known_without_its_random_name_if_another_was_refused_since(
    autojump_clock,
):
    """More names are needed than an hour takes: not all are sent within the patience."""
    host = defended_host("cisco", "mx.host.test", latency_s=0.02)
    texts = [f"known{number}@shop{number % 30}.test" for number in range(60)]
    async with open_fake_network() as network:
        for number in range(30):
            network.add(f"shop{number}.test", host)
        async with open_checked_engine(network) as engine:
            found = await ask_list(engine, texts, patience_s=2 * HOUR_S)
    assert found.statuses() == {"deliverable": 60}


async def test_an_accepted_row_whose_random_name_finds_no_room_waits_like_the_first(autojump_clock):
    """Also one that is accepted within a second of another of its domain."""
    host = replace(defended_host("kerio", "mx.shop.test"), latency_s=0.02)
    async with open_fake_network() as network, open_checked_engine(network) as engine:
        texts = []
        for number in range(10):
            network.add(f"shop{number}.test", host, mx="mx.shop.test")
            texts += [f"known{each}@shop{number}.test" for each in range(10)]
        random.Random(0).shuffle(texts)
        results = await ask_list(engine, texts, passes=1)
    untested = [each for each in results.answers.values() if each.verdict.confidence == 0.9]
    assert len(untested) > 50
    assert all(each.retry_s is not None for each in untested)
