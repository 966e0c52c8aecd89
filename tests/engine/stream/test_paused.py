"""What the operator has paused is answered `paused`, and no connection is opened for it."""

from collections import Counter

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import known_answers, open_answers
from mailprobe.engine.dns.messages import MailExchange
from mailprobe.engine.pauses import CurrentPauses, Pauses
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.smtp.operators import load_operators
from tests.engine.engine_runs import open_checked_engine, open_test_engine
from tests.engine.stream.streams import collect

SHOP = Pauses(frozenset({"shop.test"}))


@pytest.mark.parametrize(
    ("pauses", "domain", "exchanges", "is_paused"),
    [
        (SHOP, "shop.test", [], True),
        (SHOP, "a.b.shop.test", [], True),
        (SHOP, "myshop.test", [], False),
        (SHOP, "test", [], False),
        (Pauses(frozenset({"b.shop.test"})), "shop.test", [], False),
        (Pauses(operators=frozenset({"google"})), "shop.test", ["aspmx.l.google.com"], True),
        (Pauses(operators=frozenset({"google"})), "shop.test", ["mx.test", "aspmx.l.google.com"], True),
        (Pauses(operators=frozenset({"google"})), "shop.test", ["mx.test"], False),
        (Pauses(), "shop.test", ["aspmx.l.google.com"], False),
    ],
)  # fmt: skip
def test_a_domain_stands_for_those_below_and_an_operator_for_its_exchanges(
    pauses: Pauses, domain: str, exchanges: list[str], is_paused: bool
) -> None:
    current = CurrentPauses(load_operators().id_of)
    current.change(pauses)
    assert current.has(domain, [MailExchange(name, 10) for name in exchanges]) is is_paused


@pytest.mark.parametrize("as_list", [False, True])
async def test_only_what_needs_a_mail_host_is_paused(autojump_clock: object, as_list: bool) -> None:
    """`ann@yahoo.com` shows that layers 1 to 3 decide as ever."""
    async with open_fake_network() as network:
        for domain in ("shop.test", "sub.shop.test", "other.test", "yahoo.com"):
            network.add(domain, MailHost())
        async with open_test_engine(network) as engine:
            engine.pauses.change(Pauses(frozenset({"shop.test", "yahoo.com"})))
            texts = [f"known@{domain}" for domain in ("shop.test", "sub.shop.test", "other.test")]
            answers = await collect(
                engine, *texts, "ann@yahoo.com", "no address", deferred_start=as_list, explain=True
            )
            causes = {answer.verdict.email: answer.cause.reason for answer in answers}
            assert causes == {
                "known@shop.test": "paused",
                "known@sub.shop.test": "paused",
                "known@other.test": "accepted",
                "ann@yahoo.com": "smtp_blocked",
                "no address": "syntax",
            }
            [paused] = [each for each in answers if each.verdict.email == "known@shop.test"]
            assert paused.cause == VerdictCause("paused", "us")
            verdict = paused.verdict
            assert (verdict.status, verdict.confidence, verdict.failed_check) == (
                "unknown", 0.5, None,
            )  # fmt: skip
            assert verdict.mx_found
            assert paused.evidence
            assert paused.evidence.rule == "paused"
            known = known_answers(engine, ["known@shop.test"])
            assert known
            assert known.answers[0].cause.reason == "paused"
            assert len(set(network.dialled)) == 1
            engine.pauses.change(Pauses())
            [answer] = await collect(engine, "known@shop.test")
            assert answer.cause.reason == "accepted"


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("shared", [False, True])
async def test_a_pause_ends_what_is_under_way_and_nothing_else(
    autojump_clock: object, as_list: bool, shared: bool
) -> None:
    """They are in the backlog, in queues and in conversations: all are answered."""
    count = 2_000 if as_list else 400
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.2, reply_s=0.02)
        address = network.add("shop.test", host)
        network.add("other.test", host if shared else MailHost(latency_s=0.2, reply_s=0.02))
        async with open_checked_engine(network) as engine:
            texts = [f"known{n}@shop.test" for n in range(count)]
            texts[5:5] = [f"known{n}@other.test" for n in range(10)]
            async with open_answers(engine, texts, account="me", deferred_start=as_list) as answers:
                await trio.sleep(1)
                engine.pauses.change(SHOP)
                dialled, at = list(network.dialled), trio.current_time()
                reasons: Counter[tuple[str, str]] = Counter()
                async for answer in answers:
                    domain = answer.verdict.email.rpartition("@")[2]
                    reasons[domain, answer.cause.reason] += 1
                assert reasons["shop.test", "paused"] > count / 4
                assert reasons["other.test", "paused"] == 0
                assert trio.current_time() < at + 3
                if not shared:
                    assert all(to != address for to, _ in list(network.dialled)[len(dialled) :])
