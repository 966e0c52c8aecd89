"""`python -m mailprobe.bench.peers install`: put the other verifiers into environments of their own."""

import sys

from ..harness.figures import MissingRequirement
from .install import ENVIRONMENTS, install_all


def main(words: list[str]) -> str | None:
    """Exit code 0, or a message and 1."""
    if words != ["install"]:
        return "usage: python -m mailprobe.bench.peers install"
    try:
        install_all()
    except MissingRequirement as lacking:
        return f"mailprobe.bench.peers: {lacking}"
    print(f"installed in {ENVIRONMENTS}")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
