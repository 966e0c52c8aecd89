"""Reads the owner's own lists: a folder with up to five files, one name a line.

`#` begins a comment. A line that is not a name is an error, and so is a file that may be a
misspelt one: an owner's wish must not be overlooked.
"""

import difflib
from pathlib import Path

from ..address import NotAnAddress, parse
from ..own_lists import OwnLists, OwnNames, address_key

FILES = ("disposable.txt", "allow.txt", "never_ask.txt", "free.txt", "disposable_hosts.txt")
FILE_OCTETS_MAX = 16 * 1024 * 1024  # some 600,000 addresses, which take 100 MB of memory
SHOWN_MAX = 60  # characters of a wrong line in its error


class WrongList(ValueError):
    """An own list cannot be used. The message is one line, with the file and the line's number."""


def read_own_lists(folder: str | Path) -> OwnLists:
    """Read the lists of a folder; a file that is missing is empty. Raises WrongList."""
    folder = Path(folder)
    _check_files(folder)
    disposable, allow, never_ask, free, hosts = (_read(folder / file) for file in FILES)
    return OwnLists(
        disposable, allow, never_ask, free.domains, hosts.domains, folder=folder.absolute()
    )


def read_hosts(text: str, file: str) -> frozenset[str]:
    """The mail hosts that a text lists. Raises WrongList, which names the file and the line."""
    return _names(text, file, takes_addresses=False).domains


def _check_files(folder: Path) -> None:
    """Refuse other text files: a wish in `never-ask.txt` would be overlooked."""
    try:
        files = sorted(path.name for path in folder.iterdir() if path.suffix == ".txt")
    except OSError as error:
        raise WrongList(f"the folder cannot be read: {error.strerror}") from None
    for file in files:
        if file not in FILES:
            near = difflib.get_close_matches(file, FILES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the lists are {', '.join(FILES)}"
            raise WrongList(f"{file} is none of its lists; {hint}")


def _read(path: Path) -> OwnNames:
    takes_addresses = path.name not in ("free.txt", "disposable_hosts.txt")
    if path.exists() and not path.is_file():  # a FIFO would be waited for
        raise WrongList(f"{path.name} cannot be read: it is not a regular file")
    try:
        with path.open("rb") as file:
            octets = file.read(FILE_OCTETS_MAX + 1)
        if len(octets) > FILE_OCTETS_MAX:
            raise WrongList(f"{path.name} has more than {FILE_OCTETS_MAX >> 20} MiB")
        text = octets.decode("utf-8-sig")
    except FileNotFoundError:
        return OwnNames()
    except OSError as error:
        raise WrongList(f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        raise WrongList(f"{path.name}, line {line}: it is not in UTF-8") from None
    return _names(text, path.name, takes_addresses=takes_addresses)


def _names(text: str, file: str, *, takes_addresses: bool) -> OwnNames:
    domains, addresses = set[str](), set[str]()
    for number, line in enumerate(text.split("\n"), 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        is_address = "@" in name
        try:
            if is_address and not takes_addresses:
                raise NotAnAddress("this list takes domains only")
            address = parse(name if is_address else f"a@{name.removesuffix('.')}")
        except NotAnAddress as error:
            cut = name if len(name) <= SHOWN_MAX else f"{name[:SHOWN_MAX]}…"
            takes = "a domain or an address" if takes_addresses else "a domain"
            raise WrongList(f"{file}, line {number}: {cut!r} is not {takes}: {error}") from None
        if is_address:
            addresses.add(address_key(address))
        else:
            domains.add(address.domain)
    return OwnNames(frozenset(domains), frozenset(addresses))
