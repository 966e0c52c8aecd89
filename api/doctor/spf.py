"""May our address send mail for a domain? SPF, as a receiver evaluates it (RFC 7208).

Macros and `exists` depend on the single message, so a record that needs them to decide is
`unclear` here. `ptr` never matches (RFC 7208 5.5 advises against it).
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal

from .dns_questions import DnsFailed, DnsQuestions, RecordType

SpfResult = Literal[
    "pass", "fail", "softfail", "neutral", "none", "permerror", "temperror", "unclear"
]
LOOKUPS_MAX = 10  # RFC 7208 4.6.4
MX_HOSTS_MAX = 10
RESULTS: dict[str, SpfResult] = {"+": "pass", "-": "fail", "~": "softfail", "?": "neutral"}

_TERM = re.compile(r"([-+~?]?)([a-z0-9]+)(?::([^/\s]*))?((?:/\d+)?(?://\d+)?)", re.IGNORECASE)
_ADDRESSES = re.compile(r"([-+~?]?)(ip4|ip6):(\S+)", re.IGNORECASE)


class _Ends(Exception):
    """The evaluation ends with this result."""

    def __init__(self, result: SpfResult) -> None:
        self.result: SpfResult = result


async def check_host(address: str, domain: str, questions: DnsQuestions) -> SpfResult:
    """Return the result for mail from this address with a sender at `domain` (RFC 7208 4)."""
    try:
        return await _Evaluation(address, questions).check(domain)
    except _Ends as end:
        return end.result
    except DnsFailed:
        return "temperror"


class _Evaluation:
    """One evaluation, with the look-ups that it has used."""

    def __init__(self, address: str, questions: DnsQuestions) -> None:
        self._address: IPv4Address | IPv6Address = ip_address(address)
        self._questions = questions
        self._lookups = 0

    async def check(self, domain: str) -> SpfResult:
        record = await self._record(domain)
        if record is None:
            return "none"
        redirect = None
        for term in record.split()[1:]:
            if "=" in term and ":" not in term.partition("=")[0]:
                name, _, value = term.partition("=")
                if name.lower() == "redirect":
                    redirect = value
                continue
            sign, matches = await self._term(term, domain)
            if matches:
                return RESULTS[sign or "+"]
        if redirect is None:
            return "neutral"
        self._count_lookup()
        result = await self.check(_plain(redirect))
        return "permerror" if result == "none" else result

    async def _record(self, domain: str) -> str | None:
        texts = await self._query(domain, "TXT")
        records = [text for text in texts if re.match(r"v=spf1( |$)", text, re.IGNORECASE)]
        if len(records) > 1:
            raise _Ends("permerror")
        return records[0] if records else None

    async def _term(self, term: str, domain: str) -> tuple[str, bool]:
        """Return the sign of a mechanism, and whether it matches."""
        if found := _ADDRESSES.fullmatch(term):
            try:
                network = ip_network(found[3], strict=False)
            except ValueError:
                raise _Ends("permerror") from None
            return found[1], self._address in network
        if "%" in term:
            raise _Ends("unclear")
        found = _TERM.fullmatch(term)
        if found is None:
            raise _Ends("permerror")
        sign, name, target, prefix = found[1], found[2].lower(), found[3] or domain, found[4]
        match name:
            case "all":
                return sign, True
            case "include":
                self._count_lookup()
                inner = await self.check(target)
                if inner in ("none", "permerror"):
                    raise _Ends("permerror")
                return sign, inner == "pass"
            case "a":
                self._count_lookup()
                return sign, await self._is_of([target], prefix)
            case "mx":
                self._count_lookup()
                hosts = await self._query(target, "MX")
                if len(hosts) > MX_HOSTS_MAX:
                    raise _Ends("permerror")
                return sign, await self._is_of(hosts, prefix)
            case "ptr":
                self._count_lookup()
                return sign, False
            case "exists":
                raise _Ends("unclear")
        raise _Ends("permerror")

    async def _is_of(self, hosts: Sequence[str], prefix: str) -> bool:
        """Whether our address is in the network of a host's address: `/24`, `//64`, `/24//64`."""
        four, _, six = prefix.removeprefix("/").partition("//")
        if prefix.startswith("//"):
            four, six = "", prefix[2:]
        is_four = self._address.version == 4
        length = (four or "32") if is_four else (six or "128")
        kind: RecordType = "A" if is_four else "AAAA"
        for host in hosts:
            for found in await self._query(host, kind):
                try:
                    network = ip_network(f"{found}/{length}", strict=False)
                except ValueError:
                    raise _Ends("permerror") from None
                if self._address in network:
                    return True
        return False

    async def _query(self, name: str, kind: RecordType) -> list[str]:
        try:
            return await self._questions.records(name, kind)
        except ValueError:  # no name
            raise _Ends("permerror") from None

    def _count_lookup(self) -> None:
        self._lookups += 1
        if self._lookups > LOOKUPS_MAX:
            raise _Ends("permerror")


def _plain(domain: str) -> str:
    if "%" in domain:
        raise _Ends("unclear")
    return domain
