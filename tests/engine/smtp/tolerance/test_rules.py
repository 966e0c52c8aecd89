"""The tolerance of one mail host, rule by rule: numbers and times alone."""

import pytest

from mailprobe.engine.smtp.leases.ledger import CEILING
from mailprobe.engine.smtp.tolerance.bans import RESTS_S
from mailprobe.engine.smtp.tolerance.budget import OWN_START, SHARED_START, TOOK_S
from mailprobe.engine.smtp.tolerance.host import (
    AIM_S,
    BAN_LEAST,
    LIST_WAIT_S,
    Tolerance,
)
from mailprobe.engine.smtp.tolerance.limits import (
    DAY_S,
    HOUR_S,
    UNKNOWN,
    WINDOW_S,
    Growth,
    Kind,
    RefusalLimits,
)

LIST, REQUEST, NAME, LONE_NAME, CONTROL = (
    *(Kind.LIST, Kind.REQUEST, Kind.NAME, Kind.LONE_NAME),
    Kind.CONTROL,
)
T0 = 1_000.0
PATIENCE_S = 4 * HOUR_S
LEFT_S = WINDOW_S + 10  # fail2ban, too, looks only now and then for what is older


def tolerance_of(
    *, shared: bool = False, refused: int = 0, accepted: int = 0, limits: RefusalLimits = UNKNOWN
) -> Tolerance:
    """A host that has answered the requests of one account so, at T0."""
    host = Tolerance(limits)
    if shared:
        host.known.share_host()
    ask(host, accepted=accepted, refused=refused)
    return host


def ask(
    host: Tolerance,
    *,
    accepted: int = 0,
    refused: int = 0,
    account: str = "me",
    kind: Kind = REQUEST,
    at: float = T0,
) -> None:
    for number in range(accepted + refused):
        host.budget.send(kind, account, at)
        is_accepted = number < accepted
        host.budget.answered(kind, account, at, accepted=is_accepted, refused=not is_accepted)


def ban(host: Tolerance, at: float, refusals: int = 5) -> None:
    """It refuses so many, and a second later lets nobody in any more."""
    ask(host, refused=refusals, at=at)
    assert host.blocked(at + 1)


# -- the start, and what is known before ---------------------------------------------------------


def test_somebodys_own_server_takes_one_less_than_the_commonest_guard_bans_at():
    host = tolerance_of()
    assert (host.known.tolerance, host.known.session_max) == (OWN_START, 2) == (4, 2)


def test_a_host_that_accepts_addresses_of_a_strangers_domain_takes_more():
    assert tolerance_of(shared=True).known.tolerance == SHARED_START == 16


def test_a_row_sets_tolerance_ceiling_hour_and_session():
    host = tolerance_of(
        limits=RefusalLimits(session=4, tolerance=64, ceiling=100, hour=70), shared=True
    )
    assert (host.known.tolerance, host.known.session_max, host.known.hour) == (64, 4, 70)
    host.grow()
    assert host.known.tolerance == 100


def test_words_of_a_refusal_only_widen_or_narrow_what_was_learned():
    host = tolerance_of(shared=True)
    host.grow()
    host.known.set_row(RefusalLimits(tolerance=12, hour=24), "cisco")
    assert (host.known.tolerance, host.known.hour, host.known.label) == (32, 24, "cisco")
    assert host.known.takes == 24  # which people are told: in an hour, and so in ten minutes
    careful = tolerance_of()
    ban(careful, T0)
    before = careful.known.tolerance
    careful.known.set_row(RefusalLimits(tolerance=64, ceiling=256), "google")
    assert careful.known.tolerance == before


def test_a_limited_share_leaves_what_may_be_refused_below_it():
    host = tolerance_of(limits=RefusalLimits(tolerance=64, share=0.5))
    assert host.budget.room(REQUEST, "me", T0) == 2  # of the six that are judged first
    ask(host, accepted=20)
    assert (
        host.budget.room(REQUEST, "me", T0) == 19
    )  # of 39 recipients 19 refused are less than half


# -- prices --------------------------------------------------------------------------------------


def test_a_list_reckons_with_the_worst_until_the_tolerance_has_grown():
    host = tolerance_of(shared=True)
    assert host.budget.room(LIST, "me", T0) == 16
    host.grow()
    assert host.budget.room(LIST, "me", T0) > 100


