"""Alert thresholds: when each is reached, and the text of its mail."""

import email
import email.policy
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mailprobe.api.alerts.mail import alert_texts, compose
from mailprobe.api.alerts.thresholds import (
    Alert,
    Figures,
    Kind,
    Measure,
    Unwritable,
    crossed,
    message_name,
    read_body,
)
from mailprobe.api.quota.plans import PLANS, PricingPlan
from mailprobe.storage.records import Account, Ledger, Tier
from tests.test_layers import IMPURE, tops

NOW = datetime(2026, 3, 14, 9, 26, 53, 250_000, tzinfo=UTC)
MARCH, APRIL = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
EUR = 1_000_000
ACCOUNT = Account("3f2b8c1e-5d0a-4c8e-9a57-0c6f2f1d7b11", "ann@example.org", "builder", MARCH)
FREE, BUILDER = PLANS["free"], PLANS["builder"]  # 500 units; 5,000 calls, then 0.004 EUR each
DASHBOARD, SENDER = "https://dash.test", "alerts@mailprobe.test"


def ledger(**more: Any) -> Ledger:
    fields = {
        "asked_at": NOW, "window": (), "month_units": 0, "month_billable": 0,
        "period_start": MARCH, "period_end": APRIL, "period_billable": 0, "reserved": 0,
    }  # fmt: skip
    return Ledger(**{**fields, **more})


def kinds(
    plan: PricingPlan, *, capped: bool = False, caps: Any = (None, None), **more: Any
) -> list[str]:
    account = replace(ACCOUNT, soft_cap_micros=caps[0], hard_cap_micros=caps[1])
    return [alert.kind for alert in crossed(plan, ledger(**more), account, capped=capped)]


def alert(kind: Kind, tier: Tier = "builder", **more: Any) -> Alert:
    measure: Measure = "quota" if tier == "free" else "volume"
    plan = PLANS[tier]
    figures = Figures(
        tier, measure, NOW, MARCH, APRIL, 4_000, plan.monthly_calls, plan.price_micros_per_call,
        0, None, None,
    )  # fmt: skip
    return Alert(kind, replace(figures, **more))


def test_deciding_and_composing_are_pure():
    assert not tops("mailprobe.api.alerts.thresholds") & IMPURE


# -- what is reached ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "reached"),
    [
        (0, []),
        (374, []),
        (375, ["75"]),
        (449, ["75"]),
        (450, ["75", "90"]),
        (499, ["75", "90"]),
        (500, ["75", "90", "100"]),
        (600, ["75", "90", "100"]),  # the quota was made smaller meanwhile
    ],
)
def test_free_tier_thresholds_are_shares_of_the_months_units(used, reached):
    assert kinds(FREE, month_units=used, month_billable=0, period_billable=0) == reached


@pytest.mark.parametrize(
    ("used", "reached"),
    [
        (3_749, []),
        (3_750, ["75"]),
        (4_499, ["75"]),
        (4_500, ["75", "90"]),
        (4_999, ["75", "90"]),
        (5_000, ["75", "90", "100"]),
        (9_999, ["75", "90", "100"]),
    ],
)
def test_paid_tier_thresholds_are_shares_of_the_periods_billable_volume(used, reached):
    assert kinds(BUILDER, period_billable=used, month_units=99_999) == reached


def test_units_that_may_be_given_back_are_not_used_yet():
    assert kinds(FREE, month_units=400, reserved=26) == []
    assert kinds(FREE, month_units=400, reserved=25) == ["75"]
    assert kinds(BUILDER, period_billable=3_740, reserved=50) == []


@given(st.integers(1, 10**9), st.integers(0, 2 * 10**9))
def test_no_threshold_is_reached_below_its_share(included, used):
    plan = replace(BUILDER, monthly_calls=included, price_micros_per_call=0)
    for kind in kinds(plan, period_billable=used):
        assert used / included >= int(kind) / 100 - 1e-12


def test_nothing_is_never_used_up():
    """A plan that includes no calls is paid from the first call, so it has no share to reach."""
    for plan in (BUILDER, FREE):
        assert kinds(replace(plan, monthly_calls=0)) == []


