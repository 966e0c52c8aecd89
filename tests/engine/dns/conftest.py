"""A certificate authority for the resolvers of these tests."""

import pytest
import trustme


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def ca_file(authority, tmp_path):
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)
