"""What the signals promise of every address that layer 1 accepts."""

from functools import cache, partial
from typing import Literal

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mailprobe.engine.address import Address, NotAnAddress, parse
from mailprobe.engine.lists.lists import Lists, load_lists
from tests.seeds import seeds

SURROGATES: tuple[Literal["Cs"]] = ("Cs",)

# The same examples each time: a gate that fails by chance teaches people to try again.
examples = partial(settings, derandomize=True, deadline=None)

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-"


@cache
def shipped() -> Lists:
    return load_lists()


@cache
def targets() -> list[str]:
    return sorted(shipped().typos.targets)


@cache
def roles() -> list[str]:
    return sorted(shipped().roles)


def accepted(text: str) -> Address:
    try:
        return parse(text)
    except NotAnAddress:
        assume(False)
        raise


@st.composite
def near_a_provider(draw: st.DrawFn) -> str:
    """A provider's domain after up to three letters were lost, changed, added or swapped."""
    domain = draw(st.sampled_from(targets()))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(domain) - 1))
        letter = draw(st.sampled_from(LETTERS + "."))
        domain = draw(
            st.sampled_from(
                [
                    domain[:at] + domain[at + 1 :],
                    domain[:at] + letter + domain[at + 1 :],
                    domain[:at] + letter + domain[at:],
                    domain[:at] + domain[at : at + 2][::-1] + domain[at + 2 :],
                ]
            )
        )
        assume(domain)
    return domain


domains = st.one_of(
    near_a_provider(),
    st.from_regex(r"[a-z0-9-]{1,12}(\.[a-z0-9-]{1,8}){1,4}", fullmatch=True),
    st.text(st.characters(exclude_categories=SURROGATES), min_size=1, max_size=12).map(
        lambda text: f"{text}.com"
    ),
)
locals_ = st.one_of(
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20).map(
        lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    ),
    st.from_regex(r"[a-z+._-]{1,20}", fullmatch=True),
)


@examples(max_examples=seeds(300))
@given(locals_, domains)
def test_no_accepted_address_raises(local: str, domain: str) -> None:
    address = accepted(f"{local}@{domain}")
    assert shipped().signals(address) == shipped().signals(address)


@examples(max_examples=seeds(600))
@given(domains)
def test_a_suggestion_is_another_domain_of_a_known_provider(domain: str) -> None:
    lists = shipped()
    domain = accepted(f"ann@{domain}").domain
    meant = lists.suggestion(domain)
    if domain in lists.free_providers | lists.relays | lists.allowed | lists.smtp_blocked:
        assert meant is None
    if meant is not None:
        assert meant != domain
        assert meant in lists.free_providers
        assert not lists.is_disposable(meant)
        assert lists.suggestion(meant) is None


def test_every_domain_that_can_be_suggested_is_a_known_provider_and_no_throwaway() -> None:
    lists = shipped()
    suggested = lists.typos.targets | set(lists.typos.table.known.values())
    assert suggested <= lists.free_providers
    assert [domain for domain in suggested if lists.is_disposable(domain)] == []


@examples()
@given(domains)
def test_the_local_part_changes_nothing_but_the_role(domain: str) -> None:
    person, role = (
        shipped().signals(accepted(f"{local}@{domain}")) for local in ("ann.smith", "info")
    )
    assert role.role
    assert not person.role
    for name in ("disposable", "free_provider", "smtp_blocked", "suggestion"):
        assert getattr(person, name) == getattr(role, name)


@examples()
@given(st.sampled_from(roles()), st.text("abcXYZ019.-+_", max_size=8), st.booleans())
def test_a_role_stays_one_in_any_case_and_with_any_tag(role: str, tag: str, upper: bool) -> None:
    assert shipped().is_role(role.upper() if upper else role)
    assert shipped().is_role(f"{role}+{tag}")
    assert shipped().is_role(f'"{role}"')