@pytest.mark.parametrize(
    ("limits", "room"), [(UNKNOWN, 16), (RefusalLimits(hour=9), 4)], ids=["unnamed", "an hour's"]
)
def test_a_request_costs_a_quarter_but_at_a_careful_host(limits, room):
    assert tolerance_of(limits=limits).budget.room(REQUEST, "me", T0) == room


def test_random_names_leave_an_hour_to_the_rows_that_wait():
    host = tolerance_of(limits=RefusalLimits(tolerance=64, hour=24), shared=True)
    ask(host, accepted=80, refused=20)
    for number in range(100):
        host.turned_away("me", T0, f"{number}@shop.test")
    host.turned_away("me", T0 + 1, untested="shop.test")
    later = T0 + HOUR_S
    assert host.budget.room(LIST, "me", later) == 24
    assert host.budget.room(NAME, "me", later) == 6  # of 100 rows 17.5 are refused


def test_random_names_leave_to_queued_rows_a_part_of_an_hour_and_of_a_share():
    hourly = tolerance_of(limits=RefusalLimits(tolerance=64, hour=24), shared=True)
    ask(hourly, accepted=100)
    assert hourly.budget.room(NAME, "me", T0) == 24
    assert (
        hourly.budget.room(NAME, "me", T0, queued=10) == 23
    )  # an acceptance needs one that is left
    assert hourly.is_spent(NAME, "me", T0, queued=2_000)
    half = tolerance_of(limits=RefusalLimits(tolerance=64, share=0.5), shared=True)
    ask(half, accepted=12, refused=2)
    assert half.budget.room(NAME, "me", T0) == 9
    assert half.budget.room(NAME, "me", T0, queued=100) == 1


def test_random_names_of_requests_leave_half_of_an_hours_limit():
    host = tolerance_of(limits=RefusalLimits(tolerance=64, hour=24), shared=True)
    ask(host, accepted=12, refused=12)
    assert host.is_spent(LONE_NAME, "me", T0)
    assert host.budget.room(REQUEST, "me", T0) == 12


@pytest.mark.parametrize(("at", "tolerance", "room"), [(T0 + 2, 32, 8), (T0 + 62, 16, 0)])
def test_a_requests_name_raises_the_tolerance_within_a_minute_of_an_acceptance(at, tolerance, room):
    host = tolerance_of(shared=True, accepted=8)
    ask(host, refused=8, at=T0 + 1)
    assert host.budget.room(LONE_NAME, "me", at) == 0
    assert host.room_for_name(LONE_NAME, "me", at) == room
    assert host.known.tolerance == tolerance


def test_a_random_name_costs_one_and_a_control_of_a_living_address_nothing():
    host = tolerance_of(shared=True)
    assert host.budget.room(NAME, "me", T0) == 16
    ask(host, refused=16)
    assert host.budget.room(CONTROL, "me", T0) == 1
    assert not host.is_spent(CONTROL, "me", T0)
    ask(host, accepted=3, kind=CONTROL)
    assert host.budget.refusals.guard.recent(T0) == 16


def test_an_accepted_address_costs_nothing_once_it_was_answered():
    host = tolerance_of(accepted=1_000)
    assert host.budget.refusals.guard.recent(T0) == 0
    assert host.budget.room(REQUEST, "me", T0) == 16


def test_a_recipient_under_way_is_reckoned_until_it_is_answered_or_recalled():
    host = tolerance_of()
    for _ in range(16):
        host.budget.send(REQUEST, "me", T0)
    assert host.budget.room(REQUEST, "me", T0) == 0
    assert not host.is_spent(REQUEST, "me", T0)
    for _ in range(12):
        host.budget.recall(REQUEST, "me")
    assert host.budget.room(REQUEST, "me", T0) == 12


def test_a_refusal_is_forgotten_when_it_leaves_the_window():
    host = tolerance_of(refused=4)
    assert host.is_spent(LIST, "me", T0 + WINDOW_S - 1)
    assert host.budget.room(LIST, "me", T0 + LEFT_S) == 4


def test_a_refusal_that_was_none_is_withdrawn():
    host = tolerance_of(refused=4)
    host.budget.withdraw_refusal(REQUEST, "me")
    assert (host.budget.refusals.guard.recent(T0), host.budget.refusals.in_hour(T0)) == (3, 3)


# -- growth --------------------------------------------------------------------------------------


