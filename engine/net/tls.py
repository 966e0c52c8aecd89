"""TLS over a line, without judging the certificate.

A prober has nothing to hide: it speaks TLS only because a host demands it, and no
answer depends on who signed the host's certificate. So whatever a host can do is
good enough: no name is checked, old versions and weak keys are taken. Only finite-field
Diffie-Hellman is not: the server chooses the group, and one of 8192 bits would hold up
everybody else for half a second.

OpenSSL works on two buffers here; the octets travel over the line underneath, with
its clocks. So nothing changes for a connection in plain text.
"""

import ssl
from functools import cache

import trio

from mailprobe.engine.net.reactor import ByteChannel, OnOctets

OP_LEGACY_SERVER_CONNECT = 0x4  # of servers before RFC 5746; ssl has its name since Python 3.12
READ_OCTETS = 16 * 1024  # the most that one TLS record holds
# Without a word in plain text: OpenSSL takes certificates of 100 KB, and session tickets without end.
SILENT_OCTETS_MAX = 128 * 1024


@cache
def client_context() -> ssl.SSLContext:
    """How we speak TLS to a host that demands it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("DEFAULT:!kDHE:@SECLEVEL=0")
    context.options |= ssl.OP_NO_RENEGOTIATION | OP_LEGACY_SERVER_CONNECT
    return context


class TlsChannel:
    """A line over another line, which is its own from now on."""

    def __init__(self, line: ByteChannel) -> None:
        self._channel = line
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # No server name is sent: a prober knows a host by its addresses, and most senders
        # of mail send none.
        self._tls = client_context().wrap_bio(self._incoming, self._outgoing)
        self._early = b""  # what was said together with the end of the handshake
        self._ended = False  # the server said that it will say no more
        self._silent_octets = 0  # received since the last word in plain text

    @property
    def on_octets(self) -> OnOctets | None:
        return self._channel.on_octets

    @on_octets.setter
    def on_octets(self, on_octets: OnOctets | None) -> None:
        self._channel.on_octets = on_octets

    @property
    def arrived_at(self) -> float:
        return self._channel.arrived_at

    def silent_s(self) -> float:
        return 0.0 if self._early or self._incoming.pending else self._channel.silent_s()

    @property
    def version(self) -> str:
        """The version of the protocol, "TLS 1.3"."""
        return (self._tls.version() or "TLS").replace("TLSv", "TLS ")

    async def handshake(self, until: float) -> None:
        """Agree on TLS before `until` (trio's clock), whoever the server is.

        Raises trio.TooSlowError, ssl.SSLError where the server says something else, and
        one of GONE.
        """
        while not self._shake():
            await self._send_out(until - trio.current_time())
            await self._channel.wait(until)
            octets = self._channel.receive()
            if octets is None:
                if trio.current_time() >= until:
                    raise trio.TooSlowError
            elif not octets:
                raise trio.BrokenResourceError("closed by the server")
            else:
                self._receive(octets)
        await self._send_out(until - trio.current_time())
        self._early = self._decrypted()

    def _shake(self) -> bool:
        """Go on with the handshake as far as what has come allows; say whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def send_now(self, octets: bytes) -> int:
        return 0  # what is encrypted must be sent whole

    async def send(self, octets: bytes, within_s: float) -> None:
        self._tls.write(octets)
        await self._send_out(within_s)

    async def _send_out(self, within_s: float) -> None:
        octets = self._outgoing.read()
        if octets and (sent := self._channel.send_now(octets)) < len(octets):
            await self._channel.send(octets[sent:], max(within_s, 0.0))

    async def wait(self, until: float) -> bool:
        return False if self._early or self._ended else await self._channel.wait(until)

    def receive(self) -> bytes | None:
        if self._early:
            early, self._early = self._early, b""
            return early
        if self._ended:
            return b""
        octets = self._channel.receive()
        if not octets:
            return octets
        self._receive(octets)
        decrypted = self._decrypted()
        return decrypted or (b"" if self._ended else None)

    def _receive(self, octets: bytes) -> None:
        self._silent_octets += len(octets)
        if self._silent_octets > SILENT_OCTETS_MAX:
            raise ssl.SSLError(
                f"more than {SILENT_OCTETS_MAX} octets of TLS without a word in them"
            )
        self._incoming.write(octets)

    def _decrypted(self) -> bytes:
        """Everything in plain text that what has come makes up."""
        pieces = []
        try:
            while piece := self._tls.read(READ_OCTETS):
                pieces.append(piece)
                self._silent_octets = 0
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        return b"".join(pieces)

    def interrupt(self) -> None:
        self._channel.interrupt()

    async def hang_up(self, within_s: float) -> None:
        await self._channel.hang_up(within_s)

    async def close(self) -> None:
        await self._channel.close()
