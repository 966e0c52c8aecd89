"""Installing the peers, on request only, each into an environment of its own.

Every version is pinned with its hashes: pip's --require-hashes, npm's lock with
the `integrity` of each package. No index is named here: pip and npm ask
whichever this machine is set up to ask. Nothing that a package would run while
being installed is run (wheels alone; --ignore-scripts).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from ..harness.figures import RESULTS, MissingRequirement
from .in_namespace import Runner

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = RESULTS / "peers"
STAMP = ".pins"  # within an environment: the pins that it was made from
NODE_VERSION_LEAST = 18
INSTALL_S = 600.0
AT_ONCE = " at once"  # after the name of a runner that goes beyond what is documented


class Peer(Struct, frozen=True):
    """Another verifier. Its pins are one file for pip, or a folder for npm."""

    name: str
    version: str
    pins: Path

    @property
    def folder(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def is_for_node(self) -> bool:
        return self.pins.is_dir()

    @property
    def wanted(self) -> str:
        """All that the environment depends on, as its stamp has it."""
        if self.is_for_node:
            return (self.pins / "package-lock.json").read_text("utf-8")
        return f"# {sys.version}\n{self.pins.read_text('utf-8')}"

    @property
    def installed(self) -> bool:
        stamp = self.folder / STAMP
        return stamp.exists() and stamp.read_text("utf-8") == self.wanted


PY3_VALIDATE_EMAIL = Peer("py3-validate-email", "1.0.5.post2", HERE / "py3-validate-email.txt")
VERIFY_EMAIL = Peer("verify-email", "2.4.3", HERE / "verify-email.txt")
EMAIL_VALIDATOR_JS = Peer("email-validator-js", "3.4.4", HERE / "email-validator-js")
PEERS = (PY3_VALIDATE_EMAIL, VERIFY_EMAIL, EMAIL_VALIDATOR_JS)


def runners() -> tuple[Runner, ...]:
    """Ours first, then each peer as its documentation says, and one of them as fast as it can."""
    node = shutil.which("node") or "node"
    script = str(HERE / "run_email_validator_js.mjs")
    folder = str(EMAIL_VALIDATOR_JS.folder)
    return (
        Runner("mailprobe", (sys.executable, "-m", "mailprobe.bench.peers.run_mailprobe")),
        Runner(
            PY3_VALIDATE_EMAIL.name,
            (*_python(PY3_VALIDATE_EMAIL), "-m", "mailprobe.bench.peers.run_py3_validate_email"),
            {"PY3VE_IGNORE_UPDATER": "1"},
            rounds=1,  # it takes long, and hardly differs, as it asks one after another
        ),
        Runner(
            VERIFY_EMAIL.name,
            (*_python(VERIFY_EMAIL), "-m", "mailprobe.bench.peers.run_verify_email"),
            rounds=1,
        ),
        Runner(EMAIL_VALIDATOR_JS.name, (node, script, folder)),
        Runner(EMAIL_VALIDATOR_JS.name + AT_ONCE, (node, script, folder, "all")),
    )


def _python(peer: Peer) -> tuple[str, ...]:
    return (str(peer.folder / "bin" / "python"),)


def check_installed() -> None:
    """Raise MissingRequirement if a peer, or its interpreter, is not installed."""
    missing = [peer.name for peer in PEERS if not peer.installed]
    if missing:
        raise MissingRequirement(
            f"not installed: {', '.join(missing)}; `python -m mailprobe.bench.peers install` installs them, "
            "as does MAILPROBE_BENCH_INSTALL=1 in the environment of this suite"
        )
    _check_node()


def install_all() -> None:
    """Install whichever is missing or was pinned otherwise. Lacking where that fails."""
    _check_node()
    for peer in PEERS:
        if not peer.installed:
            print(f"# installing {peer.name} {peer.version}", flush=True)
            install(peer)


def install(peer: Peer) -> None:
    shutil.rmtree(peer.folder, ignore_errors=True)
    peer.folder.mkdir(parents=True)
    if peer.is_for_node:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(peer.pins / name, peer.folder)
        _do(peer, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev")
    else:
        _do(peer, sys.executable, "-m", "venv", ".")
        words = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
        _do(
            peer,
            *_python(peer),
            *words,
            *("--require-hashes", "--only-binary", ":all:", "--requirement", str(peer.pins)),
        )
    (peer.folder / STAMP).write_text(peer.wanted, "utf-8")


def _do(peer: Peer, *command: str) -> None:
    done = subprocess.run(
        command,
        cwd=peer.folder,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
    )
    if done.returncode:
        why = (done.stderr or done.stdout).strip()
        raise MissingRequirement(f"could not install {peer.name} {peer.version}: {why}")


def _check_node() -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise MissingRequirement(f"{EMAIL_VALIDATOR_JS.name} needs node and npm: install them")
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(said.removeprefix("v").partition(".")[0]) < NODE_VERSION_LEAST:
        raise MissingRequirement(
            f"{EMAIL_VALIDATOR_JS.name} needs node {NODE_VERSION_LEAST}, not {said}"
        )
