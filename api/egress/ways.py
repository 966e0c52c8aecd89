"""One egress alone: its way out in words, what connects by it, and the settings with its names."""

from dataclasses import replace

from mailprobe.engine.egress import ONE_EGRESS, Egress
from mailprobe.engine.net.dialer import Dial, Dialer
from mailprobe.engine.net.socks5 import check_proxy_url
from mailprobe.engine.settings import EngineSettings


def way_of(row: Egress) -> str:
    """`192.0.2.10`, or `socks5 198.51.100.20:1080`: without a user and a password."""
    if row.proxy is None:
        return row.source or "the system's choice"
    proxy = check_proxy_url(row.proxy)
    host = f"[{proxy.host}]" if ":" in proxy.host else proxy.host
    return f"socks5 {host}:{proxy.port}"


def settings_of(row: Egress, settings: EngineSettings) -> EngineSettings:
    """The settings with the names of this egress, as if there were no other."""
    return replace(
        settings,
        helo_name=settings.helo_name if row.helo_name is None else row.helo_name,
        mail_from=settings.mail_from if row.mail_from is None else row.mail_from,
        proxies=() if row.proxy is None else (row.proxy,),
        egresses=ONE_EGRESS,
    )


def dial_of(row: Egress, settings: EngineSettings) -> Dial:
    """What connects by this egress, as the engine does."""
    proxies = settings.proxies if row.source is None else ()
    return Dialer(
        proxies if row.proxy is None else (row.proxy,),
        source=row.source,
        allow_private=settings.allow_private,
    )
