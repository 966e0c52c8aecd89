"""Billing rules: subscriptions, signatures, safe retries, and the operator's page."""

import random
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
import stripe as sdk
from msgspec.structs import replace

from mailprobe.api.billing.rules import (
    AFTER_OUTAGE,
    FOLLOWED,
    KEEPS_TIER,
    METER_EVENT,
    OUTAGE_PAUSE_MAX_S,
    RETRY_AFTER_MAX_S,
    UNCERTAIN_MAX,
    Failure,
    account_fields,
    held_for,
    identifier_of,
    read_event,
    read_retry_after,
    read_subscription,
    reported,
    uncertain_since,
)
from mailprobe.api.refusals import InvalidRequest
from mailprobe.storage.records import OutboxMessage
from tests.api.billing.billing_fixture import (
    LOST,
    REFUSED,
    ROOT,
    SLOT,
)
from tests.api.billing.fake_stripe import (
    SECRET,
    signature,
    signed,
    subscription,
)
from tests.storage.fixed_clock import NOON

# httpx does not close the body's generator when a request is cancelled
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")

# -- subscriptions at Stripe --------------------------------------------------------------------


def fields_by(*reported: dict[str, Any]) -> dict[str, Any]:
    fields = account_fields([read_subscription(one) for one in reported])
    assert fields is not None
    return fields


@pytest.mark.parametrize(
    ("status", "tier"),
    [
        ("active", "builder"), ("trialing", "builder"), ("past_due", "builder"),
        ("unpaid", "free"), ("incomplete", "free"), ("incomplete_expired", "free"),
        ("paused", "free"), ("canceled", "free"), ("invented_later", "free"),
    ],
)  # fmt: skip
def test_some_statuses_keep_the_tier_and_the_others_end_it(status, tier):
    fields = fields_by(subscription("cus_1", status=status))
    assert (fields["tier"], fields["subscription_status"]) == (tier, status)
    assert (fields["current_period_end"] is not None) == (tier != "free")
    assert KEEPS_TIER.get(status, False) == (tier != "free")


def test_every_status_that_the_sdk_knows_is_in_the_table():
    known = str(sdk.Subscription.__annotations__["status"])
    assert all(repr(status).replace("'", '"') in known.replace("'", '"') for status in KEEPS_TIER)
    assert known.replace("'", '"').count('"') == 2 * len(KEEPS_TIER)


def test_all_fields_of_a_subscription_become_the_accounts():
    at = [SLOT + n for n in range(7)]
    fields = fields_by(
        subscription(
            "cus_1", "scale", start=at[0], end=at[1], cancel_at_period_end=True, canceled_at=at[2],
            cancel_at=at[3], trial_start=at[4], trial_end=at[5], billing_cycle_anchor=at[6],
        )
    )  # fmt: skip
    assert fields == {
        "tier": "scale",
        "subscription_status": "active",
        "current_period_start": NOON,
        "current_period_end": NOON + timedelta(seconds=1),
        "cancel_at_period_end": True,
        "canceled_at": NOON + timedelta(seconds=2),
        "cancel_at": NOON + timedelta(seconds=3),
        "trial_start": NOON + timedelta(seconds=4),
        "trial_end": NOON + timedelta(seconds=5),
        "billing_cycle_anchor": NOON + timedelta(seconds=6),
    }


def test_the_period_is_the_subscriptions_own_in_old_api_versions():
    reported = subscription("cus_1", current_period_start=SLOT, current_period_end=SLOT + 1)
    for item in reported["items"]["data"]:
        del item["current_period_start"], item["current_period_end"]
    assert fields_by(reported)["current_period_start"] == NOON


def test_the_period_is_that_of_the_item_which_makes_the_tier():
    reported = subscription("cus_1", "scale", start=SLOT, end=SLOT + 1)
    other = subscription("cus_1", None)["items"]["data"]
    reported["items"]["data"] = other + reported["items"]["data"]
    fields = fields_by(reported)
    assert (fields["tier"], fields["current_period_start"]) == ("scale", NOON)


def test_the_tier_is_named_by_the_price_or_by_its_product():
    reported = subscription("cus_1", None)
    price = reported["items"]["data"][0]["price"]
    assert read_subscription(reported).tier is None
    price["product"] = {"id": "prod_1", "metadata": {"tier": "builder"}}
    assert read_subscription(reported).tier == "builder"
    price["product"] = "prod_1"
    price["metadata"] = {"tier": "scale"}
    assert read_subscription(reported).tier == "scale"
    price |= {"metadata": {}, "lookup_key": "scale_overage"}
    assert read_subscription(reported).tier is None


