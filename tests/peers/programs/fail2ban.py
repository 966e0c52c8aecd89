"""fail2ban with Debian's jails, filters and ban action, in this thread's network."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.peers.programs.process import ROOT, Program, make_folder, open_program

# Debian's defaults, but for what a machine without a system log, a database or sshd needs. The client of
# the tests has an address of the server's own machine, which fail2ban would never ban.
SERVER = "[DEFAULT]\ndbfile = None\n"
JAILS = "[DEFAULT]\nignoreself = false\n[sshd]\nenabled = false\n"


@contextmanager
def open_fail2ban(jails: Mapping[str, Mapping[str, str]]) -> Iterator[Program]:
    """Run it with these jails of Debian's jail.conf: by name, the options that are set otherwise.

    Their `logpath` must exist, as the private root sees it. It bans by iptables: call it in
    `own_network`, with the mail servers at Debian's ports.
    """
    folder = make_folder("fail2ban")
    shutil.copytree(ROOT / "etc/fail2ban", folder / "etc")
    (folder / "etc/fail2ban.local").write_text(SERVER)
    text = JAILS
    for name, options in jails.items():
        lines = [f"{key} = {value}\n" for key, value in options.items()]
        text += f"[{name}]\nenabled = true\n{''.join(lines)}"
    (folder / "etc/jail.local").write_text(text)
    places = ["-c", "/peers/fail2ban/etc", "-s", "/peers/fail2ban/socket"]
    places += ["-p", "/peers/fail2ban/pid", "--logtarget", "/peers/fail2ban/server.log"]
    with open_program("fail2ban", ["/usr/bin/fail2ban-server", "-f", *places]) as program:
        for name in jails:
            program.wait_for_log(f"Jail '{name}' started")
        yield program


def status_of(jail: str) -> str:
    """What fail2ban-client shows of a jail."""
    command = ["/usr/bin/fail2ban-client", "-s", "/peers/fail2ban/socket", "status", jail]
    done = subprocess.run(["chroot", str(ROOT), *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
