"""A store queues jobs and messages as the model does, step by step.

By a seed and not by hypothesis: its machines leave out some of the rules in every
run, and here a deed says something only after others have made it possible.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from mailprobe.storage.records import JobOrder, Ledger
from tests.seeds import seeds
from tests.storage.child_processes import partitions_stored, partitions_true
from tests.storage.fixed_clock import RETENTION, attempt, granted, row
from tests.storage.two_stores import MODELLED, Both, TwoStores

SEEDS = seeds(10)
STEPS = 320
HOSTS = ["a.test", "b.test", "7"]
WAITS_S = [0, 0, 0.000_001, 1, 5, 29.999_999, 30, 600, 86_400, 8_640_000]
LEASES_S = [1, 30, 3_600]
LATER_S = [-5, 0, 0, 1, 60]


class Queues(TwoStores):
    """Each method is a deed, told to both; chance says which, and with what."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.claims: list[Both] = []
        self.messages: list[Both] = []
        self.happened: Counter[str] = Counter()

    def step(self) -> None:
        write = self.rng.choice(WRITES)
        ours = write(self)
        if ours and not isinstance(ours, type):
            self.happened[write.__name__] += 1

    def soon(self) -> datetime:
        return self.clock() + timedelta(seconds=self.rng.choice(LATER_S))

    def bounds(self) -> dict[str, Any]:
        return {"limit": self.rng.choice([1, 2, 10]), "lease_s": self.rng.choice(LEASES_S)}

    def wait(self) -> None:
        self.clock.advance(self.rng.choice(WAITS_S))

    def retention(self) -> None:
        self.both(lambda store: store.apply_retention(RETENTION))

    def change_tier(self) -> None:
        tier: Any = self.rng.choice(["free", "builder", "scale"])
        caller = self.rng.choice(self.known)
        self.both(lambda store, one: store.change_account(one.account.id, tier=tier), caller)

    def use(self) -> None:
        caller, logged = self.rng.choice(self.known), row(self.clock())
        reservation = self.both(
            lambda store, one: store.reserve(one, 1, granted, lease_s=9), caller
        )
        self.both(
            lambda store, one: store.settle(one, [logged], emit_meter_event=True), reservation
        )

    # jobs

    def create_job(self) -> Any:
        most = self.rng.choice([2, 100])

        def weigh(ledger: Ledger) -> type[Ledger] | None:
            return Ledger if ledger.reserved >= most else None

        host = self.rng.choice(HOSTS)
        secret = self.rng.choice([None, "s"])
        id = f"{self.rng.randrange(40)}"
        order = JobOrder(id, "ann@shop.test", f"https://{host}/", host, secret)
        caller = self.rng.choice(self.known)
        return self.both(lambda store, one: store.create_job(one, order, weigh), caller)[0]

    def claim_jobs(self) -> Any:
        work: Any = self.rng.choice(["verify", "deliver"])
        each_max = self.rng.choice([1, 2, 10])
        bounds = self.bounds() | {"each_max": each_max, "account_max": 5 if each_max == 2 else None}
        ours, theirs = self.both(lambda store: store.claim_jobs(work, **bounds))
        self.claims += zip(ours, theirs, strict=True)
        return ours

    def a_claim(self) -> Both:
        """One of the last, that may be of use, or an old one."""
        return self.rng.choice(self.rng.choice([self.claims, self.claims[-4:]]))

    def extend_claim(self) -> Any:
        lease_s = self.rng.choice(LEASES_S)
        return self.of_claim(lambda store, one: store.extend_claim(one, lease_s=lease_s))

    def job_verified(self) -> Any:
        logged = row(self.clock(), billable=self.rng.random() < 0.8)
        emit_meter_event = self.rng.random() < 0.8
        return self.of_claim(
            lambda store, one: store.job_verified(
                one, logged, b"{}", emit_meter_event=emit_meter_event
            )
        )

    def job_attempted(self) -> Any:
        state: Any = self.rng.choice(["delivering", "delivering", "done", "failed"])
        due_at = self.soon() if state == "delivering" else None
        tried = attempt(self.rng.randrange(9), self.clock())
        return self.of_claim(
            lambda store, one: store.job_attempted(one, tried, state=state, due_at=due_at)
        )

    def abandon_job(self) -> Any:
        return self.of_claim(lambda store, one: store.abandon_job(one))

    def postpone_job(self) -> Any:
        due_at = self.soon()
        return self.of_claim(lambda store, one: store.postpone_job(one, due_at))

    def of_claim(self, write: Any) -> Any:
        return self.both(write, self.a_claim())[0] if self.claims else None

    def resend_job(self) -> Any:
        id = f"{self.rng.randrange(40)}"
        return self.both(lambda store: store.resend_job(id))[0]

    # the outbox

    def post(self) -> Any:
        kind: Any = self.rng.choice(["alert", "meter"])
        name, due_at = self.rng.choice("abcdefgh"), self.soon()
        caller = self.rng.choice(self.known)
        return self.both(
            lambda store, one: store.enqueue_message(
                kind, one.account.id, name, b"", due_at=due_at
            ),
            caller,
        )[0]

    def claim_messages(self) -> Any:
        kind: Any = self.rng.choice(["alert", "meter"])
        bounds = self.bounds()
        ours, theirs = self.both(lambda store: store.claim_messages(kind, **bounds))
        self.messages += zip(ours, theirs, strict=True)
        return ours

    def message_attempted(self) -> Any:
        if not self.messages:
            return None
        message = self.rng.choice(self.rng.choice([self.messages, self.messages[-4:]]))
        sent = self.rng.random() < 0.5
        due_at = None if sent or self.rng.random() < 0.3 else self.soon()
        return self.both(
            lambda store, one: store.message_attempted(one, sent=sent, due_at=due_at, error="e"),
            message,
        )[0]

    def extend_message(self) -> Any:
        if not self.messages:
            return None
        message = self.rng.choice(self.rng.choice([self.messages, self.messages[-4:]]))
        lease_s = self.rng.choice(LEASES_S)
        return self.both(lambda store, one: store.extend_message(one, lease_s=lease_s), message)[0]


RARE = [Queues.retention, Queues.change_tier, Queues.abandon_job, Queues.use]
WRITES: list[Any] = RARE + 3 * [
    Queues.wait,
    Queues.create_job,
    Queues.create_job,
    Queues.claim_jobs,
    Queues.claim_jobs,
    Queues.extend_claim,
    Queues.job_verified,
    Queues.job_verified,
    Queues.postpone_job,
    Queues.job_attempted,
    Queues.job_attempted,
    Queues.resend_job,
    Queues.post,
    Queues.claim_messages,
    Queues.extend_message,
    Queues.message_attempted,
]


@contextmanager
def queues(rng: random.Random, kind: str) -> Iterator[Queues]:
    both = type("Queues", (Queues,), {"kind": kind})(rng)
    try:
        both.first_caller("builder")
        both.first_caller("free")
        yield both
    finally:
        both.close()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", MODELLED)
def test_a_store_queues_as_the_model_does(kind: str, seed: int):
    with queues(random.Random(seed), kind) as both:
        for _ in range(STEPS):
            both.step()
            both.compare()
            if kind == "memory":
                db = both.portal.stores[1].executor.db
                assert partitions_stored(db) == partitions_true(db)
        assert set(both.happened) >= {"create_job", "claim_jobs", "job_verified", "job_attempted"}
