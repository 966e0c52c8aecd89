"""A mail relay on loopback that takes every mail, for the tests to read."""

import email
import email.policy
import queue
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage

WAIT_S_MAX = 30.0


class Sink(socketserver.ThreadingTCPServer):
    """Takes mails; `next()` waits for one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.mails: queue.Queue[EmailMessage] = queue.Queue()

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.server_address[1]}"

    def next(self) -> EmailMessage:
        return self.mails.get(timeout=WAIT_S_MAX)

    def next_link(self, to: str, *, of: str = "") -> str:
        """The link to sign in of the next mail to this person; other mails are passed over."""
        while (mail := self.next())["To"] != to or of not in mail["Subject"]:
            pass
        found = re.search(r"http://\S+/sign-in/link\?token=\S+", mail.get_content())
        assert found is not None
        return found[0]


class Receiver(socketserver.StreamRequestHandler):
    """As much of SMTP (RFC 5321) as a relay's client needs."""

    server: Sink

    def handle(self) -> None:
        self.wfile.write(b"220 sink\r\n")
        for line in self.rfile:
            match line[:4].upper():
                case b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    self.server.mails.put(self._read_mail())
                    self.wfile.write(b"250 taken\r\n")
                case b"QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                case _:
                    self.wfile.write(b"250 yes\r\n")

    def _read_mail(self) -> EmailMessage:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        return email.message_from_bytes(b"".join(lines), policy=email.policy.default)


@contextmanager
def mail_sink() -> Iterator[Sink]:
    """Run it for the block."""
    with Sink() as sink:
        thread = threading.Thread(target=sink.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield sink
        sink.shutdown()
        thread.join()
