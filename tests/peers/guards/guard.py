"""Mail servers that Debian's fail2ban guards: five refused recipients in ten minutes, and it bans us.

Each guard has a network of its own, so a ban is over with the test. The client's address is 127.0.0.1.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mailprobe.bench.world.zone import Zone
from tests.peers.programs.exim import open_exim
from tests.peers.programs.fail2ban import open_fail2ban, status_of
from tests.peers.programs.network import own_network
from tests.peers.programs.postfix import open_postfix
from tests.peers.programs.process import POLL_S, WAIT_S_MAX, Program, accepts

PORT = 25  # as in Debian's jails
DOMAIN = "guarded.test"
EXCHANGE = f"mx.{DOMAIN}"
ADDRESS = "127.0.80.1"
MAXRETRY = 5  # Debian's
LOGS = {"postfix": "mail.log", "exim": "mainlog"}  # by jail, what fail2ban reads
BANNED = "Ban 127.0.0.1"

POSTFIX = f"""
virtual_mailbox_domains = {DOMAIN}
virtual_mailbox_maps = regexp:{{ {{ /^known[0-9]+@/ x }} }}
"""

# The RCPT ACL of Debian's exim4.conf, without its tests of the local part's characters.
EXIM = f"""
acl_smtp_rcpt = rcpt
domainlist local_domains = {DOMAIN}

begin acl

rcpt:
  require message = relay not permitted
          domains = +local_domains
  require verify  = recipient
  accept

begin routers

known:
  driver = accept
  domains = +local_domains
  local_parts = \\N^known\\d+$\\N
  transport = nowhere

begin transports

nowhere:
  driver = appendfile
  file = /dev/null
  user = nobody
"""


@dataclass(frozen=True)
class Guard:
    """A mail server and its fail2ban."""

    jail: str
    fail2ban: Program
    server: Program

    @property
    def refusals(self) -> int:
        """How many recipients the server has refused."""
        log = (self.server.folder / LOGS[self.jail]).read_text()
        return log.count(": reject: RCPT from") + log.count(" rejected RCPT <")

    def is_banned(self) -> bool:
        """Let fail2ban read all that the server has logged; say whether it bans us, or is about to."""
        deadline = time.monotonic() + WAIT_S_MAX
        while self._found < self.refusals:
            assert time.monotonic() < deadline, "fail2ban does not read the log"
            time.sleep(POLL_S)
        if BANNED in self.fail2ban.logs():
            return True
        # A client whose refusals are too many is moved from those that failed to those that are banned.
        return self._found > 0 and "Currently failed:\t1" not in status_of(self.jail)

    def wait_for_ban(self) -> None:
        """Wait until the server refuses our connections."""
        self.fail2ban.wait_for_log(BANNED)  # and then it runs iptables
        deadline = time.monotonic() + WAIT_S_MAX
        while accepts(ADDRESS, PORT):
            assert time.monotonic() < deadline, "the ban has no effect"
            time.sleep(POLL_S)

    @property
    def _found(self) -> int:
        return self.fail2ban.logs().count(" Found 127.0.0.1 ")


def zone() -> Zone:
    zone = Zone()
    zone.host(EXCHANGE, ADDRESS)
    zone.mx(DOMAIN, EXCHANGE)
    return zone


@contextmanager
def open_guard(jail: str, **options: str) -> Iterator[Guard]:
    """Run the server of this jail of Debian's, and fail2ban with it; `options` are the jail's."""
    log = f"/peers/guarded/{LOGS[jail]}"
    with own_network(), open_server(jail) as server:
        server.wait_for_log("daemon started")
        jails = {jail: {"logpath": log, **options}}
        if jail == "exim":
            jails["exim-spam"] = {"logpath": log}
        with open_fail2ban(jails) as fail2ban:
            yield Guard(jail, fail2ban, server)


@contextmanager
def open_server(jail: str) -> Iterator[Program]:
    if jail == "postfix":
        opened = open_postfix(POSTFIX, {ADDRESS: "- smtpd"}, {}, name="guarded", port=PORT)
    else:
        opened = open_exim([ADDRESS], EXIM.encode(), name="guarded", port=PORT)
    with opened as (program, _):
        yield program
