"""Transactions of addresses whose mail came back."""

from collections.abc import Mapping, Sequence

from mailprobe.storage.bounces import (
    BOUNCES_KEPT,
    BOUNCES_MAX,
    Bounce,
    FindBounces,
    ForgetBounces,
    HasBounces,
    RecordBounces,
)
from mailprobe.storage.columns import instant, micros
from mailprobe.storage.database import Database

KEPT = "account = (SELECT number FROM accounts WHERE id = :id) AND at > :since"


def record(db: Database, command: RecordBounces) -> None:
    """See BounceStore.record_bounces."""
    found = db.all("SELECT number FROM accounts WHERE id = :id", {"id": command.account_id})
    if not found:
        raise KeyError(command.account_id)
    ((account,),) = found
    row = {"account": account, "source": command.source, "at": micros(db.now())}
    db.change_each(
        "INSERT INTO bounces (account, address, source, at)"
        " VALUES (:account, :address, :source, :at) ON CONFLICT (account, address)"
        " DO UPDATE SET source = excluded.source, at = excluded.at",
        # in one order, so that two transactions do not wait for each other
        [{**row, "address": address} for address in sorted(command.hashes)],
    )
    db.change(
        "DELETE FROM bounces WHERE account = :account AND at <= (SELECT at FROM bounces"
        " WHERE account = :account ORDER BY at DESC LIMIT 1 OFFSET :most)",
        {"account": account, "most": BOUNCES_MAX},
    )


def forget(db: Database, command: ForgetBounces) -> int:
    """See BounceStore.forget_bounces."""
    names, values = _placeholders(command.hashes)
    where = f"{KEPT} AND address IN ({names})"
    values |= {"id": command.account_id, "since": micros(db.now() - BOUNCES_KEPT)}
    ((kept,),) = db.all(f"SELECT count(*) FROM bounces WHERE {where}", values)
    db.change(f"DELETE FROM bounces WHERE {where}", values)
    return int(kept)


def has(db: Database, command: HasBounces) -> bool:
    """See BounceStore.has_bounces."""
    since = micros(db.now() - BOUNCES_KEPT)
    values = {"id": command.account_id, "since": since}
    return bool(db.all(f"SELECT 1 FROM bounces WHERE {KEPT} LIMIT 1", values))


def find(db: Database, command: FindBounces) -> Mapping[str, Bounce]:
    """See BounceStore.bounces."""
    names, values = _placeholders(command.hashes)
    rows = db.all(
        f"SELECT address, source, at FROM bounces WHERE {KEPT} AND address IN ({names})",
        {**values, "id": command.account_id, "since": micros(db.now() - BOUNCES_KEPT)},
    )
    return {address: Bounce(source, instant(at)) for address, source, at in rows}


def _placeholders(hashes: Sequence[str]) -> tuple[str, dict[str, str | int]]:
    """The names of these values in a statement, and the values."""
    values = {f"h{n}": each for n, each in enumerate(hashes)}
    return ", ".join(f":{name}" for name in values), {**values}
