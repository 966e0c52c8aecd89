"""Every executor runs every command, and one method of the store makes it."""

import ast
import inspect
from typing import Any

import pytest

from mailprobe.storage import commands
from mailprobe.storage.database import StoreCommand
from mailprobe.storage.postgres import store as postgres
from mailprobe.storage.postgres import usage
from mailprobe.storage.sqlite import memory
from mailprobe.storage.sqlite import transactions as sqlite
from mailprobe.storage.store import Store

COMMANDS = {
    value
    for value in vars(commands).values()
    if inspect.isclass(value) and issubclass(value, StoreCommand) and value is not StoreCommand
}
PARTS = [part for part in Store.__mro__ if part is not object]
TABLES: dict[str, list[dict[Any, Any]]] = {
    "sqlite": [sqlite.WRITES, sqlite.READS, sqlite.CLAIMS],
    "memory": [memory.TRANSACTIONS],
    "postgres": [
        postgres.STEPS,
        dict.fromkeys([*usage.BATCHED, commands.LeaseConnections]),
    ],
}


@pytest.mark.parametrize("kind", TABLES)
def test_each_executor_has_each_command_once(kind: str):
    found = [command for table in TABLES[kind] for command in table]
    assert len(found) == len(set(found))
    assert set(found) == COMMANDS


def test_each_command_is_made_by_one_method_of_the_store():
    names = {command.__name__ for command in COMMANDS}
    made = [
        name
        for part in PARTS
        for node in ast.walk(ast.parse(inspect.getsource(part)))
        if isinstance(node, ast.Call)
        and (name := getattr(node.func, "attr", getattr(node.func, "id", ""))) in names
    ]
    assert sorted(made) == sorted(command.__name__ for command in COMMANDS)
