"""The examples of docs/library.md run, over a fake network.

FastAPI, Django and aiohttp are not among our packages. Their examples run with stand-ins of a few
lines, which call what the frameworks are documented to call: that the library is used rightly is
shown, and that the frameworks still have these names is not.
"""

import asyncio
import atexit
import sys
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trio

from mailprobe import FullVerdict, Verdict, Verifier
from mailprobe.engine import engine_calls
from tests.docs.pages import ROOT, bare, blocks_of, table_of
from tests.engine.library_world import LibraryWorld

PAGE = "docs/library.md"
KNOWN, GONE = "known@shop.test", "gone@shop.test"
FIRST = 'verify("ann@example.org", helo_name'  # in the first example


@pytest.fixture(autouse=True)
def world(monkeypatch):
    world = LibraryWorld()
    monkeypatch.setattr(engine_calls, "open_engine", world.open_engine)
    return world


def example(imported: str, monkeypatch, **stubs: object) -> str:
    """The page's example that has this in it; the names stand in for the framework's modules."""
    for name, value in stubs.items():
        module = ModuleType(name.replace("_", "."))
        module.__dict__.update(vars(value))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    [text] = [block.text for block in blocks_of(ROOT / PAGE) if imported in block.text]
    return text


def execute(text: str) -> dict[str, object]:
    namespace: dict[str, object] = {"__name__": "example"}
    exec(compile(text, PAGE, "exec"), namespace)
    return namespace


def test_the_first_example(capsys, monkeypatch):
    execute(example(FIRST, monkeypatch))
    assert capsys.readouterr().out == "RED_LIGHT invalid no_mx None\n"


def test_the_script(capsys, monkeypatch, tmp_path):
    (tmp_path / "list").write_text(f"{KNOWN}\n{GONE}\n")
    monkeypatch.setattr(sys, "argv", ["script", str(tmp_path / "list")])
    execute(example("import sys", monkeypatch))
    assert sorted(capsys.readouterr().out.splitlines()) == [
        f"{GONE} RED_LIGHT no_mailbox",
        f"{KNOWN} GREEN_LIGHT accepted",
    ]


class StubOfFastAPI:
    """An application has a lifespan, a state, and routes by decorators."""

    def __init__(self, *, lifespan):
        self.lifespan, self.state, self.routes = lifespan, SimpleNamespace(), {}

    def post(self, path):
        return lambda function: self.routes.setdefault(path, function)


def test_fastapi(monkeypatch):
    stubs = SimpleNamespace(FastAPI=StubOfFastAPI, Request=object)
    app = execute(example("import FastAPI", monkeypatch, fastapi=stubs))["app"]
    assert isinstance(app, StubOfFastAPI)

    async def requests() -> list[object]:
        async with app.lifespan(app):
            request, view = SimpleNamespace(app=app), app.routes["/sign-up"]
            return [await view(email=email, request=request) for email in (KNOWN, GONE)]

    assert asyncio.run(requests()) == [
        {"accepted": True, "suggestion": None},
        {"accepted": False, "suggestion": None},
    ]


def test_django(monkeypatch, world):
    """JsonResponse holds a dictionary, and a request its POST."""
    with ExitStack() as at_exit:
        monkeypatch.setattr(atexit, "register", at_exit.callback)
        http = SimpleNamespace(JsonResponse=dict)
        text = example("django", monkeypatch, django=SimpleNamespace(), django_http=http)
        view = execute(text)["sign_up"]
        assert callable(view)
        found = [view(SimpleNamespace(POST={"email": email})) for email in (KNOWN, GONE)]
    assert [each["accepted"] for each in found] == [True, False]
    assert len(world.settings) == 1


class StubOfApplication(dict[object, object]):
    """An application is a mapping with contexts of clean-up, async generators, and routes."""

    def __init__(self) -> None:
        self.cleanup_ctx: list[Any] = []
        self.routes: dict[str, Any] = {}

    def add_routes(self, routes) -> None:
        self.routes.update(routes)


def test_aiohttp(monkeypatch):
    class Request(SimpleNamespace):
        async def post(self):
            return {"email": self.email}

    web = SimpleNamespace(
        AppKey=str,
        Application=StubOfApplication,
        json_response=dict,
        post=lambda path, view: (path, view),
    )
    text = example("aiohttp", monkeypatch, aiohttp=SimpleNamespace(web=web))
    app = execute(text)["app"]
    assert isinstance(app, StubOfApplication)

    async def requests() -> list[object]:
        [context] = [make(app) for make in app.cleanup_ctx]
        await anext(context)
        view = app.routes["/sign-up"]
        found = [await view(Request(app=app, email=email)) for email in (KNOWN, GONE)]
        assert await anext(context, None) is None
        return found

    assert asyncio.run(requests()) == [{"accepted": True}, {"accepted": False}]


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_trio_and_the_same_on_asyncio(loop, capsys, monkeypatch):
    text = example("import trio", monkeypatch)
    if loop == "asyncio":
        text = text.replace("with trio.move_on_after", "async with asyncio.timeout")
        text = text.replace("trio", "asyncio")
    main = execute(text)["main"]
    assert callable(main)
    if loop == "trio":
        trio.run(main, [KNOWN])
    else:
        asyncio.run(main([KNOWN]))
    assert capsys.readouterr().out == f"{KNOWN} GREEN_LIGHT\n"


def test_the_fields_and_methods_are_the_codes():
    own = FullVerdict.__struct_fields__[len(Verdict.__struct_fields__) :]
    assert tuple(bare(row[0]) for row in table_of(PAGE, "field", "what it is")) == own
    for cell, _ in table_of(PAGE, "method", "what it gives"):
        name = bare(cell).partition("(")[0]
        with Verifier(helo_name="probe.example.org") as verifier:
            assert hasattr(verifier, name)
