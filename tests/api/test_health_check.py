"""The health check: what each kind of service makes of its exit code and its line."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mailprobe.api import health_check
from mailprobe.api.setting_values import read_bind


@contextmanager
def answering(octets: bytes | None) -> Iterator[str]:
    """A server that sends this to each client and hangs up; with None it says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    client, _ = listener.accept()
                    if octets is None:
                        held.append(client)
                        continue
                    client.recv(4096)
                    client.sendall(octets)
                    client.close()
            except OSError:
                pass  # the listener is closed

        held: list[socket.socket] = []
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for client in held:
            client.close()


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **environ: str
) -> tuple[int, str]:
    monkeypatch.setattr("os.environ", environ)
    return health_check.main(), capsys.readouterr().err


def test_a_service_that_is_well_is_healthy(monkeypatch, capsys) -> None:
    with answering(http(b'{"ok":true,"timestamp":1}')) as bind:
        assert run(monkeypatch, capsys, MAILPROBE_BIND=bind) == (0, "")


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (http(b'{"ok":false,"timestamp":1}'), "is not well"),
        (http(b'{"ok":"true"}'), "is not well"),  # another program's
        (http(b"[]"), "is not well"),
        (http(b"{}", b"404 Not Found"), "is not well"),
        (http(b"<html>"), "another program"),
        (http(b"\xff\xfe"), "another program"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "another program"),
        (b"mailprobe: all is well\n\x1b[2J\n", "another program"),  # never printed
        (b"", "did not answer"),
        (None, "did not answer"),  # silent
    ],
)
def test_anything_but_our_healthy_service_is_unhealthy(monkeypatch, capsys, octets, why) -> None:
    monkeypatch.setattr(health_check, "TIMEOUT_S", 0.5)
    began = time.monotonic()
    with answering(octets) as bind:
        code, line = run(monkeypatch, capsys, MAILPROBE_BIND=bind)
    assert (code, line.count("\n")) == (1, 1)
    assert why in line
    assert time.monotonic() - began < 5


def test_the_health_check_uses_the_bind_of_the_settings_file(
    monkeypatch, capsys, tmp_path: Path
) -> None:
    with answering(http(b'{"ok":true}')) as bind:
        file = tmp_path / "mailprobe.toml"
        file.write_text(f'bind = "{bind}"\n')
        assert run(monkeypatch, capsys, MAILPROBE_CONFIG=str(file)) == (0, "")


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"MAILPROBE_BIND": "8080"}, "MAILPROBE_BIND is '8080'"),
        ({"MAILPROBE_BIND": "127.0.0.1:0"}, "MAILPROBE_BIND has port 0"),
        ({"MAILPROBE_CONFIG": "/nowhere.toml"}, "MAILPROBE_CONFIG names '/nowhere.toml'"),
    ],
)
def test_a_setting_that_cannot_be_checked_is_named(monkeypatch, capsys, environ, named) -> None:
    code, line = run(monkeypatch, capsys, **environ)
    assert (code, line.count("\n")) == (1, 1)
    assert line.startswith(f"mailprobe: {named}")


@pytest.mark.parametrize(
    ("bind", "asked"),
    [
        ("0.0.0.0:80", "127.0.0.1:80"),
        ("[::]:80", "[::1]:80"),
        ("10.1.2.3:80", "10.1.2.3:80"),
        ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ("localhost:80", "localhost:80"),
    ],
)
def test_the_health_check_uses_loopback_for_a_wildcard_address(bind: str, asked: str) -> None:
    assert str(read_bind(bind).loopback) == asked
