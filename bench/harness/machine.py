"""Describes the machine and versions of a run: results of different machines can't be compared."""

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("trio", "hypercorn", "quart-trio", "h2", "msgspec", "orjson")
COMPARED = ("cpu", "cores", "memory_mib", "kernel", "python", "versions")  # by `differences`
GIT_S = 5.0


def describe() -> dict[str, Any]:
    """The processor, the system, the interpreter, the libraries that matter, and the load now."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_mib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20),
        "architecture": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: installed for name in PACKAGES if (installed := _version(name))},
        "commit": commit(),
        # Average over the last minute, so what else the machine does.
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_model() -> str:
    """The kernel's name for it (proc(5)), or platform's: some architectures have no such line."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def usable_cores() -> int:
    """The cores that this process may use; in a container fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The checkout's commit, marked if files differ from it; None outside a checkout."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        said = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


def is_busy(described: Mapping[str, Any]) -> bool:
    """Was the load before a run above the number of cores? Then elapsed times mean little."""
    return float(described.get("load") or 0.0) > float(described.get("cores") or 1)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What makes two runs hard to compare, e.g. `python: CPython 3.11.7, now CPython 3.12.1`."""
    said = []
    for name in COMPARED:
        before, now = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            said += [
                f"{package}: {before[package]}, now {now[package]}"
                for package in before.keys() & now.keys()
                if before[package] != now[package]
            ]
        elif before is not None and now is not None and before != now:
            said.append(f"{name}: {before}, now {now}")
    return said
