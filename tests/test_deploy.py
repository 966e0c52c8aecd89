"""What is handed out to run the service with: that it is whole, agrees with the code, and is strict.

No engine of containers, no systemd and no nginx is needed here; what the files say is read.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mailprobe.api.cli import COMMANDS
from mailprobe.api.settings import TABLE, Settings
from mailprobe.bench.lab import start_lab
from mailprobe.bench.load.service_process import ServiceProcess, start_service

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SETTINGS = {f"MAILPROBE_{row.name}" for row in TABLE} | {"MAILPROBE_CONFIG"}
FILES = (
    ROOT / "Containerfile",
    ROOT / ".containerignore",
    ROOT / ".dockerignore",
    *sorted(path for path in DEPLOY.rglob("*") if path.is_file()),
)
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
STOPPING_S = 10  # from SIGTERM to the service's end: docs/operating.md


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_setting_that_is_named_is_one(path: Path) -> None:
    text = path.read_text("utf-8")
    assert set(re.findall(r"\bMAILPROBE_[A-Z_]+\b", text)) <= SETTINGS


# the container

STEPS = re.sub(r"\\\n", " ", (ROOT / "Containerfile").read_text("utf-8"))
STEPS_OF = [
    (line.split()[0], line.split(maxsplit=1)[1])
    for line in STEPS.splitlines()
    if line.strip() and not line.startswith("#")
]


def steps(kind: str) -> list[str]:
    return [" ".join(rest.split()) for name, rest in STEPS_OF if name == kind]


def test_the_container_knows_no_step_that_is_none() -> None:
    known = "FROM WORKDIR COPY RUN ENV USER VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD"
    assert {name for name, _ in STEPS_OF} <= set(known.split())
    assert steps("FROM") == [
        "python:3.13-slim AS build",
        "python:3.13-slim",
    ]


def copied() -> list[str]:
    own = [step.split() for step in steps("COPY") if not step.startswith("--from=")]
    return [name for words in own for name in words[:-1]]


def test_what_is_copied_exists_and_is_all_that_a_wheel_is_made_of() -> None:
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    [package] = [pattern.rstrip("*") for pattern in packages]
    needed = {package, *(path.name for path in (ROOT / package).iterdir() if path.is_symlink())}
    needed |= {"pyproject.toml", "setup.py", project["project"]["readme"], "requirements.lock"}
    needed |= {"examples/list.csv"}  # bench/lab has a link to it
    assert set(copied()) == needed


def test_nothing_but_what_is_copied_is_sent_to_whoever_builds() -> None:
    lines = (ROOT / ".containerignore").read_text("utf-8").splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())
    assert (ROOT / ".dockerignore").read_bytes() == (ROOT / ".containerignore").read_bytes()


def test_packages_are_what_is_locked_and_nothing_else() -> None:
    """By hashes from the lock; after that nothing is asked of anybody."""
    pips = [part for step in steps("RUN") for part in step.split(" && ") if part.startswith("pip ")]
    first, *others = pips
    assert {"--require-hashes", "requirements.lock", "--no-cache-dir"} <= set(first.split())
    assert len(others) == 3
    for pip in others:
        assert {"--no-index", "--no-cache-dir"} <= set(pip.split()), pip
    assert "index-url" not in STEPS
    assert "://" not in STEPS.replace("postgresql://", "")


def test_what_a_build_needs_is_locked() -> None:
    """`--no-build-isolation` finds setuptools among the locked ones."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    assert re.search(r"^setuptools==", lock, re.MULTILINE)


def test_the_container_runs_as_nobody_in_particular() -> None:
    (user,) = steps("USER")
    (data,) = [step for step in steps("RUN") if step.endswith("/data")]
    uid, gid = user.split(":")
    assert int(uid) >= 1000
    assert f"-o {uid} -g {gid} -m 0700" in data
    assert STEPS.index("/data\n") < STEPS.index("\nVOLUME"), "what comes after a VOLUME is lost"
    assert steps("STOPSIGNAL") == ["SIGTERM"]


