"""DNS questions about the sender, over the endpoints that the engine uses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from mailprobe.engine.dns.messages import encode_query
from mailprobe.engine.dns.response import DohResponse, TransportFailed

if TYPE_CHECKING:
    import dns.rrset

RecordType = Literal["A", "AAAA", "MX", "TXT"]


class DnsFailed(Exception):
    """No endpoint has answered; the message is the last one's reason."""


class QueryTransport(Protocol):
    """The part of mailprobe.engine.dns.doh.Transport that the checks use."""

    async def post(self, url: str, query: bytes) -> DohResponse: ...


class DnsQuestions:
    """Asks the endpoints in turn until one answers."""

    def __init__(self, transport: QueryTransport, urls: Sequence[str]) -> None:
        self._transport = transport
        self._urls = urls

    async def records(self, name: str, kind: RecordType) -> list[str]:
        """Return the records as text, those of an MX without preference; empty if there are none.

        Raises DnsFailed, and ValueError for what cannot be a name.
        """
        # `clean` and `verify` import this module, and ask nothing of it unless hosts are silent
        import dns.exception
        import dns.message
        import dns.rcode
        import dns.rdatatype

        reason = "there is no endpoint"
        for url in self._urls:
            try:
                response = await self._transport.post(url, encode_query(name, kind))
                message = dns.message.from_wire(response.octets)
            except (TransportFailed, dns.exception.DNSException) as error:
                reason = str(error) or type(error).__name__
                continue
            code = message.rcode()
            if code == dns.rcode.NXDOMAIN:
                return []
            if code == dns.rcode.NOERROR:
                wanted = dns.rdatatype.from_text(kind)
                return [
                    text
                    for found in message.answer
                    if found.rdtype == wanted
                    for text in _texts(found, kind)
                ]
            reason = dns.rcode.to_text(code)
        raise DnsFailed(reason)


def _texts(found: "dns.rrset.RRset", kind: RecordType) -> list[str]:
    if kind == "TXT":
        return [b"".join(record.strings).decode("latin-1") for record in found]
    if kind == "MX":
        return [record.exchange.to_text(omit_final_dot=True) for record in found]
    return [record.address for record in found]
