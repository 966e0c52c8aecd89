"""The limits in docs/engine.md are the code's."""

from importlib import import_module

from tests.docs.pages import bare, table_of


def test_limits_are_the_codes() -> None:
    for name, value, _ in table_of("docs/engine.md", "constant", "value", "why"):
        module, _, constant = bare(name).rpartition(".")
        assert getattr(import_module(module), constant) == float(value), name