def test_the_container_does_a_command_of_ours_on_a_database_that_stays() -> None:
    (entry,), (command,) = steps("ENTRYPOINT"), steps("CMD")
    assert json.loads(entry) == ["mailprobe"]
    assert [json.loads(command)[0] in COMMANDS, len(json.loads(command))] == [True, 1]
    settings = Settings.read(environment_of_container(), Path("/nowhere"))
    assert Path(*steps("WORKDIR")[-1:], settings.database) == Path("/data/mailprobe.db")
    assert (settings.bind.port, steps("VOLUME")) == (8080, ["/data"])
    assert str(settings.bind.port) in steps("EXPOSE")[0].split()


def environment_of_container() -> dict[str, str]:
    (text,) = steps("ENV")
    return dict(word.split("=", 1) for word in shlex.split(text))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with start_lab() as lab, start_service(lab.env, tmp_path_factory.mktemp("s")) as running:
        yield running


def health_check(port: int) -> int:
    (step,) = steps("HEALTHCHECK")
    python, *words = json.loads(step.partition(" CMD ")[2])
    assert python == "python"
    words = [word.replace("8080", str(port)) for word in words]
    env = {**os.environ, "http_proxy": "http://127.0.0.1:1"}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True).returncode


def test_the_health_check_is_of_the_service(service: ServiceProcess) -> None:
    assert health_check(int(service.url.rpartition(":")[2])) == 0
    assert health_check(1) != 0


# compose

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if name.startswith("mailprobe")}
# https://github.com/compose-spec/compose-spec/blob/main/spec.md: of what it knows, what is used
KNOWN = {
    "build", "cap_add", "cap_drop", "depends_on", "environment", "healthcheck", "image", "init",
    "mem_limit", "networks", "pids_limit", "ports", "read_only", "restart", "secrets",
    "security_opt", "shm_size", "stop_grace_period", "tmpfs", "ulimits", "user", "volumes",
}  # fmt: skip


