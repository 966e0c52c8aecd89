"""The engine's settings, with the unit in each name.

They are frozen: the limits of a running engine do not change. The engine does not read
the environment; mailprobe.api.settings does.
"""

from dataclasses import dataclass, field, replace
from importlib import import_module

from .egress import ONE_EGRESS, Egress, Egresses
from .own_lists import NO_OWN_LISTS, OwnLists

DOH_URLS = ("https://9.9.9.10/dns-query", "https://1.1.1.1/dns-query")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine's limits and names. Operators rely on the defaults."""

    doh_urls: tuple[str, ...] = DOH_URLS  # RFC 8484 endpoints, named by address, tried in order
    doh_ca_file: str | None = None  # PEM; None means the system's authorities
    smtp_port: int = 25
    helo_name: str = "localhost.localdomain"
    mail_from: str = ""  # envelope sender of a probe, without angle brackets
    proxies: tuple[str, ...] = ()  # socks5://[user:pass@]host:port, used in turn
    egresses: Egresses = field(default=ONE_EGRESS, repr=False)
    host_connections: int = 4  # to one exchange at a time, by each egress
    probes_max: int = 2000  # addresses in layer 4 at a time
    asks_hosts: bool = True  # False: no layer 4; what needs it is `not_asked`
    # The owner's, by read_own_lists().
    own_lists: OwnLists = field(default=NO_OWN_LISTS, repr=False)
    allow_private: bool = False  # whether probes may reach loopback and private addresses
    probe_s: float = 3.0  # layer 4, all of it
    read_s: float = 1.0  # a connect, a banner, each reply
    cache_s: float = 6 * 3600.0  # MX answers and catch-all knowledge

    @classmethod
    def from_environment(cls) -> "EngineSettings":
        """The settings that the command line would use. Raises what `Settings.from_environment` does."""
        # The engine reads no environment, and so knows nothing of the layer that does.
        read: EngineSettings = import_module("mailprobe").Settings.from_environment().engine
        return read

    def by(self, egress: Egress) -> "EngineSettings":
        """The settings with the names of this egress."""
        helo_name = self.helo_name if egress.helo_name is None else egress.helo_name
        mail_from = self.mail_from if egress.mail_from is None else egress.mail_from
        return replace(self, helo_name=helo_name, mail_from=mail_from)

    @property
    def helo_is_local(self) -> bool:
        """Whether no other host can resolve `helo_name`, which some mail hosts refuse."""
        return "." not in self.helo_name.strip(".") or self.helo_name.lower().startswith(
            "localhost"
        )
