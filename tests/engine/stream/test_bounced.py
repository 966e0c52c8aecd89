"""Addresses that bounced: answered without a mail host, as far as DNS lets them be mail addresses."""

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import known_answers
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.verdict import light_of
from tests.engine.engine_runs import open_test_engine
from tests.engine.stream.streams import collect

BOUNCED = {
    f"known@{domain}": "ses, 2026-03-14" for domain in ("shop.test", "yahoo.com", "nowhere.test")
}
# text -> status, failed_check, reason
CASES = {
    "Known@Shop.test": ("undeliverable", "smtp", "bounced"),
    "known@yahoo.com": ("undeliverable", "smtp", "bounced"),  # a provider that is not asked
    "known@nowhere.test": ("invalid", "no_mx", "no_mx"),
    "known@other.test": ("deliverable", None, "accepted"),
}


async def test_a_bounce_decides_instead_of_the_mail_host(autojump_clock):
    async with open_fake_network() as network:
        for domain in ("shop.test", "yahoo.com", "other.test"):
            network.add(domain, MailHost())
        async with open_test_engine(network) as engine:
            answers = await collect(engine, *CASES, explain=True, bounced=BOUNCED)
            known = known_answers(engine, ["known@shop.test"], bounced=BOUNCED)
            assert known is not None
            assert known_answers(engine, ["known@shop.test"]) is None  # of another account
    found = {
        answer.verdict.email: (
            *(answer.verdict.status, answer.verdict.failed_check, answer.cause.reason),
        )
        for answer in answers
    }
    assert found == CASES
    [answer] = [each for each in answers if each.verdict.email == "known@yahoo.com"]
    assert answer.cause == VerdictCause("bounced", "address")
    assert answer.evidence is not None
    assert (answer.evidence.rule, answer.evidence.conversation) == ("bounced: ses, 2026-03-14", [])
    assert (answer.verdict.mx_found, answer.verdict.smtp_blocked) == (True, False)
    assert light_of(answer.verdict) == "RED_LIGHT"