def test_of_several_the_best_that_lives_counts_else_the_newest_that_ended():
    builder = subscription("cus_1", "builder", id="sub_1", created=3)
    scale = subscription("cus_1", "scale", id="sub_2", created=1)
    gone = subscription("cus_1", "scale", id="sub_3", created=9, status="canceled")
    unpaid = subscription("cus_1", "scale", id="sub_4", created=8, status="unpaid")
    assert fields_by(builder, scale, gone)["tier"] == "scale"
    assert fields_by(builder, gone)["tier"] == "builder"
    assert fields_by(unpaid, gone)["subscription_status"] == "canceled"
    assert fields_by()["tier"] == "free"
    assert fields_by()["subscription_status"] is None


def test_a_subscription_without_a_tier_counts_only_if_there_is_no_other():
    strange = read_subscription(subscription("cus_1", "hosting"))
    ended = read_subscription(subscription("cus_1", "builder", status="canceled"))
    assert account_fields([strange]) is None
    fields = account_fields([strange, ended])
    assert fields
    assert fields["tier"] == "free"
    strange_ended = read_subscription(subscription("cus_1", "hosting", status="canceled"))
    assert account_fields([strange_ended]) is not None


# -- signatures ---------------------------------------------------------------------------------

OCTETS, HEADER = signed("customer.subscription.updated", {"customer": "cus_1"}, NOON)
STAMP, _, MAC = HEADER.partition(",v1=")


def test_an_event_is_known_by_its_signature():
    hint = read_event(OCTETS, HEADER, SECRET, NOON)
    assert (hint.type, hint.customer_id) == ("customer.subscription.updated", "cus_1")


def test_we_sign_as_the_sdk_does():
    sign = sdk.WebhookSignature.generate_signature_header
    assert sign(OCTETS.decode(), SECRET, SLOT) == HEADER


@pytest.mark.parametrize(
    ("octets", "header", "late_s"),
    [
        (OCTETS, HEADER, 300),
        (OCTETS, HEADER, -300),
        (OCTETS, f"{STAMP},v1={'0' * 64},v1={MAC}", 0),  # a secret is being replaced
        (OCTETS, f"{STAMP},v0=abc,v1={MAC}", 0),
        (OCTETS, f"{STAMP}, v1={MAC}", 0),
    ],
)
def test_a_right_signature_passes(octets, header, late_s):
    assert read_event(octets, header, SECRET, NOON + timedelta(seconds=late_s))


@pytest.mark.parametrize(
    ("octets", "header", "late_s"),
    [
        (OCTETS, HEADER, 301),
        (OCTETS, HEADER, -301),
        (OCTETS + b" ", HEADER, 0),
        (OCTETS, signature(OCTETS, NOON, "whsec_another"), 0),
        (OCTETS, "", 0),
        (OCTETS, f"v1={MAC}", 0),
        (OCTETS, STAMP, 0),
        (OCTETS, f"{STAMP},v0={MAC}", 0),
        (OCTETS, f"{STAMP},{STAMP},v1={MAC}", 0),
        (OCTETS, f"t=,v1={MAC}", 0),
        (OCTETS, f"t=-{SLOT},v1={MAC}", 0),
        (OCTETS, f"t={'9' * 40},v1={MAC}", 0),
        (OCTETS, f"{STAMP},v1=é", 0),
        (OCTETS, f"{STAMP},v1=\udcff", 0),
        (OCTETS, "=,=,=", 0),
    ],
)
def test_a_wrong_signature_does_not(octets, header, late_s):
    with pytest.raises(InvalidRequest) as refused:
        read_event(octets, header, SECRET, NOON + timedelta(seconds=late_s))
    assert MAC not in str(vars(refused.value))


@pytest.mark.parametrize("octets", [b"", b"[]", b"{", b"\xff", b'{"type":5}', b"[" * 100_000])
def test_a_signed_body_that_is_no_event_is_refused(octets):
    with pytest.raises(InvalidRequest):
        read_event(octets, signature(octets, NOON), SECRET, NOON)


def test_an_event_is_about_a_customer_and_may_name_the_account():
    def about(**fields: Any) -> tuple[str | None, str | None]:
        hint = read_event(*signed("invoice.paid", fields, NOON), SECRET, NOON)
        return hint.customer_id, hint.account_id

    assert about(customer="cus_1") == ("cus_1", None)
    assert about(customer={"id": "cus_1"}, metadata={"account_id": "a"}) == ("cus_1", "a")
    assert about(object="customer", id="cus_1") == ("cus_1", None)
    assert about(customer="cus_1", client_reference_id="a") == ("cus_1", "a")
    assert about(customer=None) == (None, None)
    assert about(customer=5, metadata=7) == (None, None)


# -- safe retries -------------------------------------------------------------------------------

MESSAGE = OutboxMessage("id", "meter", "0" * 36, str(SLOT), b"", 3, NOON, NOON, fence=1)


