"""The composition: what it refers to exists, it allows little, and nginx waits for one service."""

import ipaddress
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mailprobe.api.settings import Settings
from mailprobe.bench.load.service_process import ServiceProcess, start_service
from tests.deploy.files import (
    COMPOSE,
    COMPOSE_FILE,
    NGINX_FILE,
    OURS,
    ROOT,
    SERVICES,
    SINGLE,
    SINGLE_FILE,
    STOPPING_S,
    environment_of_container,
)
from tests.warm_lab import start_lab

# https://github.com/compose-spec/compose-spec/blob/main/spec.md: of what it knows, what is used
KNOWN = {
    "build", "cap_add", "cap_drop", "command", "depends_on", "environment", "extra_hosts",
    "healthcheck", "image", "init", "mem_limit", "networks", "pids_limit", "ports", "read_only",
    "restart", "secrets", "security_opt", "shm_size", "stop_grace_period", "sysctls", "tmpfs",
    "ulimits", "user", "volumes",
}  # fmt: skip
FOLDER = COMPOSE_FILE.parent
NGINX = SERVICES["nginx"]
[ALONE] = SINGLE["services"].values()
START_S = 20.0
NEVER_S = 3.0  # nginx asks once a second


def test_compose_has_all_that_it_refers_to() -> None:
    assert set(COMPOSE) <= {"name", "services", "networks", "volumes", "secrets", "x-service"}
    for name, each in SERVICES.items():
        assert set(each) <= KNOWN, name
        assert set(each["networks"]) <= set(COMPOSE["networks"])
        assert set(each.get("secrets", [])) <= set(COMPOSE["secrets"])
        assert set(each.get("depends_on", ())) <= set(SERVICES)
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            made = source == "./tls"  # by the operator: the file's head says so
            anonymous = source == volume  # of this container alone
            assert made or anonymous or source in COMPOSE["volumes"] or (FOLDER / source).exists()
    build = OURS["mailprobe-1"]["build"]
    assert (FOLDER / build / "Dockerfile").samefile(ROOT / "Dockerfile")


def test_one_service_needs_no_tls_no_database_and_no_secret(tmp_path: Path) -> None:
    assert set(SINGLE) == {"name", "services", "volumes"}
    assert set(ALONE) <= KNOWN - {"secrets", "depends_on", "networks"}
    given = dict(line.split("=", 1) for line in ALONE["environment"] if "=" in line)
    settings = Settings.read({**environment_of_container(), **given}, tmp_path)
    assert (settings.tools_bind, settings.secret_key) == (None, None)
    assert ALONE["ports"] == [f"127.0.0.1:{settings.bind.port}:{settings.bind.port}"]
    assert ALONE["volumes"] == ["data:/data", "/tmp"]
    assert (SINGLE_FILE.parent / ALONE["build"] / "Dockerfile").is_file()


def test_uploads_have_room_on_disk() -> None:
    """tmpfs is memory; and podman knows no owner of one."""
    for each in (ALONE, *OURS.values()):
        assert "/tmp" in each["volumes"]
        assert "tmpfs" not in each
    assert "uid=" not in COMPOSE_FILE.read_text("utf-8")


