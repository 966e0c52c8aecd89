"""A notice at the start of a command whose probes have no named sender: how to set one up.

Lists of backscatter (ips.backscatterer.org, backscatter.spameatingmonkey.net) look for clients
that send `MAIL FROM:<>`, and some hosts refuse it.
"""

from mailprobe.engine.settings import EngineSettings

WITHOUT_A_SENDER = (
    "MAILPROBE_SMTP_MAIL_FROM is not set: probes have the sender <>, which backscatter lists "
    "look for and some hosts refuse; set up a domain with an SPF record that allows this "
    "machine's address, a mailbox in it that answers and a web page that says what you do, "
    "and name the mailbox there"
)


def missing_sender(settings: EngineSettings) -> str | None:
    """Return the notice, one line; None if a sender is named, no host is asked, or they are a lab's."""
    if settings.mail_from or settings.allow_private or not settings.asks_hosts:
        return None
    return WITHOUT_A_SENDER
