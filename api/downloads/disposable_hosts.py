"""Keeps the owner's list of throwaway services' mail hosts fresh, from a URL of the owner's choice.

The list is `disposable_hosts.txt` in the folder of own lists. A download replaces it whole or
not at all; one that is broken, too large, much shorter or names a provider is refused. Several
processes may share the folder: one of them downloads, and all of them notice.
"""

import fcntl
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from mailprobe.engine.lists.lists import Lists
from mailprobe.engine.lists.own_list_files import WrongList, read_hosts
from mailprobe.engine.own_lists import with_parents
from mailprobe.engine.smtp.operators import MailOperators

from .download import DownloadRefused, download

FILE = "disposable_hosts.txt"
OCTETS_MAX = 128 * 1024  # some 5,000 hosts, checked in 50 ms; public lists have a few hundred
DOWNLOAD_S = 60.0
KEPT_MIN = 0.8  # a list shorter than this share of the present one is truncated or broken
EVERY_S = 24 * 3600.0  # throwaway services change their hosts within weeks
RETRY_S = 3600.0
LOOK_S = 300.0  # until a process notices another's download

log = logging.getLogger("mailprobe.disposable_hosts")

Fetch = Callable[[], Awaitable[bytes]]


async def download_hosts(url: str) -> bytes:
    """Return what the URL has. Raises DownloadRefused."""
    return await download(url, octets_max=OCTETS_MAX, within_s=DOWNLOAD_S)


def checked(
    octets: bytes,
    present: frozenset[str],
    lists: Lists,
    operators: MailOperators,
    *,
    may_shrink: bool = False,
) -> frozenset[str]:
    """The hosts of a download that may replace the present ones. Raises DownloadRefused."""
    try:
        hosts = read_hosts(octets.decode("utf-8-sig"), "the download")
    except UnicodeDecodeError:
        raise DownloadRefused("the download is not in UTF-8") from None
    except WrongList as error:
        raise DownloadRefused(str(error)) from None
    if not hosts:
        raise DownloadRefused("the download lists no host")
    if len(hosts) < len(present) * KEPT_MIN and not may_shrink:
        raise DownloadRefused(
            f"the download lists {len(hosts):,} hosts instead of {len(present):,}"
        )
    providers = lists.free_providers | lists.smtp_blocked | lists.allowed
    exchanges = operators.endings
    spared = frozenset(name for each in providers | exchanges for name in with_parents(each))
    for host in sorted(hosts):
        if host in spared or not exchanges.isdisjoint(with_parents(host)):
            raise DownloadRefused(f"the download lists {host}, which is a mail provider's")
    return hosts


def present_hosts(folder: Path) -> frozenset[str]:
    """The hosts of the list in the folder; none if it is missing or cannot be used."""
    try:
        return read_hosts((folder / FILE).read_text("utf-8-sig"), FILE)
    except (OSError, ValueError):
        return frozenset()


def replace_list(folder: Path, hosts: frozenset[str]) -> None:
    """Write the list under a temporary name, then rename it. Raises OSError."""
    beside = folder / f".{FILE}.{secrets.token_hex(4)}.new"  # others may write theirs
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write("".join(f"{host}\n" for host in sorted(hosts)))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / FILE)
    finally:
        beside.unlink(missing_ok=True)


async def keep_fresh(
    folder: Path, lists: Lists, operators: MailOperators, fetch: Fetch, now: Callable[[], float]
) -> None:
    """Download the list every day, and use it whenever it has changed. Never returns.

    `now` is the clock of the files' times.
    """
    not_before, used = 0.0, -1.0  # the list may have changed since the start read it
    while True:
        if _is_due(folder, now()) and trio.current_time() >= not_before:
            not_before = trio.current_time() + RETRY_S
            await _refresh(folder, lists, operators, fetch, now)
        if (changed := _changed_at(folder)) != used:
            used = changed
            lists.disposable_hosts.replace_own(present_hosts(folder))
        await trio.sleep(LOOK_S)


async def _refresh(
    folder: Path, lists: Lists, operators: MailOperators, fetch: Fetch, now: Callable[[], float]
) -> None:
    try:
        with _alone(folder) as alone:
            if not alone or not _is_due(folder, now()):
                return
            present = present_hosts(folder)
            hosts = checked(await fetch(), present, lists, operators)
            replace_list(folder, hosts)
    except DownloadRefused as refused:
        log.warning("throwaway mail hosts not updated: %s", refused)
    except OSError as error:
        log.warning("throwaway mail hosts not updated: %s: %s", folder, error.strerror)
    else:
        added, removed = len(hosts - present), len(present - hosts)
        log.info("throwaway mail hosts updated: added=%d removed=%d", added, removed)


def _is_due(folder: Path, now: float) -> bool:
    """Whether the list is missing, older than a day, or of the future."""
    return not 0 <= now - _changed_at(folder) < EVERY_S


def _changed_at(folder: Path) -> float:
    try:
        return (folder / FILE).stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether no other process downloads the list meanwhile."""
    with (folder / f".{FILE}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
