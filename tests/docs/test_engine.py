"""The limits in dev/engine.md are the code's."""

from importlib import import_module

from mailprobe.api.pages.about_probes import HEADER, rows
from mailprobe.engine.settings import EngineSettings
from tests.docs.pages import bare, table_of


def test_limits_are_the_codes() -> None:
    for name, value, _ in table_of("dev/engine.md", "constant", "value", "why"):
        module, _, constant = bare(name).rpartition(".")
        assert getattr(import_module(module), constant) == float(value), name


def test_the_documented_load_on_a_mail_host_is_the_engines() -> None:
    """The page made for administrators has the engine's constants in it."""
    written = table_of("docs/probes.md", *HEADER)
    assert [tuple(row) for row in written] == list(rows(EngineSettings()))
