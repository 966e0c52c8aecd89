"""`python -m mailprobe.api.health_check`: is the service of this machine healthy?

For container engines and other supervisors. It reads the same settings as the service, so
it asks at the address that MAILPROBE_BIND names; a wildcard address is asked at loopback.
It needs no other program and uses no proxy.

It exits with 0 if the service answers and its database can be written, else with 1 and one
line on standard error. `--bind` of `mailprobe serve` is unknown to it: set MAILPROBE_BIND.
"""

import http.client
import json
import os
import sys

from .setting_values import Bind
from .settings import Settings, WrongSetting

TIMEOUT_S = 2.0  # the service itself gives its database one second
PATH = "/health"


class Unhealthy(Exception):
    """The service does not answer, or says that it is not well. The message is for the operator."""


def main() -> int:
    """Check the service that the environment describes; return the exit code."""
    try:
        check(Settings.read(os.environ).bind)
    except (Unhealthy, WrongSetting) as error:
        print(f"mailprobe: {error}", file=sys.stderr)
        return 1
    return 0


def check(bind: Bind) -> None:
    """Ask the service at this address; TIMEOUT_S limits each step. Raises Unhealthy."""
    if bind.port == 0:
        raise Unhealthy(
            "MAILPROBE_BIND has port 0, which is any free port: name one to have it checked"
        )
    at = bind.loopback
    connection = http.client.HTTPConnection(at.host, at.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", PATH)
        answer = json.load(connection.getresponse())
    except OSError as error:
        raise Unhealthy(f"{at.url}{PATH} did not answer: {error}") from None
    except (http.client.HTTPException, ValueError):
        raise Unhealthy(f"{at.url}{PATH} is answered by another program than mailprobe") from None
    finally:
        connection.close()
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        raise Unhealthy(f"{at.url}{PATH} says that the service is not well; its log says why")


if __name__ == "__main__":
    sys.exit(main())
