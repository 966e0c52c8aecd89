"""Keys on their way from the form that made them to the page that shows them.

The store has only their hashes, and the page is another request (after a redirect, so that
a reload makes no second key), perhaps of another process. So the browser that asked for the
keys carries them there, in a cookie that scripts cannot read. It is signed with its sign-in's
key, so that no other site can plant keys of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from itsdangerous import BadData, URLSafeTimedSerializer
from quart import Response, request

from mailprobe.storage.records import Caller
from mailprobe.storage.store import Store

COOKIE = "mailprobe_shown"
KEPT_S = 3600  # a reload shows them again, until they are saved


class ShownKeys(msgspec.Struct, frozen=True):
    """What is shown; the provisioning key only with the first keys of an account."""

    key: str = ""
    provisioning_key: str = ""
    account_id: str = ""  # whose they are, where the operator made them


NO_KEYS = ShownKeys()


@dataclass(frozen=True, slots=True)
class KeyCookie:
    """The cookie of the page at `path`."""

    store: Store
    path: str
    is_https: bool
    kept_s: int = KEPT_S

    @property
    def _signed(self) -> URLSafeTimedSerializer:
        secret = self.store.derived_key("shown keys")
        signer = {"digest_method": sha256, "key_derivation": "hmac"}
        return URLSafeTimedSerializer(secret, self.path, signer_kwargs=signer)

    def put(self, response: Response, caller: Caller, keys: ShownKeys) -> Response:
        """Let the page show these keys; without any, forget those before."""
        if keys == NO_KEYS:
            response.delete_cookie(COOKIE, path=self.path, httponly=True, samesite="Lax")
            return response
        value = self._signed.dumps({"by": caller.key.id, **msgspec.to_builtins(keys)})
        response.set_cookie(
            COOKIE, value, max_age=self.kept_s, path=self.path,
            httponly=True, samesite="Lax", secure=self.is_https,
        )  # fmt: skip
        return response

    def read(self, caller: Caller) -> ShownKeys:
        """The keys that this sign-in's page has to show; none are the usual case."""
        cookie = request.cookies.get(COOKIE)
        if not cookie:
            return NO_KEYS
        try:
            words: Mapping[str, str] = self._signed.loads(cookie, max_age=self.kept_s)
        except BadData:
            return NO_KEYS
        if words.get("by") != caller.key.id:
            return NO_KEYS
        return ShownKeys(*(words.get(name, "") for name in ShownKeys.__struct_fields__))
