"""Arrays as parameters: PostgreSQL reads the values that we wrote."""

from contextlib import closing
from datetime import date
from typing import Any
from uuid import UUID

import pytest

from mailprobe.bench.load.private_postgres import PrivatePostgres
from mailprobe.storage.postgres.driver.server import PostgresServer
from tests.storage.fixed_clock import NOON


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            "text",
            [
                "",
                "NULL",
                "null",
                None,
                '"',
                "\\",
                '\\"',
                "{a,b}",
                " a ",
                "\0",
                "\x01",
                "\x010",
                "ü",
            ],
        ),
        ("text", ["'; DROP TABLE usage; --", "\n\r\t", "\U0001f4ec", ","]),
        ("text", []),
        ("bigint", [0, -1, 2**63 - 1, -(2**63), None]),
        ("bigint", [1]),
        ("boolean", [True, False, None]),
        ("bytea", [b"", b'\0\\"{,}\xff', None]),
        ("date", [date(1, 1, 1), NOON.date(), None]),
        ("uuid", [UUID(int=0), UUID(int=2**128 - 1), None]),
    ],
)
def test_arrays_are_read_as_they_were_written(
    server: PrivatePostgres, kind: str, values: list[Any]
):
    with closing(PostgresServer(server.url).connect()) as db:
        [(read,)] = db.execute(f"SELECT %s::{kind}[]", [values]).fetchall()
        assert read == values
        for value in values:
            [(same,)] = db.execute("SELECT %s = ANY(%s)", [value, [value]]).fetchall()
            assert same is (None if value is None else True)


def test_a_type_that_has_no_array_is_refused(server: PrivatePostgres):
    with (
        closing(PostgresServer(server.url).connect()) as db,
        pytest.raises(TypeError, match="complex"),
    ):
        db.execute("SELECT %s::text[]", [[1j]])
