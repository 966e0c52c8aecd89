"""Sendmail: one daemon at many addresses, with Debian's sendmail.mc but for what a test adds."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mailprobe.bench.load.private_postgres import free_port
from tests.peers.programs.process import ROOT, Program, make_folder, open_program, uid_of

# Names are not looked up: no resolver is here. `FOLDER` is the daemon's.
BEGIN = """
include(`/usr/share/sendmail/cf/m4/cf.m4')dnl
OSTYPE(`debian')dnl
DOMAIN(`debian-mta')dnl
define(`confSERVICE_SWITCH_FILE', `/etc/mail/service.switch-nodns')dnl
define(`confPID_FILE', `FOLDER/pid')dnl
define(`confHOST_STATUS_DIRECTORY', `')dnl
define(`confDEF_USER_ID', `nobody:nogroup')dnl
define(`QUEUE_DIR', `FOLDER/queue')dnl
define(`ALIAS_FILE', `FOLDER/aliases')dnl
define(`confCW_FILE', `FOLDER/domains')dnl
define(`confDOMAIN_NAME', `mx.sendmail.test')dnl
define(`confDONT_PROBE_INTERFACES', `true')dnl
FEATURE(`no_default_msa')dnl
FEATURE(`use_cw_file')dnl
FEATURE(`virtusertable', `hash -o FOLDER/virtusers')dnl
FEATURE(`accept_unresolvable_domains')dnl
"""
# The limits of Debian's sendmail.mc.
LIMITS = """
define(`confPRIVACY_FLAGS', `needmailhelo,needexpnhelo,needvrfyhelo,restrictqrun,restrictexpand,nobodyreturn,authwarnings')dnl
define(`confCONNECTION_RATE_THROTTLE', `15')dnl
define(`confCONNECTION_RATE_WINDOW_SIZE', `10m')dnl
FEATURE(`access_db', `hash -o FOLDER/access', `skip')dnl
FEATURE(`greet_pause', `1000')dnl
FEATURE(`delay_checks', `friend', `n')dnl
define(`confBAD_RCPT_THROTTLE', `3')dnl
FEATURE(`conncontrol', `nodelay', `terminate')dnl
FEATURE(`ratecontrol', `nodelay', `terminate')dnl
"""
END = "MAILER_DEFINITIONS\nMAILER(`local')dnl\nMAILER(`smtp')dnl\n"


@contextmanager
def open_sendmail(
    addresses: Sequence[str],
    domains: Sequence[str],
    tables: Mapping[str, str],
    *,
    name: str = "sendmail",
) -> Iterator[tuple[Program, int]]:
    """Run Sendmail at these addresses, local for these domains. Yields the port too.

    `tables` are `aliases`, `virtusers` and `access`: lines as makemap(8) and aliases(5) have them.
    """
    port = free_port()
    folder = make_folder(name)
    for each in ("queue", "clients"):
        (folder / each).mkdir(mode=0o700)
        shutil.chown(folder / each, uid_of("smmta"), uid_of("smmta"))
    (folder / "domains").write_text("".join(f"{domain}\n" for domain in domains))
    for each, text in tables.items():
        (folder / each).write_text(text)
    listeners = "".join(
        f"DAEMON_OPTIONS(`Family=inet, Name=MTA{number}, Port={port}, Addr={address}')dnl\n"
        for number, address in enumerate(addresses)
    )
    source = (BEGIN + listeners + LIMITS + END).replace("FOLDER", f"/peers/{name}")
    (folder / "sendmail.mc").write_text(source)
    made = _run("/usr/bin/m4", f"/peers/{name}/sendmail.mc")
    (folder / "sendmail.cf").write_bytes(made)
    with_configuration = ["-C", f"/peers/{name}/sendmail.cf"]
    for each in ("virtusers", "access"):
        makemap = ["/usr/sbin/makemap", *with_configuration, "hash", f"/peers/{name}/{each}"]
        _run(*makemap, stdin=(folder / each).read_bytes())
    sendmail = ["/usr/libexec/sendmail/sendmail", *with_configuration]
    _run(*sendmail, "-bi")  # makes the map of the aliases
    command = [*sendmail, "-bD", "-X", f"/peers/{name}/traffic.log"]
    with open_program(name, command) as program:
        program.wait_for_port(port, addresses[0])
        yield program, port


def _run(*command: str, stdin: bytes = b"") -> bytes:
    """Run a command of the private root to its end; returns what it printed."""
    done = subprocess.run(["chroot", str(ROOT), *command], input=stdin, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode("utf-8", "replace")
    return done.stdout
