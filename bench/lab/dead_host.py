"""The scenario `dead`: one company whose firewall drops our connects, among healthy ones."""

from random import Random

from mailprobe.engine.verdict import Outcome

from ..world.host_profiles import new_host
from .scenario import Scenario

DEAD_DOMAIN = "dropped.test"
DEAD_ADDRESSES = 400
HEALTHY_HOSTS = 40
HEALTHY_EACH = 50  # addresses of a host


def dead(_: Random) -> Scenario:
    """400 addresses at a host that never answers the connect, and 2,000 at 40 healthy hosts."""
    scenario = Scenario()
    scenario.move_in(DEAD_DOMAIN, new_host("unanswered"))
    addresses = (f"known.{number:03}@{DEAD_DOMAIN}" for number in range(DEAD_ADDRESSES))
    scenario.expect(Outcome.TIMED_OUT, *addresses)
    for place in range(HEALTHY_HOSTS):
        domain = f"healthy{place:02}.test"
        scenario.move_in(domain, new_host("plain", f"mx1.{domain}"))
        addresses = (f"known.{number:02}@{domain}" for number in range(HEALTHY_EACH))
        scenario.expect(Outcome.DELIVERABLE, *addresses)
    return scenario
