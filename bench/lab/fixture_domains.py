"""The firms of the default scenario, and their mailboxes.

They do not depend on the seed: `examples/list.csv` is made from them, so the lab answers
for each of its domains, with a known outcome.
"""

import unicodedata
from functools import cache
from random import Random

from msgspec import Struct

STAFF = 6  # mailboxes of a firm


class Firm(Struct, frozen=True):
    """`kind` names the row of scenarios.KINDS that says what its mail host is like."""

    domain: str  # as people write it: an international one in its own letters
    company: str
    city: str
    kind: str


class FixturePerson(Struct, frozen=True):
    name: str
    address: str


FIRMS = tuple(
    Firm(*row)
    for row in (
        # a provider's customers: many domains, one pair of exchanges
        ("harbour-books.test", "Harbour Books, Ltd", "Bristol", "hub"),
        ("northwind-tea.test", "Northwind Tea", "Aberdeen", "hub"),
        ("casa-verde.test", "Casa Verde", "Lisboa", "hub"),
        ("ateliers-duval.test", "Ateliers Duval", "Nantes", "hub"),
        ("pixelgarten.test", "Pixelgarten GmbH", "Leipzig", "hub"),
        ("old-mill-bakery.test", "Old Mill Bakery", "Galway", "hub"),
        ("sundby-cykler.test", "Sundby Cykler", "København", "hub"),
        ("velaro-legal.test", "Velaro, Conti & Partners", "Milano", "hub"),
        ("kestrel-audio.test", "Kestrel Audio", "Leeds", "hub"),
        ("lumen-dental.test", "Lumen Dental, P.C.", "Denver", "hub"),
        ("papier-und-tinte.test", "Papier & Tinte", "Basel", "hub"),
        ("riverside-vets.test", "Riverside Vets", "Cork", "hub"),
        # one host each, of the servers in the field
        ("steinbach-werke.test", "Steinbach Werke AG", "Stuttgart", "postfix"),
        ("orchard-analytics.test", "Orchard Analytics", "Cambridge", "postfix"),
        ("fjordline-design.test", "Fjordline Design", "Bergen", "postfix"),
        ("tallinn-robotics.test", "Tallinn Robotics OÜ", "Tallinn", "postfix"),
        ("quarry-hill.test", "Quarry Hill School", "York", "postfix"),
        ("banyan-trading.test", "Banyan Trading, Inc.", "Singapore", "exim"),
        ("hotel-belvedere.test", "Hotel Belvédère", "Genève", "exim"),
        ("coastal-freight.test", "Coastal Freight", "Rotterdam", "exim"),
        ("willow-studio.test", "Willow Studio", "Portland", "exim"),
        ("puffy-systems.test", "Puffy Systems", "Calgary", "opensmtpd"),
        ("grey-heron.test", "Grey Heron Press", "Oxford", "opensmtpd"),
        ("meridian-bank.test", "Meridian Bank", "Frankfurt", "exchange"),
        ("alderman-group.test", "Alderman Group, LLC", "Chicago", "exchange"),
        ("novacare-clinic.test", "NovaCare Clinic", "Wien", "exchange"),
        ("bluepeak-energy.test", "BluePeak Energy", "Houston", "exchange"),
        ("startdeck.test", "Startdeck", "Berlin", "google"),
        ("fieldnote.test", "Fieldnote", "Toronto", "google"),
        ("copperleaf.test", "Copperleaf", "Austin", "google"),
        ("juniper-labs.test", "Juniper Labs", "Dublin", "google"),
        # good hosts with ways of their own
        ("mainframe-museum.test", "Mainframe Museum", "Poughkeepsie", "helo only"),
        ("stadtwerke-altmark.test", "Stadtwerke Altmark", "Stendal", "no pipelining"),
        ("one-by-one.test", "One by One Couriers", "Gent", "one recipient"),
        ("declared-limits.test", "Declared Limits", "Utrecht", "one recipient declared"),
        ("kiwi-orchards.test", "Kiwi Orchards", "Nelson", "far away"),
        ("patagonia-treks.test", "Patagonia Treks", "Ushuaia", "far away"),
        ("jittery-line.test", "Jittery Line Telecom", "Palermo", "splitting"),
        ("boulangerie-martin.test", "Boulangerie Martin", "Lyon", "latin-1"),
        ("second-chance.test", "Second Chance Bikes", "Malmö", "spare exchange"),
        ("patient-parcels.test", "Patient Parcels", "Antwerpen", "slow first exchange"),
        ("müller-söhne.test", "Müller & Söhne GmbH", "Köln", "postfix"),
        ("smørrebrød.test", "Smørrebrød & Co", "Aarhus", "hub"),
        ("例え.test", "例え株式会社", "東京", "exchange"),
        # hosts that take everything
        ("everymail.test", "Everymail Agency", "Praha", "catch all"),
        ("bramble-and-co.test", "Bramble & Co", "Bath", "catch all"),
        ("tidewater-homes.test", "Tidewater Homes", "Norfolk", "catch all"),
        ("zenit-reklam.test", "Zenit Reklám Kft.", "Budapest", "catch all"),
        # hosts that take the real one and say nothing certain of others
        ("wary-notaries.test", "Wary Notaries", "Luxembourg", "wary"),
        ("cautious-capital.test", "Cautious Capital", "Zürich", "unverifying"),
        # refusals that speak of something else
        ("greylist-guild.test", "Greylist Guild", "Graz", "greylisting"),
        ("monday-morning.test", "Monday Morning Media", "Oslo", "not now"),
        ("fortress-insurance.test", "Fortress Insurance", "Hartford", "blocklisted"),
        ("reverse-names.test", "Reverse Names", "Ljubljana", "no reverse name"),
        ("bancroft-industries.test", "Bancroft Industries", "Detroit", "banned"),
        ("moved-away.test", "Moved Away Logistics", "Poznań", "relaying"),
        ("full-house.test", "Full House Events", "Las Vegas", "full"),
        ("photo-archive.test", "Photo Archive", "Firenze", "over quota"),
        ("former-glory.test", "Former Glory Cinemas", "Glasgow", "disabled"),
        ("ascii-only.test", "ASCII Only Archives", "Gdańsk", "no smtputf8"),
        # hosts with which no conversation succeeds
        ("nobody-home.test", "Nobody Home", "Reno", "refused"),
        ("slammed-door.test", "Slammed Door Theatre", "Edinburgh", "closing"),
        ("closed-on-hello.test", "Closed on Hello", "Porto", "closing at ehlo"),
        ("closed-on-mail.test", "Closed on Mail", "Porto", "closing at mail"),
        ("mid-sentence.test", "Mid Sentence Publishing", "Boston", "closing in mid reply"),
        ("night-shift.test", "Night Shift Security", "Essen", "shutting down"),
        ("shutting-later.test", "Shutting Later", "Essen", "shutting down at rcpt"),
        ("guarded-gate.test", "Guarded Gate", "Haifa", "blocked at banner"),
        ("guarded-sender.test", "Guarded Sender", "Haifa", "blocked at mail"),
        ("web-on-port-25.test", "Web on Port 25", "Shenzhen", "garbage"),
        ("reset-button.test", "Reset Button Games", "Kyoto", "resetting"),
        ("endless-talk.test", "Endless Talk Radio", "Memphis", "endless ehlo"),
        ("no-such-exchange.test", "No Such Exchange", "Riga", "exchange without address"),
        # hosts that outlast the clocks
        ("silent-monastery.test", "Silent Monastery", "Melk", "silent"),
        ("unanswered-calls.test", "Unanswered Calls", "Perth", "unanswered"),
        ("dripping-tap.test", "Dripping Tap Plumbing", "Hull", "dripping"),
        ("stalled-engine.test", "Stalled Engine Garage", "Turin", "stalling at rcpt"),
        ("late-riser.test", "Late Riser Café", "Sevilla", "late"),
        # names that the resolver says have no mail
        ("no-mail-here.test", "No Mail Here", "Bern", "null mx"),
        ("parked-domain.test", "Parked Domain", "Miami", "no records"),
        ("never-registered.test", "Never Registered", "Split", "no such name"),
        # names about which the resolver fails
        ("broken-dnssec.test", "Broken DNSSEC", "Brno", "servfail"),
        ("refused-zone.test", "Refused Zone", "Sofia", "refused name"),
        ("captive-portal.test", "Captive Portal Hotels", "Dubai", "html"),
        ("looping-alias.test", "Looping Alias", "Kraków", "alias loop"),
        ("wrong-answer.test", "Wrong Answer", "Minsk", "wrong question"),
        ("lost-exchange.test", "Lost Exchange", "Tirana", "exchange servfail"),
        # throwaway domains, and a typo that the lists call one
        ("mailinator.com", "", "", "throwaway"),
        ("guerrillamail.com", "", "", "throwaway"),
        ("yopmail.com", "", "", "throwaway"),
        ("gmial.com", "", "", "throwaway"),
        # providers that answer no prober
        ("gmail.com", "", "", "provider gmail-smtp-in.l.google.com"),
        ("googlemail.com", "", "", "provider gmail-smtp-in.l.google.com"),
        ("outlook.com", "", "", "provider outlook-com.olc.protection.outlook.com"),
        ("hotmail.com", "", "", "provider hotmail-com.olc.protection.outlook.com"),
        ("yahoo.com", "", "", "provider mta5.am0.yahoodns.net"),
        ("icloud.com", "", "", "provider mx01.mail.icloud.com"),
        # a free provider that does answer
        ("gmx.de", "", "", "free provider"),
        # slips of the finger at endings that don't exist
        ("gmail.con", "", "", "no such name"),
        ("hotmail.cmo", "", "", "no such name"),
        ("outlook.comm", "", "", "no such name"),
    )
)

