"""The images that may run: those of the list, however the name is spelt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.settings import SiteAgentSettings
from gleaner.agent.system.image_names import full_name, refusal

ID = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("image", "pattern"),
    [
        ("registry.site/physics/pythia:8", "registry.site/physics/*"),
        ("registry.site/physics/a/b/pythia@sha256:00", "registry.site/physics/*"),
        ("registry.site:5000/physics/pythia", "registry.site:5000/physics/pythia"),
        ("registry.site/physics/pythia:8", "registry.site/physics/pythia"),
        ("registry.site/physics/pythia:8", "registry.site/physics/pythia:*"),
        ("gleaner/pi", "gleaner/*"),
        ("docker.io/gleaner/pi", "gleaner/*"),
        ("gleaner/pi:demo", "docker.io/gleaner/*"),
        ("debian", "debian"),
        ("docker.io/debian", "library/*"),
        ("a.site/x", "*.site/*"),
        (ID, "*"),
        ("anything", "*"),
    ],
)
def test_what_the_list_says_may_run(image: str, pattern: str) -> None:
    assert refusal(image, ["other.site/*", pattern]) == ""


@pytest.mark.parametrize(
    ("image", "pattern"),
    [
        ("evil.site/registry.site/physics/x", "registry.site/physics/*"),
        ("registry.site.evil.site/physics/x", "registry.site/physics/*"),
        ("registry.site:80/physics/x", "registry.site/physics/*"),
        ("evil.site/a.site/x", "*.site.org/*"),
        ("evil.org/x.site/y", "*.site/*"),
        ("physics/x", "registry.site/physics/*"),
        ("registry.site/physics-evil/x", "registry.site/physics/*"),
        ("registry.site/physics/pythia:9", "registry.site/physics/pythia:8"),
        ("registry.site/physics/pythia-evil", "registry.site/physics/pythia"),
        ("evil.site/gleaner/pi", "gleaner/*"),
        ("localhost/gleaner/pi", "gleaner/*"),
        ("gleaner", "gleaner/*"),
        (ID, "library/*"),
        (ID, "*/*"),
        (ID.removeprefix("sha256:"), "docker.io/*"),
        ("REGISTRY.SITE/physics/x", "registry.site/physics/*"),
    ],
)
def test_what_only_looks_like_it_may_not(image: str, pattern: str) -> None:
    refused = refusal(image, [pattern])
    assert image in refused
    assert pattern in refused
    assert "images_allowed" in refused


def test_the_beginning_of_an_id_names_no_image_of_the_node() -> None:
    """To the engine a short name may be an id; the full name is none."""
    assert full_name("0123456789ab") == "docker.io/library/0123456789ab:latest"


@given(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:/@-]{0,40}\Z"))
def test_nothing_may_run_where_nothing_is_allowed_and_all_names_have_one_full_name(image: str) -> None:
    assert refusal(image, [])
    assert full_name(full_name(image)) == full_name(image)


def test_as_shipped_only_the_projects_own_images_may_run() -> None:
    assert SiteAgentSettings().images_allowed == ("gleaner/*",)