def test_requests_grow_it_at_once_after_an_acceptance():
    host = tolerance_of(refused=4)
    assert host.growth(REQUEST, "me", T0) is Growth.PROVE
    host.budget.answered(CONTROL, "me", T0, accepted=True, refused=False)
    assert host.growth(REQUEST, "me", T0) is Growth.NOW
    host.grow()
    assert (host.known.tolerance, host.known.session_max) == (8, 8)


def test_an_acceptance_before_the_latest_refusal_proves_nothing():
    host = tolerance_of(accepted=4, refused=4)
    assert host.growth(REQUEST, "me", T0) is Growth.PROVE


def test_an_account_that_is_alone_grows_it_where_nothing_can_be_proven():
    host = tolerance_of(refused=4)
    assert host.growth(REQUEST, "me", T0, is_provable=False) is Growth.NOW
    host.known.proofs_lack()
    assert host.growth(REQUEST, "me", T0) is Growth.NOW


def test_beside_others_only_an_account_with_living_addresses_grows_it():
    host = tolerance_of(shared=True)
    ask(host, accepted=1, account="neighbour")
    ask(host, accepted=1, refused=3, account="bad")
    assert host.growth(REQUEST, "bad", T0) is Growth.NOT
    ask(host, accepted=4, refused=4, account="fair")
    assert host.growth(REQUEST, "fair", T0) is Growth.PROVE
    assert host.growth(REQUEST, "neighbour", T0) is Growth.NOW


def test_a_list_waits_a_minute_after_the_latest_refusal():
    host = tolerance_of(shared=True, refused=16)
    for number in range(10_000):
        host.turned_away("me", T0, f"{number}@shop.test")
    assert host.growth(LIST, "me", T0 + LIST_WAIT_S - 1, PATIENCE_S) is Growth.NOT
    assert host.growth(LIST, "me", T0 + LIST_WAIT_S, PATIENCE_S) is Growth.PROVE
    assert host.growth(LIST, "me", T0 + 6, 60.0) is Growth.PROVE  # a tenth of a short patience


def test_a_list_needs_an_acceptance_after_that_minute():
    host = tolerance_of(shared=True, refused=16)
    for number in range(10_000):
        host.turned_away("me", T0, f"{number}@shop.test")
    host.budget.answered(REQUEST, "me", T0 + 1, accepted=True, refused=False)
    assert host.growth(LIST, "me", T0 + LIST_WAIT_S, PATIENCE_S) is Growth.PROVE
    host.budget.answered(REQUEST, "me", T0 + LIST_WAIT_S, accepted=True, refused=False)
    assert host.growth(LIST, "me", T0 + LIST_WAIT_S, PATIENCE_S) is Growth.NOW


@pytest.mark.parametrize(
    ("shared", "rows", "grows"), [(False, 3_000, True), (False, 100, False), (True, 500, True)]
)
def test_a_list_that_is_done_within_its_aim_does_not_grow_it(shared, rows, grows):
    """The aim: at somebody's own server the patience, at a shared one a quarter of an hour."""
    host = tolerance_of(shared=shared, refused=16 if shared else 4, accepted=100)
    for number in range(rows):
        host.turned_away("me", T0, f"{number}@shop.test")
    found = host.growth(LIST, "me", T0 + LIST_WAIT_S, PATIENCE_S)
    assert (found is not Growth.NOT) is grows
    assert AIM_S < PATIENCE_S


def test_a_list_without_patience_is_as_a_request():
    host = tolerance_of(refused=4)
    assert host.growth(LIST, "me", T0) is host.growth(REQUEST, "me", T0) is Growth.PROVE


def test_it_never_grows_over_the_ceiling_nor_over_an_hours_limit():
    host = tolerance_of()
    for _ in range(20):
        host.grow()
    assert host.known.tolerance == CEILING
    assert host.growth(REQUEST, "me", T0) is Growth.NOT
    limited = tolerance_of(limits=RefusalLimits(hour=4), refused=4)
    assert limited.growth(REQUEST, "me", T0) is Growth.NOT


# -- bans ----------------------------------------------------------------------------------------


def test_a_closed_door_is_a_ban_only_after_answers_and_refusals_within_the_hour():
    assert not tolerance_of().blocked(T0)
    assert not tolerance_of(accepted=50).blocked(T0)
    assert not tolerance_of(refused=2).blocked(T0)
    assert not tolerance_of(refused=3).blocked(T0 + HOUR_S)
    assert tolerance_of(refused=3).blocked(T0 + 1)