@pytest.mark.parametrize(
    ("calls", "soft_cap", "reached"),
    [
        (5_000, 0, False),  # no spend, although the cap is 0
        (5_001, 0, True),
        (7_499, 10 * EUR, False),
        (7_500, 10 * EUR, True),
        (9_000, 10 * EUR, True),
        (9_000, None, False),
    ],
)
def test_the_soft_cap_is_reached_when_the_overage_is(calls, soft_cap, reached):
    assert ("soft_cap" in kinds(BUILDER, period_billable=calls, caps=(soft_cap, None))) == reached


def test_the_hard_cap_alert_comes_with_the_first_refusal():
    """The cap refuses a request that could exceed it: a large one earlier than a small one."""
    at_the_cap: dict[str, Any] = {"period_billable": 7_500, "caps": (None, 10 * EUR)}
    assert kinds(BUILDER, **at_the_cap) == ["75", "90", "100"]
    assert kinds(BUILDER, **at_the_cap, capped=True) == ["75", "90", "100", "hard_cap"]
    assert kinds(BUILDER, period_billable=10, caps=(None, 0), capped=True) == ["hard_cap"]
    assert kinds(BUILDER, period_billable=10, capped=True) == []  # it was lifted meanwhile


def test_a_free_account_has_no_overage_and_no_caps():
    assert kinds(FREE, month_units=400, period_billable=9_999, caps=(0, 0), capped=True) == ["75"]


def test_a_period_that_is_over_is_no_share_of_anything():
    """Its count continues until the provider reports the next period, and still refuses requests."""
    over: dict[str, Any] = {"period_billable": 9_999, "period_end": NOW, "caps": (1, 1)}
    assert kinds(BUILDER, **over) == []
    assert kinds(BUILDER, **over, capped=True) == ["hard_cap"]


# -- the message --------------------------------------------------------------------------------


def test_a_message_is_named_by_its_period_and_its_threshold():
    assert message_name(alert("75")) == "2026-03-01T00:00:00Z 75"
    assert message_name(alert("hard_cap", at=NOW + timedelta(days=3))) == (
        "2026-03-01T00:00:00Z hard_cap"
    )
    subscribed = alert("100", period_start=datetime(2026, 2, 14, 8, 30, 1, tzinfo=UTC))
    assert message_name(subscribed) == "2026-02-14T08:30:01Z 100"


def test_the_free_months_messages_are_not_those_of_a_billing_period():
    """An account that upgrades in mid-month gets another quota from the same day."""
    assert message_name(alert("75", "free")) == "2026-03-01T00:00:00Z quota 75"


def test_the_free_month_is_the_calendars_whatever_a_former_subscription_left():
    old = {"period_start": NOW - timedelta(days=60), "period_end": NOW - timedelta(days=30)}
    (first, *_) = crossed(FREE, ledger(month_units=400, **old), ACCOUNT, capped=False)
    assert (first.figures.period_start, first.figures.period_end) == (MARCH, APRIL)


def test_a_message_keeps_the_figures_of_the_crossing():
    account = replace(ACCOUNT, soft_cap_micros=EUR, hard_cap_micros=None)
    for each in crossed(BUILDER, ledger(period_billable=7_500), account, capped=False):
        assert read_body(msgspec.json.encode(each), Alert) == each


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b'{"kind":"80","figures":{}}', b"[" * 9999])
def test_a_message_that_cannot_be_read_is_said_to_be_so(body):
    with pytest.raises(Unwritable):
        read_body(body, Alert)


# -- the mail -----------------------------------------------------------------------------------


