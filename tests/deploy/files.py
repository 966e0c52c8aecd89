"""The files that run the service, as their tests read them."""

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SINGLE_FILE = DEPLOY / "compose.yaml"
COMPOSE_FILE = DEPLOY / "fleet/compose.yaml"
NGINX_FILE = DEPLOY / "nginx.conf"
UNIT_FILE = DEPLOY / "mailprobe@.service"
DASHBOARD_FILE = DEPLOY / "grafana-dashboard.json"
ALERTS_FILE = DEPLOY / "prometheus-alerts.yaml"
FILES = (
    ROOT / "Dockerfile",
    ROOT / ".dockerignore",
    *sorted(path for path in DEPLOY.rglob("*") if path.is_file()),
)
STOPPING_S = 10  # from SIGTERM to the service's end: docs/deployment.md

DOCKERFILE = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text("utf-8"))
STEPS = [
    (line.split()[0], line.split(maxsplit=1)[1])
    for line in DOCKERFILE.splitlines()
    if line.strip() and not line.startswith("#")
]

COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text("utf-8"))
SINGLE: dict[str, Any] = yaml.safe_load(SINGLE_FILE.read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if name.startswith("mailprobe")}


def steps(kind: str) -> list[str]:
    """The Dockerfile's steps of this kind, without their kind."""
    return [" ".join(rest.split()) for name, rest in STEPS if name == kind]


def environment_of_container() -> dict[str, str]:
    (text,) = steps("ENV")
    return dict(word.split("=", 1) for word in shlex.split(text))
