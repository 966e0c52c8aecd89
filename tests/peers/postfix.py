"""Postfix: one instance, many characters, each an smtpd with options of its own at its own address."""

import shutil
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.peers.programs import Program, folder_of, free_port, number_of, running

QUEUE = [
    "active",
    "bounce",
    "corrupt",
    "defer",
    "deferred",
    "flush",
    "hold",
    "incoming",
    "maildrop",
    "private",
    "public",
    "saved",
    "trace",
]

MAIN = """
compatibility_level = 3.6
myhostname = mx.postfix.test
mynetworks = 192.0.2.1/32
inet_protocols = ipv4
queue_directory = /peers/postfix/queue
data_directory = /peers/postfix/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
shlib_directory = /usr/lib/postfix
mail_owner = postfix
setgid_group = postdrop
maillog_file = /peers/postfix/mail.log
maillog_file_prefixes = /peers
smtpd_peername_lookup = no
disable_dns_lookups = yes
alias_maps =
# A message waits for leave of the queue manager, and there is none here.
in_flow_delay = 0
"""

# service, type, private, unprivileged, chroot, wakeup, processes, command
MASTER = """
postlog   unix-dgram n - n - 1 postlogd
rewrite   unix - - n - - trivial-rewrite
cleanup   unix n - n - 0 cleanup
proxymap  unix - - n - - proxymap
anvil     unix - - n - 1 anvil
smtpd     pass - - n - - smtpd
dnsblog   unix - - n - 0 dnsblog
tlsproxy  unix - - n - 0 tlsproxy
tlsmgr    unix - - n 1000? 1 tlsmgr
"""


@contextmanager
def postfix(
    main: str, characters: Mapping[str, str], tables: Mapping[str, bytes]
) -> Iterator[tuple[Program, int]]:
    """Listen at each of the addresses, with its process limit, command and options; and the port.

    `main` is added to main.cf, the characters' words are master.cf's. Postfix calls
    the tables `/peers/postfix/NAME`.
    """
    port = free_port()
    folder = folder_of("postfix")
    _furnish(folder)
    for name, octets in tables.items():
        (folder / name).write_bytes(octets)
    services = [
        f"{address}:{port} inet n - n - {options}\n" for address, options in characters.items()
    ]
    (folder / "main.cf").write_text(MAIN + main)
    (folder / "master.cf").write_text(MASTER + "".join(services))
    command = ["/usr/lib/postfix/sbin/master", "-c", "/peers/postfix", "-s"]
    with running("postfix", command, **ENVIRON) as program:
        program.wait_for(port, next(iter(characters)))
        yield program, port


# What postfix(1) tells the master: of its log, above all.
ENVIRON = {
    "MAIL_CONFIG": "/peers/postfix",
    "POSTLOG_SERVICE": "postlog",
    "POSTLOG_HOSTNAME": "mx",
}


def _furnish(folder: Path) -> None:
    """What postfix(1) would make: the queue's folders, and whose they are."""
    for name in QUEUE:
        path = folder / "queue" / name
        path.mkdir(parents=True)
        shutil.chown(path, number_of("postfix"))
    (folder / "queue/pid").mkdir()
    (folder / "data").mkdir()
    shutil.chown(folder / "data", number_of("postfix"))


@contextmanager
def policy_daemon(actions: Mapping[str, str]) -> Iterator[int]:
    """A policy service as greylisters are (SMTPD_POLICY_README): by recipient, what to do; its port."""

    class Executor(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked: dict[str, str] = {}
            for line in self.rfile:
                name, _, value = line.decode().rstrip("\n").partition("=")
                asked[name] = value
                if not name:
                    action = actions.get(asked["recipient"], "DUNNO")
                    self.wfile.write(f"action={action}\n\n".encode())
                    asked = {}

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Executor) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()
