"""Parts that the types of several subjects share: limits of bodies, instants, texts of fields."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

BODY_OCTETS_MAX = 2 * 1024 * 1024
BODY_S_MAX = 10  # seconds, from a request's head to the end of its body

Instant = Annotated[datetime, Meta(tz=True)]


def says(text: str) -> Meta:
    """What a field is, for the API description."""
    return Meta(description=text)


class AddressBody(Struct, frozen=True):
    """A body with addresses to verify."""

    def texts(self) -> Sequence[str]:
        """The addresses; one unit each."""
        raise NotImplementedError
