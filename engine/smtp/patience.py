"""Patience: the deadlines of hosts that were slow, in a later pass of a list.

Requests and first passes keep the deadlines of the settings. A later pass may wait: for
the pause before a greeting (postscreen, 6 s), for callouts, and for tarpits (Exchange, 5 s).
So that a host is not burdened for it, it gets few connections.
"""

from msgspec import Struct

from ..settings import EngineSettings

PATIENT_S = 60.0  # layer 4, all of it: eight refusals of a tarpit of 5 s, and a random address
PATIENT_READ_S = 10.0  # a connect, a banner, each reply
PATIENT_CONNECTIONS = 2  # to one host


def overall_s(settings: EngineSettings, patient: bool) -> float:
    """How long layer 4 may take for an address."""
    return PATIENT_S if patient else settings.probe_s


def connections_max(settings: EngineSettings, patient: bool) -> int:
    """How many connections a host may have. A patient pass leaves one to requests, if it can."""
    return (
        min(PATIENT_CONNECTIONS, max(1, settings.host_connections - 1))
        if patient
        else settings.host_connections
    )


class HostClocks(Struct, frozen=True):
    """How long one mail host may take."""

    patient: bool  # it may be slow for all: nothing is sent elsewhere meanwhile
    read_s: float  # of a connect, a banner, or each reply, at most
    overall_s: tuple[float, float]  # of an address in all; of a patient one

    @classmethod
    def of(cls, settings: EngineSettings, patient: bool) -> "HostClocks":
        """Of an ordinary host, or of one in a patient pass."""
        read_s = PATIENT_READ_S if patient else settings.read_s
        return cls(patient, read_s, (settings.probe_s, PATIENT_S))