_FIRST = (
    "Ann Ben Clara David Emma Finn Grace Hugo Ines Jonas Karin Liam Mia Noah Olga Paul Rosa Sam "
    "Tara Uwe Vera Walter Yara Zoe Amélie Björn Chloë Dušan Éva François Günther Håkon Iñaki "
    "Jürgen Kateřina Łukasz María Nuño Özlem Päivi René Søren Tomáš Zofia"
)
_LAST = (
    "Adler Baker Costa Dunne Evans Fischer Garcia Hansen Ito Jansen Keller Lopez Murphy Nowak "
    "Owens Petit Quinn Rossi Silva Tanaka Urban Varga Weber Young Zimmer Brûlé Čapek Díaz Ångström "
    "Gómez Hübner Jørgensen Kovács Łęcki Müller Nuñez O'Brien Pérez Şahin Žižka"
)
FIRST_NAMES, LAST_NAMES = tuple(_FIRST.split()), tuple(_LAST.split())
INTERNATIONAL = ("józef", "用户", "максим", "señal")  # local parts that need SMTPUTF8
NOT_ADDRESSES = (
    "ann.miller",
    "@harbour-books.test",
    "ann..baker@harbour-books.test",
    "ben@",
    "clara@@startdeck.test",
    "david dunne@copperleaf.test",
    "emma@meridian-bank,test",
    ".finn@fieldnote.test",
    "grace.@juniper-labs.test",
    "hugo@-willow-.test",
    "see card",
    "ines@127.0.0.1",
    f"{'j' * 65}@startdeck.test",
)