@pytest.mark.parametrize("name", [*SERVICES, "alone"])
def test_a_container_may_do_little(name: str) -> None:
    each = SERVICES.get(name, ALONE)
    assert each["read_only"] is True
    assert each["cap_drop"] == ["ALL"]
    assert each["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in each
    if name != "postgres":
        assert "cap_add" not in each
        assert "mem_limit" in each
    assert ("ports" in each) == (name in ("nginx", "alone"))


def test_a_service_starts_when_its_database_is_healthy() -> None:
    for each in OURS.values():
        assert each["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert "healthcheck" in SERVICES["postgres"]


def test_the_store_is_reached_by_the_services_alone() -> None:
    assert SERVICES["postgres"]["networks"] == ["store"]
    assert COMPOSE["networks"]["store"] == {"internal": True}
    assert "store" not in NGINX["networks"]


def test_no_secret_is_in_the_file() -> None:
    text = COMPOSE_FILE.read_text("utf-8")
    for each in SERVICES.values():
        for name in each.get("environment", {}):
            assert not re.search(r"PASSWORD$|SECRET|KEY", name), name
    assert not re.search(r"postgresql://\w+:[^%]", text)


def test_the_file_of_secrets_is_one_that_the_service_reads(tmp_path: Path) -> None:
    """The commands at the head of compose.yaml, as they are there."""
    head = COMPOSE_FILE.read_text("utf-8").partition("\nname:")[0]
    lines = [line[4:] for line in head.splitlines() if line.startswith("#   ")]
    script = "\n".join(lines).replace("chown 10001", "true")
    script = script.replace("openssl rand -hex 24", "echo 0123456789abcdef")
    key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    script = script.replace("openssl rand -base64 32", f"echo {key}")
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True)
    secrets = {name: tmp_path / each["file"] for name, each in COMPOSE["secrets"].items()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets.values())
    for ours in OURS.values():
        environment = {**environment_of_container(), **ours["environment"]}
        assert environment["MAILPROBE_CONFIG"] == "/run/secrets/mailprobe.toml"
        environment |= {
            "MAILPROBE_CONFIG": str(secrets["mailprobe.toml"]),
            "MAILPROBE_SMTP_HELO": "probe.example.org",
            "MAILPROBE_BASE_URL": "https://mailprobe.example.org",
        }
        settings = Settings.read(environment, tmp_path)
        assert (
            settings.database == "postgresql://mailprobe:0123456789abcdef@postgres:5432/mailprobe"
        )
        assert settings.secret_key == bytes(range(32))
        assert settings.tools_bind is None


def test_a_stop_waits_for_the_service() -> None:
    for each in (ALONE, *OURS.values()):
        assert int(each["stop_grace_period"].removesuffix("s")) > STOPPING_S


# nginx and the services


def test_nginx_knows_the_address_of_a_service_that_is_away() -> None:
    """A name that cannot be resolved ends nginx, and a resolved one is never looked up again."""
    front = COMPOSE["networks"]["front"]
    assert front["internal"] is True
    addresses = {
        name: each["networks"]["front"]["ipv4_address"]
        for name, each in SERVICES.items()
        if "front" in each["networks"]
    }
    assert set(addresses) == {*OURS, "nginx"}
    assert len(set(addresses.values())) == 3
    (subnet,) = [each["subnet"] for each in front["ipam"]["config"]]
    hosts = list(ipaddress.ip_network(subnet).hosts())[1:]  # the first is the gateway's
    assert {ipaddress.ip_address(each) for each in addresses.values()} <= set(hosts)
    del addresses["nginx"]
    assert NGINX["extra_hosts"] == [f"{name}:{address}" for name, address in addresses.items()]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with start_lab() as lab, start_service(lab.env, tmp_path_factory.mktemp("s")) as running:
        yield running


def start_nginx(tmp_path: Path, places: Mapping[str, str], timeout_s: float) -> str:
    """Run nginx's command with a program in its place; return that program's arguments.

    `places` has the address of each service. Raises TimeoutExpired if nginx is not started.
    """
    assert NGINX["depends_on"] == list(OURS)  # they are started, and none is waited for
    assert NGINX["init"] is True  # a shell that waits as process 1 would ignore a stop
    shell, option, script = NGINX["command"]
    for name, place in places.items():
        assert f"http://{name}:8080/health" in script
        script = script.replace(f"{name}:8080", place)
    for ours, theirs in {"/tmp/": f"{tmp_path}/", "/etc/nginx/nginx.conf": str(NGINX_FILE)}.items():
        assert ours in script
        script = script.replace(ours, theirs)
    script = script.replace("$$", "$")  # as compose does
    program = tmp_path / "nginx"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [shell, option, script], env=env, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


AWAY = "127.0.0.1:1"


def test_nginx_starts_when_one_service_is_healthy(tmp_path: Path, service: ServiceProcess) -> None:
    for first, second in ((service.host, AWAY), (AWAY, service.host), (service.host,) * 2):
        places = {"mailprobe-1": first, "mailprobe-2": second}
        started = start_nginx(tmp_path, places, START_S)
        own = f"{tmp_path}/nginx"
        assert started == f"-c {own}.conf -g daemon off; pid {own}.pid;"
        paths = (tmp_path / "paths.conf").read_text().splitlines()
        assert paths[0] == f"client_body_temp_path {tmp_path}/client_body;"
        text = NGINX_FILE.read_text("utf-8")
        included = text.replace("\nhttp {", f"\nhttp {{ include {tmp_path}/paths.conf;")
        assert (tmp_path / "nginx.conf").read_text("utf-8") == included != text


def test_nginx_waits_while_no_service_is_healthy(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        start_nginx(tmp_path, {"mailprobe-1": AWAY, "mailprobe-2": AWAY}, NEVER_S)


def test_nginx_is_healthy_when_a_service_is() -> None:
    check: Any = NGINX["healthcheck"]["test"]
    assert check[:2] == ["CMD", "curl"]
    assert {"-fsSk", "https://127.0.0.1/health?ready=1"} <= set(check)
