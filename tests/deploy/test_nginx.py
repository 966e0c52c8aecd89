"""nginx's configuration agrees with the composition; tests/peers runs it with a real nginx."""

import re
from pathlib import Path

import pytest

from mailprobe.api.settings import Settings
from tests.deploy.files import NGINX_FILE, OURS, SERVICES, environment_of_container

TEXT = NGINX_FILE.read_text("utf-8")
NGINX = SERVICES["nginx"]


def directives(text: str) -> set[str]:
    """Each directive of a line, without its comment and spare spaces."""
    lines = (re.sub(r"\s*#.*", "", line) for line in text.splitlines())
    return {" ".join(line.split()) for line in lines if line.strip().endswith(";")}


def test_streams_pass_through_line_by_line_and_bodies_reach_the_service() -> None:
    server, *locations = TEXT.partition("    server {")[2].split("        location ")
    assert {"proxy_buffering off;", "proxy_http_version 1.1;"} <= directives(server)
    assert len(locations) == 3
    for location in locations:
        name, _, inside = location.partition(" {")
        size = "client_max_body_size 257m;" if "lists" in name else "client_max_body_size 3m;"
        assert size in directives(inside)
        assert "proxy_set_header" not in inside, "one here would drop those of the server"
    assert {"keepalive 32;", "listen 443 ssl http2;"} <= directives(TEXT)


def test_nginx_leads_to_the_services() -> None:
    named = re.findall(r"^\s*server ([\w-]+):(\d+)", TEXT, re.MULTILINE)
    port = Settings.read(environment_of_container(), Path("/nowhere")).bind.port
    assert named == 2 * [(name, str(port)) for name in OURS]  # for a request, and for it again


def test_only_what_was_refused_before_it_was_counted_goes_to_a_second_service() -> None:
    first, again = (
        part.partition("\n        }")[0] for part in re.split(r"location (?:/|@again) {", TEXT)[1:]
    )
    assert {"proxy_intercept_errors on;", "error_page 503 = @again;"} <= directives(first)
    assert "proxy_next_upstream http_503 non_idempotent;" in directives(again)
    assert "proxy_next_upstream error timeout;" in directives(TEXT), "no POST that was sent"


@pytest.mark.parametrize("proxy", ["Caddyfile", "haproxy.cfg"])
def test_a_proxy_that_can_ask_asks_whether_a_service_is_ready(proxy: str) -> None:
    text = (NGINX_FILE.parent / proxy).read_text("utf-8")
    assert "/health?ready=1" in text
    assert all(f"{name}:8080" in text for name in OURS)


def test_compose_mounts_what_nginx_reads() -> None:
    mounts = dict(line.split(":")[:2] for line in NGINX["volumes"])
    assert mounts["../nginx.conf"] == "/etc/nginx/nginx.conf"
    assert f"ssl_certificate {mounts['./tls']}/fullchain.pem;" in directives(TEXT)
    assert f"ssl_certificate_key {mounts['./tls']}/privkey.pem;" in directives(TEXT)
    assert NGINX["ports"] == ["443:443"]


def test_an_unprivileged_nginx_can_listen_and_write() -> None:
    assert NGINX["user"] == "101:101"
    assert NGINX["sysctls"] == {"net.ipv4.ip_unprivileged_port_start": 0}
    assert [line.split(":")[0] for line in NGINX["tmpfs"]] == ["/tmp"]  # of mode 1777 everywhere
    assert "pid /tmp/nginx.pid;" in NGINX["command"][-1]
    assert not re.search(r"^\s*(user|pid|\w+_temp_path) ", TEXT, re.MULTILINE)


def test_the_log_has_neither_queries_nor_headers() -> None:
    (form,) = re.findall(r"log_format short '(.*)';", TEXT)
    assert set(re.findall(r"\$\w+", form)) == {
        "$time_iso8601", "$remote_addr", "$request_method", "$uri", "$status",
        "$request_time", "$upstream_addr",
    }  # fmt: skip
    assert re.findall(r"access_log \S+ (\w+);", TEXT) == ["short"]
