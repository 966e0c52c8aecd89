"""The mail when a list is done: its message in the outbox, and its text.

The message is named after the list, so a process that was killed and the next one make one mail.
"""

from datetime import datetime
from email.message import EmailMessage

import msgspec

from mailprobe.storage.records import Account

from .mail import headed
from .smtp_relay import printable

OF_LISTS = "list "  # begins the names of these messages
NAME_CHARACTERS_MAX = 80  # of the list, in a subject
TEXT = """\
The list {name} is done. Its {addresses}:

  Keep     {keep:>9,}  Mail will most likely arrive.
  Confirm  {confirm:>9,}  Not certain. Ask the person to confirm.
  Drop     {drop:>9,}  Do not send. Mail comes back or is lost.

See and download them:

  {url}

You get this mail because somebody asked for it on the page of the list.
"""


class DoneList(msgspec.Struct, frozen=True):
    """What the mail says."""

    list_id: str
    name: str
    addresses: int
    keep: int
    confirm: int
    drop: int
    at: datetime

    @property
    def message_name(self) -> str:
        return OF_LISTS + self.list_id


def compose_list(
    done: DoneList, account: Account, *, dashboard_url: str, sender: str
) -> EmailMessage:
    """Return the mail; equal arguments always give the same octets. Raises Unwritable."""
    name = printable(done.name)[:NAME_CHARACTERS_MAX]
    subject = f"mailprobe: {name} is done"
    message = headed(account, subject, done.at, done.message_name, sender)
    addresses = "1 address" if done.addresses == 1 else f"{done.addresses:,} addresses"
    url = f"{dashboard_url}/lists/{done.list_id}"
    message.set_content(
        TEXT.format(
            name=name, addresses=addresses, keep=done.keep, confirm=done.confirm, drop=done.drop,
            url=url,
        )
    )  # fmt: skip
    return message