def tried(message: OutboxMessage, failure: Failure, at: datetime) -> OutboxMessage:
    """Return the message as the store has it after the attempt, claimed once more."""
    error = reported(message, failure, at)
    return replace(message, tries=message.tries + 1, fence=message.fence + 1, error=error)


def test_an_identifier_is_the_account_and_the_slot_and_short_enough():
    assert identifier_of(MESSAGE) == f"{'0' * 36}-{SLOT}"
    assert len(identifier_of(MESSAGE)) <= 100


def test_a_doubt_lasts_from_the_first_try_whose_end_is_not_known():
    refused = tried(MESSAGE, REFUSED, NOON)
    assert uncertain_since(refused) is None
    lost = tried(refused, LOST, NOON + timedelta(hours=1))
    assert uncertain_since(lost) == NOON + timedelta(hours=1)
    for failure in (REFUSED, LOST, REFUSED):
        lost = tried(lost, failure, NOON + timedelta(hours=2))
        assert uncertain_since(lost) == NOON + timedelta(hours=1)
    long = tried(MESSAGE, Failure("x" * 10_000, certain=False), NOON)
    assert uncertain_since(long) == NOON
    assert len(long.error or "") <= 300


def test_an_attempt_without_a_result_is_uncertain_since_it_was_due():
    refused = replace(tried(MESSAGE, REFUSED, NOON), due_at=NOON + timedelta(hours=5))
    killed = replace(refused, fence=refused.fence + 1)
    assert uncertain_since(killed) == NOON + timedelta(hours=5)
    after = tried(killed, REFUSED, NOON + timedelta(hours=6))
    assert uncertain_since(after) == NOON + timedelta(hours=5)


def test_uncertain_messages_are_held_after_23_hours_and_refused_ones_after_34_days():
    lost, refused = tried(MESSAGE, LOST, NOON), tried(MESSAGE, REFUSED, NOON)
    assert held_for(lost, NOON + UNCERTAIN_MAX) is None
    assert held_for(lost, NOON + UNCERTAIN_MAX + timedelta(seconds=1))
    assert held_for(refused, NOON + timedelta(days=34)) is None
    assert held_for(refused, NOON + timedelta(days=34, seconds=1))
    assert timedelta(hours=23) == UNCERTAIN_MAX


def test_retry_pauses_grow_with_jitter_to_a_bound_and_respect_retry_after():
    rng = random.Random(1)

    def pauses(tries: int, asked_s: float = 0.0) -> list[float]:
        found = [
            AFTER_OUTAGE.pause_s(tries + 1, chance=rng.random(), retry_after_s=asked_s)
            for _ in range(50)
        ]
        return [pause for pause in found if pause is not None]

    assert 1 <= min(pauses(0)) < max(pauses(0)) <= 2
    assert max(pauses(1)) > 2
    assert max(pauses(10**9)) <= OUTAGE_PAUSE_MAX_S
    assert min(pauses(0, 60)) == 60
    assert max(pauses(0, 10**9)) == RETRY_AFTER_MAX_S


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7), (None, 0), ("soon", 0), ("-7", 0), ("9" * 30, 0), ("٧", 0)]
)
def test_a_retry_after_is_whole_seconds(header, seconds):
    assert read_retry_after(header) == seconds


# -- the operator's page ------------------------------------------------------------------------


def rows_of(header: str) -> list[tuple[str, str]]:
    """Return the first two cells of each row of the table that begins so."""
    _, _, table = (ROOT / "docs/billing.md").read_text("utf-8").partition(f"{header}\n")
    rows = [line.strip("|").split(" | ") for line in table.partition("\n\n")[0].splitlines()[1:]]
    return [(row[0].strip(" `"), row[1].strip(" `|")) for row in rows]


def test_the_page_has_the_codes_table_of_statuses():
    reported = {status: tier == "kept" for status, tier in rows_of("| status | tier |")}
    assert reported == KEEPS_TIER


def test_the_page_names_events_that_are_followed_and_the_meter():
    events = [event for event, _ in rows_of("| event | why |")]
    assert len(events) == 10
    for event in events:
        assert event.startswith(FOLLOWED), event
    assert set(dict(rows_of("| field | value |")).items()) >= {("Event name", METER_EVENT)}


@pytest.mark.parametrize("words", [words for words, _ in rows_of("| in the log | meaning |")])
def test_the_page_has_words_that_are_logged(words):
    names = ("billing/client", "billing/provider", "outbox/worker")
    code = "".join((ROOT / f"api/{name}.py").read_text() for name in names)
    code = code.replace("queue=%s", "queue=meter events")
    for part in re.split("` … `|: ", words):
        assert re.sub(r" [0-9]+$", " ", part) in code or part == "No active meter found", part
