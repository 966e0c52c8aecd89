"""Roles of people: for each route of the dashboard the least role that may use it; and operators.

The frame refuses every request whose route needs more than the sign-in's role, and a route that is
not in the table is refused to everybody. Who signed in with a provisioning key is an owner.
"""

from collections.abc import Mapping

from mailprobe.storage.people.people import Role
from mailprobe.storage.records import Account
from mailprobe.storage.store import Store

OPERATOR = "/dashboard/operator"  # the pages of accounts that run the service
ACCOUNTS = f"{OPERATOR}/accounts"

ROLES: tuple[Role, ...] = ("viewer", "member", "owner")  # each may what those before it may
# What the documentation and the page of people say of each.
MEANINGS: Mapping[Role, str] = {
    "viewer": "Reads everything, changes nothing.",
    "member": "Verifies, and manages lists and keys.",
    "owner": "Also people, limits and the service.",
}

ANYONE = (  # before the sign-in
    "GET /dashboard/sign-in",
    "POST /dashboard/sign-in",
    "POST /dashboard/sign-in/mail",
    "GET /dashboard/sign-in/link",
    "POST /dashboard/sign-in/link",
    "POST /dashboard/sign-in/account",
    "GET /dashboard/sign-in/openid",
    "GET /dashboard/sign-in/openid/callback",
    "GET /dashboard/welcome",
    "POST /dashboard/welcome",
    "GET /dashboard/shared",
    "GET /dashboard/static/<name>",
    "GET /dashboard/",
    "GET /dashboard/<path:rest>",
)
_LIST, _JOB = "/dashboard/lists/<id>", "/dashboard/jobs/<id>"
_ROW = f"{_LIST}/rows/<int:place>/<int:number>"
_ACCOUNT = f"{ACCOUNTS}/<id>"
_LEAST: Mapping[Role, tuple[str, ...]] = {
    "viewer": (
        "GET /dashboard",
        "GET /dashboard/now",
        "GET /dashboard/start",
        "GET /dashboard/start/ticks",
        "GET /dashboard/try",
        "GET /dashboard/lists",
        f"GET {_LIST}",
        f"GET {_LIST}/events",
        f"GET {_LIST}/domains",
        f"GET {_LIST}/table",
        f"GET {_LIST}/results",
        f"GET {_ROW}",
        f"GET {_LIST}/share",
        "GET /dashboard/jobs",
        f"GET {_JOB}",
        f"GET {_JOB}/progress",
        "GET /dashboard/keys",
        "GET /dashboard/caps",
        "GET /dashboard/caps/test",
        "GET /dashboard/people",
        "GET /dashboard/audit",
        "GET /dashboard/audit/entries.csv",
        "POST /dashboard/sign-out",
    ),
    "member": (
        "GET /dashboard/start/keys.env",
        "GET /dashboard/keys/made.env",
        "POST /dashboard/start/saved",
        "POST /dashboard/start/sample",
        "POST /dashboard/try",
        "POST /dashboard/bounces/forget",
        "POST /dashboard/lists",
        f"POST {_LIST}/column",
        f"POST {_LIST}/<any(pause, resume, cancel):word>",
        f"POST {_LIST}/mail",
        f"POST {_LIST}/delete",
        f"POST {_LIST}/share",
        f"POST {_LIST}/share/<int:number>/end",
        f"POST {_ROW}/conversation",
        "POST /dashboard/jobs/test",
        f"POST {_JOB}/resend",
        "POST /dashboard/keys",
        "POST /dashboard/keys/saved",
        "POST /dashboard/keys/<id>/revoke",
        "POST /dashboard/documentation-key",
    ),
    "owner": (
        "POST /dashboard/caps",
        "POST /dashboard/caps/test",
        "POST /dashboard/people",
        "POST /dashboard/people/<id>/invite",
        "POST /dashboard/people/<id>/role",
        "POST /dashboard/people/<id>/remove",
        "POST /dashboard/people/sign-ins/<id>/end",
        f"GET {OPERATOR}",
        f"POST {OPERATOR}/unpause",
        f"POST {OPERATOR}/egresses/<name>/pause",
        f"POST {OPERATOR}/egresses/<name>/resume",
        f"GET {OPERATOR}/checks",
        f"POST {OPERATOR}/checks",
        f"GET {ACCOUNTS}",
        f"POST {ACCOUNTS}",
        f"POST {ACCOUNTS}/saved",
        f"GET {_ACCOUNT}",
        f"POST {_ACCOUNT}/plan",
        f"POST {_ACCOUNT}/delete",
        f"POST {_ACCOUNT}/keys",
        f"POST {_ACCOUNT}/keys/<key>/revoke",
    ),
}
LEAST: Mapping[str, Role] = {route: role for role, routes in _LEAST.items() for route in routes}


def may(role: Role, route: str) -> bool:
    """Whether the role may ask this route: its method and its path as it is registered."""
    least = LEAST.get(route)
    return least is not None and ROLES.index(role) >= ROLES.index(least)


class Operators:
    """Accounts that run the service: those that a setting names, else the first that was created.

    The first account is made by the link that only the operator of the machine reads, or by a
    command there. It stays the first when it is deleted, so that no other account becomes the
    operator's by a deletion.
    """

    def __init__(self, store: Store, named: frozenset[str] | None) -> None:
        """`named`: ids or e-mail addresses in lower case; None if the setting is not there."""
        self._store = store
        self._named = named
        self._first: str | None = None  # its id, which never changes

    async def includes(self, account: Account) -> bool:
        """Whether this account is an operator's. Raises StoreUnavailable."""
        if self._named is not None:
            return bool({account.id.lower(), account.email.lower()} & self._named)
        if self._first is None:
            self._first = await self._store.first_account_id()
        return account.id == self._first
