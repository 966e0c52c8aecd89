"""Checks that the OpenID provider of the settings describes itself as their issuer."""

from mailprobe.storage import utc_now

from ..doctor.checks import SIGN_IN, Check
from ..service import OpenIdFailed
from ..settings import Settings
from .openid import open_openid, openid_settings


async def examine_sign_in(settings: Settings) -> Check:
    """The check of sign-in by OpenID Connect, which is set."""
    async with open_openid(openid_settings(settings), "", utc_now) as provider:
        assert provider is not None
        try:
            await provider.check()
        except OpenIdFailed as error:
            return SIGN_IN.failed("unusable", str(error), provider.name)
        return SIGN_IN.ok("it describes itself", provider.name)