def test_a_closed_door_is_a_ban_after_refusals_of_another_process_or_run():
    host = Tolerance()
    host.refused_elsewhere((), [(T0, "me", BAN_LEAST)], T0 + 1)
    assert host.blocked(T0 + 2)


def test_a_ban_lasts_until_the_host_answers_again_and_teaches_nothing_more():
    host = Tolerance()
    ban(host, T0)
    taught = host.known.tolerance, host.known.ceiling, host.known.hour
    at = T0 + HOUR_S + 10  # no refusal is left of the hour, and its rest ended long ago
    assert not host.is_resting(at)
    assert host.blocked(at)
    assert host.is_resting(at + HOUR_S - 1)
    assert (host.known.tolerance, host.known.ceiling, host.known.hour) == taught
    ask(host, accepted=1, at=at + HOUR_S + 1)
    assert not host.blocked(at + HOUR_S + 2)


def test_after_a_ban_it_takes_what_the_host_took_twenty_seconds_long():
    host = tolerance_of(refused=3)
    host.grow()
    ask(host, accepted=1, at=T0 + TOOK_S + 1)
    ask(host, refused=2, at=T0 + TOOK_S + 2)
    assert host.blocked(T0 + TOOK_S + 3)
    assert host.known.tolerance == 3
    assert host.growth(REQUEST, "me", T0 + RESTS_S[0] + 60) is Growth.NOT


def test_a_ban_at_no_more_than_it_took_before_is_blamed_on_the_hour():
    host = tolerance_of(refused=4)
    ask(host, accepted=1, at=T0 + TOOK_S + 1)
    ask(host, refused=4, at=T0 + LEFT_S + 1)
    assert host.blocked(T0 + LEFT_S + 2)
    assert host.known.hour == 4


def test_it_rests_longer_with_each_ban_of_a_day():
    host, at = tolerance_of(), T0
    for rest_s in RESTS_S:
        ban(host, at)
        assert host.is_resting(at + rest_s)
        assert host.budget.room(REQUEST, "me", at + rest_s) == 0
        assert host.next_room_s(LIST, "me", at + 1, PATIENCE_S) == pytest.approx(rest_s)
        at += rest_s + 2
        assert not host.is_resting(at)
    assert RESTS_S == (600.0, HOUR_S, 6 * HOUR_S, DAY_S)


def test_a_host_that_banned_takes_little():
    host = tolerance_of()
    ban(host, T0)
    later = T0 + RESTS_S[0] + LEFT_S
    assert (
        host.budget.room(REQUEST, "me", later)
        == host.budget.room(LIST, "me", later)
        == host.known.tolerance
        == 2
    )


# -- waiting -------------------------------------------------------------------------------------


def test_a_list_comes_back_when_a_refusal_leaves_the_window_or_it_may_grow():
    host = tolerance_of(refused=4)
    assert WINDOW_S <= host.next_room_s(LIST, "me", T0, PATIENCE_S) <= LEFT_S
    for number in range(10_000):
        host.turned_away("me", T0, f"{number}@shop.test")
    assert host.next_room_s(LIST, "me", T0, PATIENCE_S) == LIST_WAIT_S


def test_a_list_asks_a_shared_host_soon_whether_its_first_refusals_banned_us():
    host = tolerance_of(shared=True, refused=16)
    assert host.next_room_s(LIST, "me", T0, PATIENCE_S) == LIST_WAIT_S
    later = T0 + LIST_WAIT_S
    assert host.growth(LIST, "me", later, PATIENCE_S) is Growth.PROVE
    host.grow()
    ask(host, refused=16, at=later)
    assert host.next_room_s(LIST, "me", later, PATIENCE_S) >= WINDOW_S


def test_a_list_comes_back_when_the_hour_is_over():
    host = tolerance_of(limits=RefusalLimits(hour=4), refused=4)
    assert host.next_room_s(LIST, "me", T0, PATIENCE_S) == HOUR_S


def test_random_names_of_single_requests_leave_half():
    host = tolerance_of(refused=2)
    assert host.is_spent(LONE_NAME, "me", T0)
    assert host.budget.room(REQUEST, "me", T0) > 0
    assert host.budget.room(NAME, "me", T0) == 2


# -- accounts ------------------------------------------------------------------------------------


