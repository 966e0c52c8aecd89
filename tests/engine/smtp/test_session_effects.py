"""A session neither waits nor calls its host back: what it changes outside it is returned as values."""

import ast
import inspect
from pathlib import Path

import pytest

from mailprobe.engine.smtp import session as package
from mailprobe.engine.smtp.session.effects import HeldBack
from mailprobe.engine.smtp.session.host import SessionHost
from tests.test_layers import IMPURE

MODULES = sorted(Path(package.__file__).parent.glob("*.py"))


def test_no_module_of_a_session_waits():
    waits = [
        f"{path.name}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.AsyncFunctionDef | ast.Await)
    ]
    assert waits == []


def test_no_module_of_a_session_reads_a_clock_or_a_socket():
    """Octets and times are handed in; so a session can be driven without trio."""
    imported = {
        name.partition(".")[0]
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
        if name is not None
    }
    assert not imported & IMPURE
    assert not [path.name for path in MODULES if "smtp.connection" in path.read_text("utf-8")]


def test_a_session_reads_its_host_and_changes_nothing_there():
    changing = [
        name
        for name, method in inspect.getmembers(SessionHost, inspect.isfunction)
        if not name.startswith("_") and method.__annotations__["return"] is None
    ]
    assert changing == []


def test_an_effect_can_not_be_changed():
    effect = HeldBack(1)
    with pytest.raises(AttributeError):
        effect.count = 2  # type: ignore[misc]  # wrong on purpose
