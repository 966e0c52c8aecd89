"""The secret key, and where secrets must not appear."""

import base64

import pytest

from mailprobe.storage import open_store
from mailprobe.storage.contract import StoreBroken, shown
from tests.peers.postgres.database import open_once, query
from tests.storage.fixed_clock import SECRET, make_caller, order, promise


async def test_the_secret_key_must_be_given_and_the_same(url: str):
    with pytest.raises(StoreBroken, match="MAILPROBE_SECRET_KEY"):
        await open_once(url, None)
    await open_once(url)
    with pytest.raises(StoreBroken, match="another MAILPROBE_SECRET_KEY"):
        await open_once(url, bytes(32))


async def test_no_secret_is_in_the_database(url: str):
    """A reader of the tables sees only what is encrypted."""
    async with open_store(url, secret_key=SECRET) as store:
        caller = await make_caller(store)
        await promise(store, caller, order(secret="DoNotWriteThis"))
    dump = [
        str(row)
        for table in ("store_properties", "jobs", "keys", "idempotency_records")
        for row in query(url, f"SELECT t::text FROM {table} AS t")
    ]
    assert any("ann+1@shop.test" in line for line in dump)
    for secret in (b"DoNotWriteThis", SECRET):
        for form in (secret.decode("latin-1"), secret.hex(), base64.b64encode(secret).decode()):
            assert not any(form in line for line in dump)


def test_the_url_is_shown_without_what_is_secret():
    assert shown("postgresql://u:pw@h:1/n?sslpassword=x") == "postgresql://u@h:1/n"
    assert shown("postgresql:///n") == "postgresql:///n"
