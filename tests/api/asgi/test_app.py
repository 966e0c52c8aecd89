"""The lifespan of the ASGI application: what it says at the start, and what it leaves at the end."""

import asyncio
import base64
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from mailprobe.api.asgi.app import ServiceApp
from mailprobe.api.asgi.listening import read_settings
from mailprobe.api.serve import links_of
from tests import warm_process
from tests.api.cli.test_serve import environment

KEY = base64.b64encode(bytes(32)).decode()


class Server:
    """The server's side of a lifespan; `said` are the messages that the application sends."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.app = ServiceApp(environ)
        self.said: list[Any] = []
        self.ending = trio.Event()
        self._changed = trio.Event()
        self._has_begun = False

    async def receive(self) -> Any:
        if not self._has_begun:
            self._has_begun = True
            return {"type": "lifespan.startup"}
        await self.ending.wait()
        return {"type": "lifespan.shutdown"}

    async def send(self, message: Any) -> None:
        self.said.append(message)
        self._changed.set()

    async def run(self) -> None:
        await self.app({"type": "lifespan"}, self.receive, self.send)

    async def started(self) -> None:
        await self._changed.wait()
        assert self.said == [{"type": "lifespan.startup.complete"}]

    async def get(self, path: str) -> tuple[int, bytes]:
        messages: list[Any] = []
        body = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if body:
                return body.pop()
            return await trio.sleep_forever()

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": [],
            "client": ("127.0.0.1", 4711), "server": ("127.0.0.1", 80), "extensions": {},
        }  # fmt: skip
        await self.app(scope, receive, send)
        return messages[0]["status"], b"".join(each["body"] for each in messages[1:])


def settings_in(place: Path, **more: str) -> dict[str, str]:
    return {
        "MAILPROBE_DATABASE": str(place / "mailprobe.db"),
        "MAILPROBE_ALLOW_PRIVATE": "1",
        **{f"MAILPROBE_{name}": text for name, text in more.items()},
    }


async def test_requests_are_served_between_startup_and_shutdown(tmp_path, capsys):
    server = Server(settings_in(tmp_path))
    assert (await server.get("/health"))[0] == 503
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await server.started()
        status, body = await server.get("/health")
        assert (status, json.loads(body)["ok"]) == (200, True)
        server.ending.set()
    assert server.said[-1] == {"type": "lifespan.shutdown.complete"}
    assert (await server.get("/health"))[0] == 503
    assert "http://127.0.0.1:8000/dashboard/welcome?token=" in capsys.readouterr().err


def serve(place: Path, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    words = ["mailprobe.api.cli", "serve", "--bind", "127.0.0.1:0"]
    return warm_process.run(words, cwd=place, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"LOG": "loud"},
        {"PLANS_FILE": "no-such-plans.toml"},
        {"DATABASE": "postgresql://127.0.0.1/x"},
        {"DATABASE": "/dev/null/x.db"},
        {"DATABASE": "no-database.txt"},
    ],
    ids=" ".join,
)
async def test_a_start_fails_with_the_line_that_serve_prints(settings, tmp_path, monkeypatch):
    (tmp_path / "no-database.txt").write_text("an old letter\n" * 100)
    monkeypatch.chdir(tmp_path)
    server = Server(settings_in(tmp_path, **settings))
    await server.run()
    env = {**environment(tmp_path), **settings_in(tmp_path, **settings)}
    done = await trio.to_thread.run_sync(serve, tmp_path, env)
    assert done.returncode in (1, 2)
    line = done.stderr.splitlines()[-1]
    assert line.startswith("mailprobe: ")
    assert server.said == [{"type": "lifespan.startup.failed", "message": line}]


@pytest.mark.parametrize(
    ("name", "bind"), [("TOOLS_BIND", "127.0.0.1:8081"), ("METRICS_BIND", "127.0.0.1:9")]
)
async def test_a_listener_that_only_serve_has_is_refused(name, bind, tmp_path):
    server = Server(settings_in(tmp_path, **{name: bind}))
    await server.run()
    [failed] = server.said
    assert failed["type"] == "lifespan.startup.failed"
    assert failed["message"].startswith(f"mailprobe: MAILPROBE_{name} is '{bind}': only")
    assert read_settings({f"MAILPROBE_{name}": ""}, tmp_path).tools_bind is None


async def test_a_bug_in_the_start_fails_it(tmp_path, monkeypatch, caplog):
    """hypercorn would go on without a service after any other exception."""
    monkeypatch.setattr("mailprobe.api.asgi.app.check_database", lambda settings: 1 / 0)
    server = Server(settings_in(tmp_path))
    await server.run()
    [failed] = server.said
    assert failed["type"] == "lifespan.startup.failed"
    assert "ZeroDivisionError" in failed["message"]
    assert [record.message for record in caplog.records] == ["crashed"]


def test_a_server_on_asyncio_is_refused(tmp_path):
    server = Server(settings_in(tmp_path))
    asyncio.run(server.run())
    [failed] = server.said
    assert "--worker-class trio" in failed["message"]


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"MAILPROBE_BIND": "127.0.0.1:8080"}, "http://127.0.0.1:8080"),
        ({"MAILPROBE_BASE_URL": "https://verify.example.org"}, "https://verify.example.org"),
    ],
)
def test_links_lead_to_where_hypercorn_listens(environ, url, tmp_path):
    assert links_of(read_settings(environ, tmp_path)).base_url == url