def test_an_account_that_is_alone_has_all():
    host = tolerance_of(shared=True, refused=15)
    assert host.budget.room(LIST, "me", T0) == 1


def test_beside_others_an_account_has_half():
    host = tolerance_of(shared=True)
    ask(host, accepted=1, account="neighbour")
    ask(host, refused=8, account="bad")
    assert host.is_spent(REQUEST, "bad", T0)
    assert host.budget.room(REQUEST, "neighbour", T0) == 32


def test_the_last_quarter_is_for_accounts_whose_addresses_live_here():
    host = tolerance_of(shared=True)
    for account in ("bad", "worse"):
        ask(host, accepted=3, refused=6, account=account)
    assert host.is_spent(REQUEST, "bad", T0)
    ask(host, accepted=4, refused=1, account="sure")
    assert host.budget.room(REQUEST, "sure", T0) == 12
    assert host.budget.room(REQUEST, "new", T0) == 12


@pytest.mark.parametrize(("requested", "left"), [(False, 4), (True, 0)])
def test_lists_together_leave_room_for_requests(requested, left):
    host = tolerance_of(shared=True)
    for account in ("a", "b"):
        ask(host, refused=4, account=account, kind=LIST)
    if requested:
        ask(host, accepted=1, account="c")
    assert host.budget.room(LIST, "a", T0) == left


def test_beside_others_an_account_has_half_of_an_hours_limit():
    host = tolerance_of(limits=RefusalLimits(tolerance=64, hour=24))
    ask(host, accepted=1, account="neighbour")
    ask(host, refused=12, account="bad")
    assert host.is_spent(REQUEST, "bad", T0)
    assert host.budget.room(REQUEST, "neighbour", T0) == 12


def test_an_hour_later_nothing_of_an_account_counts():
    host = tolerance_of(shared=True)
    ask(host, accepted=1, account="neighbour")
    ask(host, refused=8, account="bad")
    assert host.budget.room(REQUEST, "bad", T0 + HOUR_S) == 64


@pytest.mark.parametrize("wrong", [4, 20, 200])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_wrong_addresses_of_one_account_never_take_a_host_from_another(shared, wrong):
    host = tolerance_of(shared=shared)
    for _ in range(wrong):
        if host.budget.room(REQUEST, "bad", T0) > 0:
            ask(host, refused=1, account="bad")
        elif host.growth(REQUEST, "bad", T0) is Growth.NOW:
            host.grow()
    for _ in range(100):
        if host.budget.room(REQUEST, "good", T0) < 1:
            assert host.growth(REQUEST, "good", T0) is Growth.NOW
            host.grow()
        ask(host, accepted=1, account="good")


# -- records -------------------------------------------------------------------------------------


def test_a_record_keeps_what_was_learned():
    host = tolerance_of(shared=True, refused=16, accepted=100)
    host.grow()
    host.known.limit_hour(40)
    record = host.to_record(T0)
    again = Tolerance()
    again.learn(record, 0.0)
    assert (again.known.tolerance, again.known.hour, again.known.is_shared) == (32, 40, True)
    assert again.budget.share == pytest.approx(host.budget.share)


def test_a_ban_is_kept_and_rests_in_the_next_process():
    host = tolerance_of()
    ban(host, T0)
    again = Tolerance()
    again.learn(host.to_record(T0 + 11), 50.0)
    assert again.is_resting(50.0 + RESTS_S[0] - 11)
    assert not again.is_resting(50.0 + RESTS_S[0])
    assert again.known.tolerance == host.known.tolerance


def test_a_record_of_a_host_that_never_grew_changes_nothing():
    again = Tolerance()
    again.learn(tolerance_of(refused=2).to_record(T0), 0.0)
    assert (again.known.tolerance, again.known.session_max) == (OWN_START, 2)


def test_a_host_that_refused_few_or_long_ago_cannot_have_banned() -> None:
    """Dead hosts are many: nothing more is looked at for them."""
    host = Tolerance()
    assert not host.may_have_banned(T0)
    for number in range(BAN_LEAST):
        assert not host.may_have_banned(T0)
        host.budget.send(LIST, "me", T0 + number)
        host.budget.answered(LIST, "me", T0 + number, accepted=False, refused=True)
    assert host.may_have_banned(T0 + BAN_LEAST)
    assert not host.may_have_banned(T0 + 2 * HOUR_S)
