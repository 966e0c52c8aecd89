"""Deletes what is personal of an account, some rows in each transaction.

The first transaction ends what runs: keys, lists and alerts. Its counters, its rows of usage, its
messages to the billing meter and its customer at the billing provider stay: they are money, and
none of them has a name or an address.
"""

from collections.abc import Callable
from functools import partial

from .. import audit
from ..audit import Act
from ..base.columns import micros
from ..database import Database
from ..list_jobs import lists
from ..records import Actor
from .retention import JOBS_TIDIED_MAX, drop

# Where an account's callbacks go, what was answered to it, and what it told of addresses; what hosts said.
OF_ACCOUNT = ("idempotency_records", "receivers", "bounces", "conversations")
DELETED_EMAIL = ""  # of an account that was deleted
# Its own entry has no name and no address; an operator's entries of other accounts have.
BUT_THE_DELETION = "account = :account AND (kind <> :kind OR on_account IS NOT NULL)"


def delete_some(db: Database, account_id: str, by: Actor) -> bool | None:
    """Delete some rows; True when nothing is left, None if there is no such account."""
    found = db.all(f"SELECT number FROM accounts WHERE id = :id{db.FOR_UPDATE}", {"id": account_id})
    if not found:
        return None
    ((account,),) = found
    _end(db, account)
    _record(db, account, account_id, by)
    steps: list[Callable[[], bool]] = [
        partial(_delete_jobs, db, account, "state IN ('pending', 'delivering')"),
        partial(_delete_jobs, db, account, "ended_at IS NOT NULL"),
        partial(_delete_lists, db, account),
        *(partial(drop, db, table=t, which="account = :account", account=account) for t in OF_ACCOUNT),
        partial(drop, db, table=audit.TABLE, which=BUT_THE_DELETION, account=account, kind=audit.DELETION),
    ]  # fmt: skip
    return not any(step() for step in steps)


def _end(db: Database, account: int) -> None:
    """Make the account nameless, its keys invalid, and end its lists."""
    values = {"account": account, "now": micros(db.now()), "email": DELETED_EMAIL}
    for statement in (
        "UPDATE accounts SET email = :email, alerts = :no, soft_cap_micros = NULL,"
        " hard_cap_micros = NULL WHERE number = :account",
        "UPDATE keys SET revoked_at = coalesce(revoked_at, :now), label = NULL, prefix = ''"
        " WHERE account = :account",
        "UPDATE lists SET state = 'cancelled', ended_at = :now WHERE account = :account"
        " AND ended_at IS NULL",
        "DELETE FROM outbox WHERE account = :account AND kind = 'alert'",
        "DELETE FROM sign_in_links WHERE address IN"
        " (SELECT address FROM people WHERE account = :account)",
        "DELETE FROM sign_ins WHERE account = :account",
        "DELETE FROM people WHERE account = :account",
        "DELETE FROM pauses WHERE kind = 'account'"
        " AND name = (SELECT id FROM accounts WHERE number = :account)",
    ):
        db.change(statement, {**values, "no": False})


def _record(db: Database, account: int, account_id: str, by: Actor) -> None:
    """Write the entry of the deletion, whose other steps and repetitions write none."""
    known = db.all(
        f"SELECT 1 FROM {audit.TABLE} WHERE account = :account AND kind = :kind"
        " AND on_account IS NULL LIMIT 1",
        {"account": account, "kind": audit.DELETION},
    )
    if not known:
        nameless = Actor(by.kind) if by.operator_id in (None, account_id) else by
        audit.add(db, account, nameless, Act(audit.DELETION))


def _delete_jobs(db: Database, account: int, which: str) -> bool:
    """Delete some jobs with their attempts; return whether there may be more."""
    rows = db.all(
        f"SELECT number, state, host FROM jobs WHERE account = :account AND {which}"
        f" ORDER BY number LIMIT :most{db.FOR_UPDATE}",
        {"account": account, "most": JOBS_TIDIED_MAX},
    )
    jobs = [{"job": number} for number, _, _ in rows]
    db.change_each("DELETE FROM job_attempts WHERE job = :job", jobs)
    db.change_each("DELETE FROM jobs WHERE number = :job", jobs)
    db.count_out(account, [(state, host) for _, state, host in rows])
    return len(jobs) == JOBS_TIDIED_MAX


def _delete_lists(db: Database, account: int) -> bool:
    """Delete some chunks of a list; return whether there may be more."""
    found = lists.locked(db, "account = :account", {"account": account})
    for number in found:
        lists.delete_some(db, number)
    return bool(found)
