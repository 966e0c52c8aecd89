"""Authentication: from the Authorization header to the caller, or a refusal.

A header that cannot be one of our keys is refused by its form, without a query of the
store. The key is never repeated, neither in a response nor in a log.
"""

from base64 import b64decode

from mailprobe.storage.records import Caller, KeyKind
from mailprobe.storage.store import Store

from ..keys import PUBLISHABLE, SECRET, key_hash, well_formed
from ..refusals import InvalidKey, MissingKey, WrongKeyType

NO_BEARER = "The Authorization header is not a Bearer key of this service."
NO_TEST_KEYS = "This service is in production: it takes no test keys (sk_test_…)."
NOT_FOR_THIS = "A provisioning key does not verify; a standard key (sk_live_…) does."
ONLY_IN_A_PAGE = (
    "A publishable key (pk_…) is for POST /v1/forms/verify of a web page alone; a program on a server"
    " takes a standard key (sk_live_…)."
)
NOT_IN_A_PAGE = (
    "This is a secret key (sk_…), which must never be in a web page: everyone who opens the page can"
    " read it, and use the account with it. Revoke it if it is in one; a form takes a publishable"
    " key (pk_…)."
)


def _password(credentials: str) -> str:
    """The password of a Basic scheme (RFC 7617); empty if there is none."""
    try:
        return b64decode(credentials, validate=True).decode("ascii").partition(":")[2]
    except ValueError:  # binascii.Error is one, and UnicodeDecodeError
        return ""


async def authenticate(
    store: Store,
    authorization: str | None,
    wanted: KeyKind,
    *,
    takes_test_keys: bool = True,
    takes_basic: bool = False,
) -> Caller:
    """Return the key's owner if the key is active and of the wanted kind.

    With `takes_basic` the key may be the password of HTTP's Basic scheme, for clients that can
    set nothing but a URL. A test key does what its live one does, unless the service takes none.
    A publishable key is refused by its form where another kind is wanted. Raises MissingKey; InvalidKey, also
    for a provisioning key where a standard one is wanted, and a secret key where a publishable one
    is; WrongKeyType for a standard key on a management route; StoreUnavailable.
    """
    if authorization is None or not authorization.strip():
        raise MissingKey("publishable" if wanted == "form" else wanted)
    scheme, _, key = authorization.strip().partition(" ")
    key = key.strip()
    if wanted == "form" and key.startswith(SECRET):
        raise InvalidKey(NOT_IN_A_PAGE)
    if takes_basic and scheme.lower() == "basic":
        scheme, key = "bearer", _password(key)
    if scheme.lower() != "bearer" or not well_formed(key):
        raise InvalidKey(NO_BEARER)
    if wanted != "form" and key.startswith(PUBLISHABLE):
        raise InvalidKey(ONLY_IN_A_PAGE)
    caller = await store.caller(key_hash(key))
    if caller is None:
        raise InvalidKey()
    if caller.key.is_test and not takes_test_keys:
        raise InvalidKey(NO_TEST_KEYS)
    if caller.key.kind == wanted or (caller.key.is_test and wanted != "provisioning"):
        return caller
    if wanted == "standard":
        raise InvalidKey(NOT_FOR_THIS)
    raise WrongKeyType()
