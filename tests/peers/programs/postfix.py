"""Postfix: an instance is at many addresses, each with its own smtpd and options."""

import shutil
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import Program, make_folder, open_program, uid_of

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
queue_directory = FOLDER/queue
data_directory = FOLDER/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
shlib_directory = /usr/lib/postfix
mail_owner = postfix
setgid_group = postdrop
maillog_file = FOLDER/mail.log
maillog_file_prefixes = /peers
smtpd_peername_lookup = no
disable_dns_lookups = yes
alias_maps =
# A message waits for the queue manager, and none runs here.
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
dnsblog   unix - - y - 0 dnsblog
tlsproxy  unix - - n - 0 tlsproxy
tlsmgr    unix - - n 1000? 1 tlsmgr
"""

# For an instance that verifies addresses at another server: it delivers messages without a body.
DELIVERY = """
qmgr      unix n - n 300 1 qmgr
verify    unix - - n - 1 verify
smtp      unix - - n - - smtp
bounce    unix - - n - 0 bounce
defer     unix - - n - 0 bounce
trace     unix - - n - 0 bounce
error     unix - - n - - error
retry     unix - - n - - error
"""


@contextmanager
def open_postfix(
    main: str,
    profiles: Mapping[str, str],
    tables: Mapping[str, bytes],
    *,
    services: str = "",
    resolver: str = "127.0.0.1",
    name: str = "postfix",
    port: int | None = None,
) -> Iterator[tuple[Program, int]]:
    """Run Postfix, at a free port if none is given. Yields the port too.

    `main` is added to main.cf. `profiles` has, by address, the end of a line of master.cf: process
    limit, command, options; `services` are further lines. The tables are `FOLDER/NAME`. In these
    texts FOLDER is the instance's folder and PORT its port. `resolver` is an address, for what looks
    up blocklists. Each instance that runs at a time has a name of its own.
    """
    port = port or free_port()
    folder = make_folder(name)
    _make_queue(folder)
    for table, octets in tables.items():
        (folder / table).write_bytes(octets)
    (folder / "queue/etc").mkdir()  # for dnsblog, whose root the queue is
    (folder / "queue/etc/resolv.conf").write_text(f"nameserver {resolver}\n")
    listeners = [
        f"{address}:{port} inet n - n - {options}\n" for address, options in profiles.items()
    ]
    texts = {"main.cf": MAIN + main, "master.cf": MASTER + services + "".join(listeners)}
    for each, text in texts.items():
        text = text.replace("FOLDER", f"/peers/{name}").replace("PORT", str(port))
        (folder / each).write_text(text)
    command = ["/usr/lib/postfix/sbin/master", "-c", f"/peers/{name}", "-s"]
    # What postfix(1) gives the master: above all, where to log.
    environ = {
        "MAIL_CONFIG": f"/peers/{name}",
        "POSTLOG_SERVICE": "postlog",
        "POSTLOG_HOSTNAME": "mx",
    }
    with open_program(name, command, **environ) as program:
        program.wait_for_port(port, next(iter(profiles)))
        yield program, port


def _make_queue(folder: Path) -> None:
    """Make what postfix(1) would: the queue's folders, with their owners."""
    for name in QUEUE:
        path = folder / "queue" / name
        path.mkdir(parents=True)
        shutil.chown(path, uid_of("postfix"))
    (folder / "queue/pid").mkdir()
    (folder / "data").mkdir()
    shutil.chown(folder / "data", uid_of("postfix"))


@contextmanager
def policy_daemon(actions: Mapping[str, str]) -> Iterator[int]:
    """Run a policy service (SMTPD_POLICY_README), such as a greylister: by recipient, its action.

    Yields its port.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            request: dict[str, str] = {}
            for line in self.rfile:
                name, _, value = line.decode().rstrip("\n").partition("=")
                request[name] = value
                if not name:
                    action = actions.get(request["recipient"], "DUNNO")
                    self.wfile.write(f"action={action}\n\n".encode())
                    request = {}

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()