def test_compose_has_all_that_it_refers_to() -> None:
    assert set(COMPOSE) <= {"name", "services", "networks", "volumes", "secrets", "x-service"}
    for name, each in SERVICES.items():
        assert set(each) <= KNOWN, name
        assert set(each["networks"]) <= set(COMPOSE["networks"])
        assert set(each.get("secrets", [])) <= set(COMPOSE["secrets"])
        assert set(each.get("depends_on", {})) <= set(SERVICES)
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            made = source == "./tls"  # by whoever reads the file's head
            assert made or source in COMPOSE["volumes"] or (DEPLOY / source).exists()
    build = OURS["mailprobe-1"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(ROOT / "Containerfile")


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_may_do_little(name: str) -> None:
    each = SERVICES[name]
    assert each["read_only"] is True
    assert each["cap_drop"] == ["ALL"]
    assert each["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in each
    if name != "postgres":
        assert "cap_add" not in each
        assert "mem_limit" in each
    assert ("ports" in each) == (name == "nginx")


def test_whoever_waits_for_another_waits_until_it_is_well() -> None:
    waits = {
        (name, other) for name, each in SERVICES.items() for other in each.get("depends_on", ())
    }
    assert waits == {(ours, "postgres") for ours in OURS} | {("nginx", ours) for ours in OURS}
    for name, other in waits:
        assert SERVICES[name]["depends_on"][other] == {"condition": "service_healthy"}
        assert other in OURS or "healthcheck" in SERVICES[other]  # ours have the image's


def test_the_store_is_reached_by_the_services_alone() -> None:
    assert SERVICES["postgres"]["networks"] == ["store"]
    assert COMPOSE["networks"]["store"] == {"internal": True}
    assert "store" not in SERVICES["nginx"]["networks"]


def test_no_secret_stands_in_the_file() -> None:
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    for each in SERVICES.values():
        for name in each.get("environment", {}):
            assert not re.search(r"PASSWORD$|SECRET|KEY", name), name
    assert not re.search(r"postgresql://\w+:[^%]", text)


def test_the_file_of_secrets_is_one_that_the_service_takes(tmp_path: Path) -> None:
    """The commands at the head of compose.yaml, as they stand there."""
    head = (DEPLOY / "compose.yaml").read_text("utf-8").partition("\nname:")[0]
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


def test_a_host_is_asked_as_gently_as_by_one_service() -> None:
    """The connections to an exchange are shared out by the store; nothing here gives more of them."""
    for path in FILES:
        assert "MAILPROBE_HOST_CONNECTIONS" not in path.read_text("utf-8")


def test_who_stops_waits_for_the_service() -> None:
    for each in OURS.values():
        assert int(each["stop_grace_period"].removesuffix("s")) > STOPPING_S


# nginx

NGINX = (DEPLOY / "nginx.conf").read_text("utf-8")


def directives(text: str) -> set[str]:
    """Each without its comment and spare spaces."""
    lines = (re.sub(r"\s*#.*", "", line) for line in text.splitlines())
    return {" ".join(line.split()) for line in lines if line.strip().endswith(";")}


def test_nginx_is_set_as_the_page_says() -> None:
    page = (ROOT / "docs/operating.md").read_text("utf-8")
    block = page.partition("```nginx\n")[2].partition("```")[0]
    location = block.partition("location / {")[2].partition("}")[0]
    assert "proxy_buffering off;" in directives(location)
    assert directives(location) <= directives(NGINX)
    assert {"keepalive 32;", "listen 8443 ssl http2;"} <= directives(NGINX)
    assert NGINX.count("{") == NGINX.count("}")


def test_nginx_leads_to_the_services_and_is_where_compose_looks() -> None:
    named = re.findall(r"^\s*server ([\w-]+):(\d+)", NGINX, re.MULTILINE)
    port = Settings.read(environment_of_container(), Path("/nowhere")).bind.port
    assert named == [(name, str(port)) for name in OURS]
    nginx = SERVICES["nginx"]
    assert nginx["ports"] == ["443:8443"]
    tls = next(line.split(":")[1] for line in nginx["volumes"] if line.startswith("./tls"))
    assert f"ssl_certificate_key {tls}/privkey.pem;" in directives(NGINX)
    written = re.findall(r"^\s*(?:pid|\w+_temp_path) (\S+);", NGINX, re.MULTILINE)
    (writable,) = [line.split(":")[0] for line in nginx["tmpfs"]]
    assert len(written) == 6
    assert all(path.startswith(f"{writable}/") for path in written)


# systemd


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """By section and name, each value that is given."""
    sections: dict[str, dict[str, list[str]]] = {}
    inside: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("["):
            inside = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, text = line.partition("=")
            inside.setdefault(name, []).append(text)
    return sections


HARDENED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_the_service_and_lets_it_do_little(path: Path) -> None:
    service = unit(path)["Service"]
    assert {name: service[name] for name in HARDENED} == {
        name: [text] for name, text in HARDENED.items()
    }
    (command,) = service["ExecStart"]
    program, *words = command.split()
    assert (Path(program).name, words) == ("mailprobe", ["serve"])
    assert words[0] in COMMANDS
    assert service["SystemCallFilter"][0] == "@system-service"
    assert int(service["TimeoutStopSec"][0]) > STOPPING_S
    assert service["RestartPreventExitStatus"] == ["2"]
    assert service["MemoryMax"] != ["infinity"]
    assert int(service["LimitNOFILE"][0]) > 5000  # for a process: docs/operating.md
    assert service["WorkingDirectory"] == [f"/var/lib/{service['StateDirectory'][0]}"]
    assert service["User"] != ["root"]


def test_the_units_differ_in_what_an_instance_is() -> None:
    one, instance = (unit(DEPLOY / "systemd" / f"mailprobe{end}.service") for end in ("", "@"))
    ours, theirs = one["Service"], instance["Service"]
    assert {name for name in ours | theirs if ours.get(name) != theirs.get(name)} == {
        "Environment",
        "EnvironmentFile",
    }
    environment = dict(text.replace("%i", "8082").split("=", 1) for text in theirs["Environment"])
    settings = Settings.read(environment, Path("/nowhere"))
    assert (settings.bind.port, settings.tools_bind) == (8082, None)


# sizing


def test_the_sums_of_the_page_on_fleets_are_right() -> None:
    """In its blocks of text, `words = sum = result`, to the digits that are shown."""
    page = (ROOT / "docs/fleet.md").read_text("utf-8")
    blocks = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    sums = [line.split("=") for block in blocks for line in block.splitlines() if "=" in line]
    assert len(sums) > 20
    for words, asked, reported in sums:
        expression = re.sub(r"[^\d.+*/() -]", "", asked.replace("×", "*").replace("÷", "/"))
        shown = re.match(r"\s*([\d,.]*\d)", reported)
        assert shown, reported
        result = float(shown[1].replace(",", ""))
        assert eval(expression) == pytest.approx(result, rel=0.01), (words, asked, reported)
