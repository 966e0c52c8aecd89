"""A machine within the machine, where port 25 and the resolver of the system are ours.

The peers know neither another port nor another resolver. So everything runs in
namespaces of its own (namespaces(7)): a network with nothing but loopback, from
which no question and no mail can leave; a view of the files in which
/etc/resolv.conf and /etc/hosts are ours; a host name; and its own processes,
which all end when the first of them does. Nothing of the machine is changed.

unshare(1) and mount(8) are of util-linux. Root may do this anywhere; others may
where the system lets users make namespaces.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path

from ..harness.figures import MissingRequirement

RESOLVER_ADDRESS = "127.0.0.1"
SIOCSIFFLAGS = 0x8914  # netdevice(7)
IFF_UP_AND_RUNNING = 0x41
TRY_S = 10.0


def entering() -> list[str]:
    """The words before a command that make it run in there.

    Raises MissingRequirement where the system does not allow it.
    """
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("mount") is None:
        raise MissingRequirement(
            "the peers run in a network namespace: install util-linux (unshare, mount)"
        )
    words = [unshare, "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        words += ["--user", "--map-root-user"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=TRY_S)
    if tried.returncode:
        raise MissingRequirement(
            f"the peers run in a network namespace, which needs root: {tried.stderr.strip()}"
        )
    return words


def settle(folder: Path, host_name: str) -> None:
    """Once inside: loopback up, the resolver's address, the host's name. Never call it outside."""
    raise_loopback()
    socket.sethostname(host_name)
    _cover("/etc/resolv.conf", f"nameserver {RESOLVER_ADDRESS}\n", folder)
    _cover("/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {host_name}\n", folder)


def raise_loopback() -> None:
    """Bring up the loopback of this thread's network. A new namespace's is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", IFF_UP_AND_RUNNING)  # struct ifreq
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def _cover(path: str, text: str, folder: Path) -> None:
    """Let a file read otherwise in this namespace: the mount is gone with it."""
    ours = folder / Path(path).name
    ours.write_text(text, "ascii")
    subprocess.run(["mount", "--bind", str(ours), path], check=True)