class Page(HTMLParser):
    """The visible text of a page, and everything that the page would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(html)
        self.close()

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]


def mail(one: Alert, account: Account = ACCOUNT, **more: Any) -> email.message.EmailMessage:
    """Return the mail as a mail program parses it."""
    written = compose(one, account, **{"dashboard_url": DASHBOARD, "sender": SENDER, **more})
    read = email.message_from_bytes(written.as_bytes(), policy=email.policy.SMTP)
    assert isinstance(read, email.message.EmailMessage)
    return read


def text_of(message: email.message.EmailMessage, kind: str = "plain") -> str:
    body = message.get_body((kind,))
    assert body is not None
    text = body.get_content()
    return " ".join((Page(text).text if kind == "html" else text).split())


SAMPLES = {
    key: alert(
        cast(Kind, key[1]), "free" if key[0] == "quota" else "builder",
        spend_micros=12_340_000, soft_cap_micros=10 * EUR, hard_cap_micros=25 * EUR,
    )
    for key in (tuple(reason.split(" ")) for reason in alert_texts())
}  # fmt: skip


UNTIL = "until 2026-04-01 00:00 UTC"
END = "until the period ends on 2026-04-01 00:00 UTC"


@pytest.mark.parametrize(
    ("key", "subject", "words"),
    [
        (("quota", "75"), "75 %",
         ["At least 75 % of the 500 verifications", "4,000 so far",
          f"is refused with 429 monthly_quota_exceeded {UNTIL}"]),
        (("quota", "90"), "90 %", [f"is refused with 429 monthly_quota_exceeded {UNTIL}"]),
        (("quota", "100"), "100 %",
         ["All 500 verifications", f"are refused with 429 monthly_quota_exceeded {UNTIL}",
          "Nothing is charged"]),
        (("volume", "75"), "75 %",
         ["At least 75 % of the 5,000 billable verifications", f"costs 0.004 EUR {END}"]),
        (("volume", "90"), "90 %", ["4,000 so far", f"costs 0.004 EUR {END}"]),
        (("volume", "100"), "100 %",
         ["are used up: 4,000 so far", f"costs 0.004 EUR {END}", "hard cap of 25.00 EUR"]),
        (("volume", "soft_cap"), "soft cap",
         ["has come to 12.34 EUR; your soft cap is 10.00 EUR", "A soft cap never blocks"]),
        (("volume", "hard_cap"), "hard cap",
         ["402 payment_required until the cap is raised", "above your hard cap of 25.00 EUR",
          "So far the overage is 12.34 EUR", "begins, on 2026-04-01 00:00 UTC"]),
    ],
)  # fmt: skip
def test_the_mail_says_what_happened_and_what_it_means(key, subject, words):
    message = mail(SAMPLES[key])
    named = [each for each in ("75 %", "90 %", "100 %", "soft cap", "hard cap")
             if each in message["Subject"]]  # fmt: skip
    assert named == [subject]
    for said in (text_of(message), text_of(message, "html")):
        for word in [*words, DASHBOARD, f"mailprobe account set {ACCOUNT.id} --alerts off"]:
            assert word in said
        assert "2026-03-01 00:00 UTC to 2026-04-01 00:00 UTC" in said


def test_every_threshold_that_can_be_reached_has_words():
    capped_at_0 = replace(ACCOUNT, soft_cap_micros=0, hard_cap_micros=0)
    full = ledger(period_billable=10**9, month_units=10**9)
    for plan in PLANS.values():
        for one in crossed(plan, full, capped_at_0, capped=True):
            assert mail(one)["Subject"].startswith("mailprobe: ")


@pytest.mark.parametrize("one", SAMPLES.values(), ids=str)
def test_it_is_plain_ascii_lines_that_no_relay_needs_to_touch(one):
    octets = compose(one, ACCOUNT, dashboard_url=DASHBOARD, sender=SENDER).as_bytes()
    assert octets.isascii()
    assert octets.count(b"\n") == octets.count(b"\r\n") == octets.count(b"\r")
    assert max(map(len, octets.split(b"\r\n"))) <= 78


@pytest.mark.parametrize("one", SAMPLES.values(), ids=str)
def test_it_loads_nothing_and_runs_nothing(one):
    body = mail(one).get_body(("html",))
    assert body is not None
    page = Page(body.get_content())
    assert set(page.loads) == {DASHBOARD}
    assert not page.tags & {"img", "script", "iframe", "link", "object", "form", "style"}
    assert "url(" not in body.get_content()


def test_its_parts_say_the_same():
    message = mail(SAMPLES["volume", "soft_cap"])
    assert message.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]
    words = text_of(message, "html").partition(" reached ")[2]  # behind the title
    assert words.replace(" ", "") == text_of(message).replace(" ", "")


def test_its_headers_are_those_of_a_machines_mail():
    message = mail(alert("75"))
    assert str(message["From"]) == f"mailprobe <{SENDER}>"
    assert str(message["To"]) == "ann@example.org"
    assert message["Date"].datetime == NOW.replace(microsecond=0)
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Message-ID"].endswith("@mailprobe.test>")
    assert not any(part.defects for part in message.walk())


def test_a_copy_is_known_by_its_octets():
    idempotency = compose(alert("75"), ACCOUNT, dashboard_url=DASHBOARD, sender=SENDER)
    again = compose(alert("75"), ACCOUNT, dashboard_url=DASHBOARD, sender=SENDER)
    assert idempotency.as_bytes() == again.as_bytes()


def test_a_message_id_is_of_one_account_period_and_threshold():
    ids = {
        mail(one, account)["Message-ID"]
        for one in (
            alert("75"), alert("90"), alert("75", "free"), alert("75", period_start=NOW),
        )
        for account in (ACCOUNT, replace(ACCOUNT, id="another"))
    }  # fmt: skip
    assert len(ids) == 8
    later = alert("75", at=NOW + timedelta(days=1), used=4_444)
    assert mail(later)["Message-ID"] == mail(alert("75"))["Message-ID"]


@pytest.mark.parametrize(
    ("written", "to"),
    [
        ("Ann.O'Hara+x@Example.ORG", "Ann.O'Hara+x@example.org"),
        ('"a, b; <c>"@example.org', '"a, b; <c>"@example.org'),
        ("ann@bücher.test", "ann@xn--bcher-kva.test"),
        ("jösé@bücher.test", "jösé@xn--bcher-kva.test"),
        ('"jö é"@example.org', '"jö é"@example.org'),
        (f"{'x' * 64}@{'y' * 63}.{'z' * 63}.test", f"{'x' * 64}@{'y' * 63}.{'z' * 63}.test"),
    ],
)
def test_it_goes_to_whatever_address_the_account_has(written, to):
    account = replace(ACCOUNT, email=written)
    message = compose(alert("75"), account, dashboard_url=DASHBOARD, sender=SENDER)
    assert [address.addr_spec for address in message["To"].addresses] == [to]
    assert f"\r\nTo: {to}\r\n".encode() in message.as_bytes()


@pytest.mark.parametrize(
    "written",
    [
        "", "ann", "ann@example.org\r\nBcc: eve@example.org", "ann@example.org, eve@example.org",
        "Ann <ann@example.org>", "ann@example.org\n", '"\r\nBcc: eve@x.test"@example.org',
    ],
)  # fmt: skip
def test_an_address_can_bring_no_header_and_no_second_reader(written):
    with pytest.raises(Unwritable, match="cannot be written to"):
        mail(alert("75"), replace(ACCOUNT, email=written))


def test_values_in_an_html_message_are_escaped():
    nasty = replace(ACCOUNT, id="<b>&amp;\"'")
    body = mail(alert("75"), nasty, dashboard_url="https://d.test/?a=1&b='2'").get_body(("html",))
    assert body is not None
    page = Page(body.get_content())
    assert "<b>&amp;\"'" in page.text
    assert set(page.loads) == {"https://d.test/?a=1&b='2'"}
    assert "b" not in page.tags


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(0, "0.00 EUR"), (1, "0.01 EUR"), (12_340_000, "12.34 EUR"), (1_234_567_890_000, "1,234,567.89 EUR")],
)  # fmt: skip
def test_money_is_shown_to_the_cent_rounded_up(micros, shown):
    assert f"Overage {shown}" in text_of(mail(alert("100", spend_micros=micros)))


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(4_000, "0.004"), (2_000_000, "2.00"), (1, "0.000001"), (15_500, "0.0155")],
)
def test_a_price_is_shown_whole(micros, shown):
    assert f"costs {shown} EUR" in text_of(mail(alert("75", price_micros=micros)))


def test_a_message_without_a_hard_cap_says_that_the_overage_is_unbounded():
    assert "No hard cap is set" in text_of(mail(alert("100")))
    assert "No hard cap is set" not in text_of(mail(alert("100", hard_cap_micros=0)))
    assert "above your hard cap of 0.00 EUR" in text_of(mail(alert("100", hard_cap_micros=0)))


def test_a_mail_of_another_versions_thresholds_is_not_guessed():
    with pytest.raises(Unwritable, match="no texts"):
        mail(alert("soft_cap", "free"))
