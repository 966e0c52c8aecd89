"""Every store answers as the model does, whatever the sequence of calls that hypothesis finds."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from mailprobe.storage.records import (
    Answered,
    FirstAnswer,
    IdempotencyRecord,
    Ledger,
    Reservation,
)
from tests.seeds import seeds
from tests.storage.fixed_clock import RETENTION, granted, row
from tests.storage.two_stores import MODELLED, Both, TwoStores

TIERS = st.sampled_from(["free", "builder", "scale"])
STEPS_S = st.sampled_from([0, 0.000_001, 1, 29.999_999, 30, 59.999_999, 60, 3_600, 86_400, 864_000])


def at_a_limit(units: int) -> Any:
    """Weigh against eight in a minute; whoever is refused tells all that weighing was told."""

    def weigh(ledger: Ledger) -> Ledger | None:
        if ledger.window_units + units <= 8:
            return None
        return replace(ledger, window=tuple(ledger.window))

    return weigh


class Metering(TwoStores, RuleBasedStateMachine):
    accounts = Bundle("accounts")
    callers = Bundle("callers")
    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.begun: dict[tuple[str, str], Both] = {}  # by the model's account and key, the last

    def teardown(self) -> None:
        self.close()

    @initialize(target=callers, tier=TIERS)
    def first(self, tier: Any) -> Both:
        return self.first_caller(tier)

    @rule(target=accounts, tier=TIERS)
    def create_account(self, tier: Any) -> Both:
        return self.both(lambda store: store.create_account("bob@shop.test", tier))

    @rule(
        target=callers,
        account=accounts,
        kind=st.sampled_from(["standard", "provisioning"]),
        keys_max=st.sampled_from([None, 1, 2]),
    )
    def create_key(self, account: Both, kind: Any, keys_max: int | None) -> Both:
        made = self.make_caller(account, kind, keys_max)
        if made is None:
            return self.known[0]
        self.known.append(made)
        return made

    @rule(caller=callers)
    def revoke(self, caller: Both) -> None:
        self.both(lambda store, one: store.revoke_key(one.account.id, one.key.id), caller)

    @rule(caller=callers, start=st.integers(-40, 5), length=st.integers(1, 40), tier=TIERS)
    def subscribe(self, caller: Both, start: int, length: int, tier: Any) -> None:
        begins = self.clock() + timedelta(days=start)
        self.both(
            lambda store, one: store.change_account(
                one.account.id,
                tier=tier,
                current_period_start=begins,
                current_period_end=begins + timedelta(days=length),
            ),
            caller,
        )

    @rule(caller=callers)
    def unsubscribe(self, caller: Both) -> None:
        gone = {"current_period_start": None, "current_period_end": None}
        self.both(lambda store, one: store.change_account(one.account.id, **gone), caller)

    @rule(seconds=STEPS_S)
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(
        target=reservations,
        caller=callers,
        units=st.integers(1, 5),
        lease_s=st.sampled_from([1, 30, 60, 300]),
    )
    def reserve(self, caller: Both, units: int, lease_s: float) -> Both:
        return self.both(
            lambda store, one: store.reserve(one, units, granted, lease_s=lease_s), caller
        )

    @rule(caller=callers, units=st.integers(1, 5))
    def reserve_at_a_limit(self, caller: Both, units: int) -> None:
        self.both(
            lambda store, one: store.reserve(one, units, at_a_limit(units), lease_s=30), caller
        )

    @rule(
        caller=callers,
        count=st.integers(1, 5),
        billable=st.booleans(),
        emit_meter_event=st.booleans(),
    )
    def spend(self, caller: Both, count: int, billable: bool, emit_meter_event: bool) -> None:
        rows = [row(self.clock(), billable=billable)] * count
        self.both(
            lambda store, one: store.spend(
                one, rows, at_a_limit(count), emit_meter_event=emit_meter_event
            ),
            caller,
        )

    @rule(caller=callers, key=st.sampled_from("kl"), count=st.integers(1, 5))
    def spend_idempotency(self, caller: Both, key: str, count: int) -> None:
        idempotency = self.begun.get((caller[0].account.id, key))
        if idempotency is None:
            return
        rows, answer = [row(self.clock())] * count, Answered(200, (), b"{}")
        self.both(
            lambda store, one, idempotency: store.spend(
                one, rows, at_a_limit(count), first=FirstAnswer(idempotency, answer)
            ),
            caller,
            idempotency,
        )

    @rule(reservation=reservations, key=st.sampled_from("kl"))
    def settle_idempotency(self, reservation: Both, key: str) -> None:
        if not isinstance(reservation[0], Reservation):
            return
        idempotency = self.begun.get((reservation[0].caller.account.id, key))
        if idempotency is None:
            return
        rows, answer = [row(self.clock())], Answered(201, (), b"[]")
        self.both(
            lambda store, one, idempotency: store.settle(
                one, rows, first=FirstAnswer(idempotency, answer)
            ),
            reservation,
            idempotency,
        )

    @rule(reservation=reservations, lease_s=st.sampled_from([1, 60]))
    def extend(self, reservation: Both, lease_s: float) -> None:
        self.both(lambda store, one: store.extend(one, lease_s=lease_s), reservation)

    @rule(
        reservation=reservations,
        back_s=st.lists(st.sampled_from([0, 1, 200, 86_400, 8_640_000]), max_size=5),
        billable=st.booleans(),
        emit_meter_event=st.booleans(),
    )
    def settle(
        self, reservation: Both, back_s: list[int], billable: bool, emit_meter_event: bool
    ) -> None:
        rows = [row(self.clock() - timedelta(seconds=s), billable=billable) for s in back_s]
        self.both(
            lambda store, one: store.settle(one, rows, emit_meter_event=emit_meter_event),
            reservation,
        )

    @rule(
        caller=callers,
        why=st.sampled_from([None, "rate_limit_exceeded"]),
        count=st.sampled_from([1, 15]),
    )
    def refuse(self, caller: Both, why: str | None, count: int) -> None:
        refusal = row(self.clock(), failed_check=why, units=0, billable=False)
        for _ in range(count):
            self.both(lambda store, one: store.log_refusal(one, refusal), caller)

    @rule(caller=callers, key=st.sampled_from("kl"), body=st.sampled_from("bc"))
    def begin_idempotency(self, caller: Both, key: str, body: str) -> None:
        begun = self.both(
            lambda store, one: store.begin_idempotent(
                one.account.id, key, body, keep_s=86_400, lease_s=60
            ),
            caller,
        )
        if isinstance(begun[0], IdempotencyRecord):
            self.begun[caller[0].account.id, key] = begun

    @rule(
        caller=callers,
        key=st.sampled_from("kl"),
        answer=st.none()
        | st.builds(
            Answered,
            st.integers(200, 599),
            st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=2).map(tuple),
            st.binary(max_size=20),
        ),
    )
    def finish_idempotency(self, caller: Both, key: str, answer: Answered | None) -> None:
        idempotency = self.begun.get((caller[0].account.id, key))
        if idempotency:
            self.both(lambda store, one: store.finish_idempotent(one, answer), idempotency)

    @rule()
    def retention(self) -> None:
        self.both(lambda store: store.apply_retention(RETENTION))

    @invariant()
    def everything_that_can_be_seen_is_the_same(self) -> None:
        self.compare()


@pytest.mark.parametrize("kind", MODELLED)
def test_a_store_meters_as_the_model_does(kind: str):
    run_state_machine_as_test(
        type("Metering", (Metering,), {"kind": kind}),
        settings=settings(
            max_examples=seeds(200),
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
