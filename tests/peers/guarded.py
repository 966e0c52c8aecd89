"""Mail servers that Debian's fail2ban guards: five refused recipients in ten minutes, and it bans us.

Each guard has a network of its own, so a ban is over with the test. The client's address is 127.0.0.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mailprobe.engine.testing.zone import Zone
from tests.peers.programs.exim import open_exim
from tests.peers.programs.fail2ban import open_fail2ban
from tests.peers.programs.network import own_network
from tests.peers.programs.postfix import open_postfix
from tests.peers.programs.process import Program

PORT = 25  # as in Debian's jails
DOMAIN = "guarded.test"
EXCHANGE = f"mx.{DOMAIN}"
ADDRESS = "127.0.80.1"
MAXRETRY = 5  # Debian's
BANNED = "Ban 127.0.0.1"

POSTFIX = f"""
virtual_mailbox_domains = {DOMAIN}
virtual_mailbox_maps = regexp:{{ {{ /^living[0-9]+@/ x }} }}
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

living:
  driver = accept
  domains = +local_domains
  local_parts = \\N^living\\d+$\\N
  transport = nowhere

begin transports

nowhere:
  driver = appendfile
  file = /dev/null
  user = nobody
"""


@dataclass(frozen=True)
class Guard:
    """A mail server's fail2ban."""

    fail2ban: Program
    server: Program

    @property
    def refusals(self) -> int:
        """How many it has counted."""
        return self.fail2ban.logs().count(" Found 127.0.0.1 ")

    @property
    def bans(self) -> int:
        return self.fail2ban.logs().count(BANNED)

    @property
    def server_log_octets(self) -> int:
        return len(self.server.logs())


def zone() -> Zone:
    zone = Zone()
    zone.host(EXCHANGE, ADDRESS)
    zone.mx(DOMAIN, EXCHANGE)
    return zone


@contextmanager
def open_guard(jail: str, **options: str) -> Iterator[Guard]:
    """Run the server of this jail of Debian's, and fail2ban with it; `options` are the jail's."""
    is_postfix = jail == "postfix"
    log = "/peers/guarded/mail.log" if is_postfix else "/peers/guarded/mainlog"
    with own_network(), open_postfix_or_exim(is_postfix) as server:
        server.wait_for_log("daemon started")
        jails = {jail: {"logpath": log, **options}}
        if not is_postfix:
            jails["exim-spam"] = {"logpath": log}
        with open_fail2ban(jails) as fail2ban:
            yield Guard(fail2ban, server)


@contextmanager
def open_postfix_or_exim(is_postfix: bool) -> Iterator[Program]:
    if is_postfix:
        opened = open_postfix(POSTFIX, {ADDRESS: "- smtpd"}, {}, name="guarded", port=PORT)
    else:
        opened = open_exim([ADDRESS], EXIM.encode(), name="guarded", port=PORT)
    with opened as (program, _):
        yield program
