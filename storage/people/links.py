"""Links that sign a person in, once: the store has the SHA-256 of what they carry.

One that somebody asked for is good for LINKS_KEPT in the browser that asked. An invitation is good
for its person, in any browser. Asking for an unknown address does the same and takes as long as
asking for a known one, so that nobody learns who has an account.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from ..base.columns import instant, micros
from ..database import Database, StorePart, read, write
from .people import folded

LINKS_KEPT = timedelta(minutes=15)
INVITATIONS_KEPT = timedelta(days=3)
AGAIN_AFTER = timedelta(seconds=60)  # a browser asks for the next: a mail takes some seconds
# Within LINKS_KEPT: an address gets few mails, whoever asks; an account's people need several.
ADDRESS_LINKS_MAX = 3
ACCOUNT_LINKS_MAX = 30
CLIENT_LINKS_MAX = 10
# The page of a link that is never mailed, as others asked for too many: it is stored so that its
# browser is told the same as one that asks for an address which nobody has.
NOT_MAILED = ""

USABLE = (
    "sha256 = :sha256 AND until > :now AND (browser IS NULL OR browser = :browser)"
    " AND address IN (SELECT address FROM people)"
)


class NewLink(Struct, frozen=True):
    """A link that a browser asks for."""

    sha256: str
    email: str
    browser: str  # SHA-256 of its cookie
    client: str  # the network that it asks from
    page: str  # where to go afterwards
    known_key: str | None = None  # the id of that by which this browser signed in before


class AskedLink(Struct, frozen=True):
    """What became of asking: from what the browser asked itself, so that it tells of nobody else."""

    to: str | None  # the address to mail it to; None: nobody has it, or it was asked too often
    until: datetime  # the newest link of this browser is good
    again_at: datetime  # the browser may ask again
    is_early: bool = False  # it asked before that, and no link was made


class Link(Struct, frozen=True):
    """A link that is good."""

    email: str
    person_id: str | None  # of an invitation
    page: str
    until: datetime


def request_link(db: Database, new: NewLink) -> AskedLink:
    """Store a link, unless this browser has just asked for one, or too many were asked for."""
    address, now = folded(new.email), db.now()
    asked = db.all(
        "SELECT made_at FROM sign_in_links WHERE address = :address AND browser = :browser"
        " AND made_at > :since ORDER BY made_at",
        {"address": address, "browser": new.browser, "since": micros(now - LINKS_KEPT)},
    )
    times = [instant(made_at) for (made_at,) in asked]
    if times and now < (again_at := _again_at(times)):
        return AskedLink(None, times[-1] + LINKS_KEPT, again_at, is_early=True)
    to = _stored_link(db, new, address, now)
    return AskedLink(to, now + LINKS_KEPT, _again_at([*times, now]))


def _again_at(times: Sequence[datetime]) -> datetime:
    """When a browser that asked at these times may ask again: the limit of an address is its own, too."""
    soon = times[-1] + AGAIN_AFTER
    if len(times) < ADDRESS_LINKS_MAX:
        return soon
    return max(soon, times[-ADDRESS_LINKS_MAX] + LINKS_KEPT)


def _stored_link(db: Database, new: NewLink, address: str, now: datetime) -> str | None:
    """The address to mail the link to; None: nobody has it, or it was asked too often."""
    is_known = bool(
        db.all(
            "SELECT 1 FROM people JOIN keys ON keys.number = people.key"
            " WHERE people.address = :address AND keys.id = :key",
            {"address": address, "key": new.known_key},
        )
    )
    client = f"key {new.known_key}" if is_known else new.client
    values: dict[str, object] = {
        "address": address, "client": client, "since": micros(now - LINKS_KEPT),
    }  # fmt: skip
    of_accounts = (
        "address IN (SELECT address FROM people WHERE account IN"
        " (SELECT account FROM people WHERE address = :address))"
    )
    # A browser in which this person has signed in before is counted apart: nobody can shut it out.
    limits = [("client = :client", ADDRESS_LINKS_MAX if is_known else CLIENT_LINKS_MAX)] + [
        (f"page <> '{NOT_MAILED}' AND {which}", most)
        for which, most in (
            ("address = :address", ADDRESS_LINKS_MAX), (of_accounts, ACCOUNT_LINKS_MAX),
        )
        if not is_known
    ]  # fmt: skip
    counts = [
        db.all(
            "SELECT count(*) FROM sign_in_links WHERE browser IS NOT NULL AND made_at > :since"
            f" AND {which}",
            values,
        )[0][0]
        for which, _ in limits
    ]
    are_reached = [count >= most for count, (_, most) in zip(counts, limits, strict=True)]
    if are_reached[0]:
        return None
    _insert(
        db,
        {
            "sha256": new.sha256, "address": address, "person": None, "browser": new.browser,
            "client": client, "page": NOT_MAILED if any(are_reached) else new.page, "now": micros(now),
            "until": micros(now + LINKS_KEPT),
        },
    )  # fmt: skip
    known = db.all("SELECT address FROM people WHERE address = :address LIMIT 1", values)
    return known[0][0] if known and not any(are_reached) else None


def add_invitation(db: Database, sha256: str, person_id: str) -> bool:
    """Store the link of an invitation, in place of an earlier one; False without such an invited person."""
    found = db.all(
        "SELECT address FROM people WHERE id = :id AND active_at IS NULL", {"id": person_id}
    )
    if not found:
        return False
    now = db.now()
    db.change("DELETE FROM sign_in_links WHERE person = :id", {"id": person_id})
    _insert(
        db,
        {
            "sha256": sha256, "address": found[0][0], "person": person_id, "browser": None,
            "client": "", "page": "/dashboard", "now": micros(now),
            "until": micros(now + INVITATIONS_KEPT),
        },
    )  # fmt: skip
    return True


def _insert(db: Database, values: dict[str, object]) -> None:
    db.change(
        "INSERT INTO sign_in_links (sha256, address, person, browser, client, page, made_at, until)"
        " VALUES (:sha256, :address, :person, :browser, :client, :page, :now, :until)",
        values,
    )


def find_link(db: Database, sha256: str, browser: str) -> Link | None:
    """Return a link that is good in this browser; it stays good."""
    rows = db.all(
        f"SELECT address, person, page, until FROM sign_in_links WHERE {USABLE}",
        {"sha256": sha256, "browser": browser, "now": micros(db.now())},
    )
    if not rows:
        return None
    ((address, person, page, until),) = rows
    return Link(address, person, page, instant(until))


def use_link(db: Database, sha256: str, browser: str) -> Link | None:
    """Return a link that is good in this browser, and is not afterwards, in whatever process."""
    link = find_link(db, sha256, browser)
    if link is None:
        return None
    deleted = db.change("DELETE FROM sign_in_links WHERE sha256 = :sha256", {"sha256": sha256})
    return link if deleted else None


class LinkStore(StorePart):
    """The part of the store that keeps links to sign in."""

    request_link = write(request_link)
    add_invitation = write(add_invitation)
    link = read(find_link)
    use_link = write(use_link)
