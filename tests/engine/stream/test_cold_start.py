"""Work that an engine defers until its first query is sent, and then does."""

import itertools
import subprocess
import sys

import pytest
import trio

from mailprobe.engine import EngineSettings, open_engine
from mailprobe.engine.lists.lists import LongList, load_lists
from mailprobe.engine.smtp.replies.rules import Pattern, Rules, load_rules
from mailprobe.engine.stream import engine as engine_module


def left_to_compile(rules: Rules) -> int:
    patterns = (p for rule in rules.rules for p in (rule.enhanced, rule.text, rule.link))
    return sum(1 for pattern in patterns if pattern is not None and "compiled" not in vars(pattern))


class Silence:
    """A resolver that never answers."""

    async def exchange(self, url: str, query: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError


async def test_an_engine_compiles_its_rules_soon_after_it_opened(autojump_clock, monkeypatch):
    rules = load_rules()
    monkeypatch.setattr(engine_module, "standard_rules", lambda: rules)
    async with open_engine(EngineSettings(), transport=Silence()):
        assert left_to_compile(rules) > 50
        await trio.sleep(2 * engine_module.COMPILE_AFTER_S)
        await trio.testing.wait_all_tasks_blocked()
        assert left_to_compile(rules) == 0


async def test_nothing_waits_for_more_than_one_pattern(autojump_clock, monkeypatch):
    """Other tasks run between two of them."""
    rules = load_rules()
    monkeypatch.setattr(engine_module, "standard_rules", lambda: rules)
    compiled: list[str] = []
    seen: list[int] = []
    compile_one = Pattern.compile

    def compile_(pattern: Pattern) -> bool:
        compiled.append(pattern.pattern)
        return compile_one(pattern)

    monkeypatch.setattr(Pattern, "compile", compile_)
    async with open_engine(EngineSettings(), transport=Silence()):
        await trio.sleep(engine_module.COMPILE_AFTER_S)
        while left_to_compile(rules):
            seen.append(len(compiled))
            await trio.lowlevel.checkpoint()
    steps = [after - before for before, after in itertools.pairwise(seen)]
    assert len(steps) > 50
    assert max(steps) <= 2


async def test_an_engine_that_closes_at_once_compiles_nothing(autojump_clock, monkeypatch):
    rules = load_rules()
    monkeypatch.setattr(engine_module, "standard_rules", lambda: rules)
    async with open_engine(EngineSettings(), transport=Silence()):
        pass
    assert left_to_compile(rules) > 50


def test_before_workers_fork_everything_is_made(monkeypatch: pytest.MonkeyPatch):
    rules = load_rules()
    monkeypatch.setattr(engine_module, "standard_rules", lambda: rules)
    lists = load_lists()
    monkeypatch.setattr(engine_module, "lists_of", lambda folder: lists)
    make, made = LongList.names, list[LongList]()

    def watched(names: LongList) -> frozenset[str]:
        made.append(names)
        return make(names)

    monkeypatch.setattr(LongList, "names", watched)
    engine_module.load_rules_and_lists()
    assert left_to_compile(rules) == 0
    assert made == [lists.disposable]


def test_the_package_alone_imports_no_layer():
    """`mailprobe account` reads the settings, which include the engine's."""
    script = (
        "import sys, mailprobe.engine.settings\n"
        "assert not {'trio', 'mailprobe.engine.stream.scheduler', 'mailprobe.engine.dns.messages'} & set(sys.modules)\n"
        "from mailprobe.engine import open_engine, EngineSettings, Verdict, EngineStatistics\n"
        "assert mailprobe.engine.open_engine is open_engine\n"
        "assert not hasattr(mailprobe.engine, 'nothing')\n"
        "assert all(getattr(mailprobe.engine, name) for name in mailprobe.engine.__all__)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
