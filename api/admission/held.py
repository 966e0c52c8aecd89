"""A request's share of admission control, handed along with the request."""

from dataclasses import dataclass

from .overload import Ticket
from .request_bodies import ArrivingBody


@dataclass(frozen=True, slots=True)
class Admission:
    """One request's ticket and body. Calls do nothing for a request that has none."""

    ticket: Ticket | None = None  # of a POST
    arrival: ArrivingBody | None = None  # of a body that came after the head

    def admitted(self) -> None:
        """The request leaves the queue: it has its reservation, or needs none."""
        if self.ticket is not None:
            self.ticket.leave()

    def identified(self, account_id: str) -> None:
        """The request has a key of this account."""
        if self.arrival is not None:
            self.arrival.identify(account_id)

    def stored(self, octets: int) -> None:
        """So many octets of the request's body are on disk."""
        if self.arrival is not None:
            self.arrival.free(octets)


NO_ADMISSION = Admission()  # of work that is no request, or that no queue rejects