@cache
def staff(firm: Firm) -> tuple[FixturePerson, ...]:
    """Return the people with a mailbox at the firm, each with a different name."""
    rng = Random(firm.domain)
    shapes = ("{first}.{last}", "{first}.{last}", "{f}{last}", "{first}", "{f}.{last}")
    shape = rng.choice(shapes)
    people: dict[str, FixturePerson] = {}
    while len(people) < STAFF:
        first, last = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
        local = shape.format(first=plain(first), f=plain(first)[0], last=plain(last))
        people.setdefault(local, FixturePerson(f"{first} {last}", f"{local}@{firm.domain}"))
    return tuple(people.values())


def offices(firm: Firm) -> tuple[FixturePerson, ...]:
    return (FixturePerson("", f"info@{firm.domain}"), FixturePerson("", f"sales@{firm.domain}"))


def leavers(firm: Firm) -> tuple[FixturePerson, ...]:
    """Return the former staff, whose mailboxes no longer exist."""
    rng = Random(f"left {firm.domain}")
    return tuple(
        FixturePerson(
            f"{first} {last}",
            f"{plain(first)}.{plain(last)}-{rng.randrange(80, 100)}@{firm.domain}",
        )
        for first, last in zip(rng.sample(FIRST_NAMES, 3), rng.sample(LAST_NAMES, 3), strict=True)
    )


def plain(name: str) -> str:
    """A name as it stands in an address: lower case ASCII letters."""
    special = name.lower().replace("ł", "l").replace("ø", "o").replace("ß", "ss").replace("'", "")
    folded = unicodedata.normalize("NFKD", special)
    return "".join(letter for letter in folded if letter.isascii())
