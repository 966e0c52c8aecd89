"""The limits of one host: how long each holds, and what refutes it."""

import pytest

from mailprobe.engine.smtp.limits import (
    FIRST_S,
    KEPT_S,
    OWN_MAX,
    OWN_S,
    UNLIMITED,
    Observation,
    RecipientLimits,
    Scope,
    alike,
)
from mailprobe.engine.smtp.replies.rules import standard_rules
from mailprobe.engine.smtp.session.recipient_limits import BY_CODE

REFUSAL = alike(550, "5.7.1 one only please")


def seen(at: float, *, accepted: int = 2, judged: int = 3, **changes: object) -> Observation:
    fields = {"refusal": REFUSAL, "judged": judged, "accepted": accepted, "sent_at": at - 0.1}
    return Observation(**(fields | {"at": at} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4.5.3 <ann@shop.test>: too many", "4.5.3 <ben@other.test>: too many"),
        ("Maximum recipients is 1", "Maximum recipients is 25"),
        ("no more, id 4F3A9C7", "no more, id 77ABCDE"),
        ("Try LATER", "try later"),
    ],
)
def test_names_numbers_and_ids_make_no_difference(one, other):
    assert alike(450, one) == alike(450, other)
    assert alike(450, one) != alike(550, other)


def test_other_words_make_a_difference():
    assert alike(550, "5.7.1 not allowed") != alike(550, "5.7.1 too many")


def test_a_limit_of_a_transaction_is_what_was_accepted_and_of_a_connection_what_was_judged():
    limits = RecipientLimits()
    assert (limits.per_transaction, limits.per_connection) == (UNLIMITED, UNLIMITED)
    limits.observe(Scope.TRANSACTION, seen(10))
    limits.observe(Scope.CONNECTION, seen(10))
    assert (limits.per_transaction, limits.per_connection, limits.width) == (2, 3, 2)
    limits.observe(Scope.CONNECTION, seen(10, closed=True))
    assert limits.per_connection == 2


def test_a_limit_is_never_below_one():
    limits = RecipientLimits()
    limits.observe(Scope.TRANSACTION, seen(10, accepted=0))
    assert limits.per_transaction == 1


@pytest.mark.parametrize(("certain", "kept_s"), [(False, FIRST_S), (True, KEPT_S)])
def test_one_observation_holds_for_long_only_if_its_words_speak_of_recipients(certain, kept_s):
    limits = RecipientLimits()
    limits.observe(Scope.TRANSACTION, seen(10, certain=certain))
    assert limits.until == 10 + kept_s
    limits.update(10 + kept_s)
    assert limits.per_transaction == UNLIMITED
    assert not limits.in_force


def test_a_second_observation_at_the_same_count_confirms_the_limit():
    limits = RecipientLimits()
    limits.observe(Scope.CONNECTION, seen(10))
    limits.observe(Scope.CONNECTION, seen(100))
    assert limits.until == 100 + KEPT_S


@pytest.mark.parametrize(
    "second",
    [
        seen(100, sent_at=9.0),  # it was on its way when the first was seen
        seen(100, accepted=5, judged=7),
        seen(100, refusal="another"),
        seen(11 + KEPT_S),
    ],
)
def test_chance_does_not_confirm_a_limit(second):
    limits = RecipientLimits()
    limits.observe(Scope.CONNECTION, seen(10))
    limits.observe(Scope.CONNECTION, second)
    assert limits.until == second.at + FIRST_S


def test_a_limit_in_force_is_only_lowered_and_not_for_long_by_one_observation():
    limits = RecipientLimits()
    limits.observe(Scope.TRANSACTION, seen(10, accepted=10, certain=True))
    limits.observe(Scope.TRANSACTION, seen(20, accepted=12, judged=14))
    assert (limits.per_transaction, limits.until) == (10, 10 + KEPT_S)
    limits.observe(Scope.TRANSACTION, seen(30, accepted=1, judged=1))
    assert (limits.per_transaction, limits.until) == (1, 30 + FIRST_S)


def test_a_refusal_of_the_first_recipient_of_a_connection_is_its_own_for_a_while():
    limits = RecipientLimits()
    limits.observe(Scope.TRANSACTION, seen(10))
    limits.observe(Scope.CONNECTION, seen(11, refusal="another"))
    limits.refute(REFUSAL, 12)
    assert (limits.per_transaction, limits.per_connection) == (UNLIMITED, 3)
    assert limits.is_own(REFUSAL, 12 + OWN_S - 1)
    assert not limits.is_own(REFUSAL, 12 + OWN_S)
    assert not limits.is_own("another", 12)


def test_at_a_host_with_many_refusals_of_its_own_position_proves_nothing():
    limits = RecipientLimits()
    for number in range(OWN_MAX + 5):
        limits.refute(f"refusal {number}", 10)
    assert limits.is_own("unheard of", 10)
    assert not limits.is_own("unheard of", 10 + OWN_S)


def test_an_operators_limit_is_kept_whatever_is_learned():
    limits = RecipientLimits()
    limits.declare_one_each()
    limits.observe(Scope.TRANSACTION, seen(10, accepted=10))
    assert limits.per_transaction == 1
    limits.update(10 + FIRST_S)
    assert (limits.per_transaction, limits.width) == (1, 1)


def test_the_rules_that_condemn_by_a_code_alone_are_rules():
    assert set(standard_rules().readings) >= BY_CODE


def test_a_limit_of_refused_recipients_leaves_the_others_unlimited():
    limits = RecipientLimits()
    limits.observe(Scope.REFUSALS, seen(10.0, judged=2, accepted=2, closed=True))
    assert (limits.refusals_per_connection, limits.per_connection) == (2, UNLIMITED)
    limits.observe(Scope.REFUSALS, seen(20.0, judged=2, accepted=2, closed=True))
    limits.update(20.0 + KEPT_S - 1)
    assert limits.refusals_per_connection == 2
    limits.update(20.0 + KEPT_S)
    assert limits.refusals_per_connection == UNLIMITED
