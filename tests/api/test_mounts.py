"""A job that mounts what the site does not allow is refused at its submission."""

import pytest
from tests.api.api_harness import ApiHarness, detail

from gleaner.control.settings import InputSettings, Settings

ALLOWED = ["/cvmfs/atlas.cern.ch", "/data/calib"]


def allow(harness: ApiHarness, *folders: str) -> None:
    harness.change(inputs=InputSettings(mounts=folders))


def refusal(harness: ApiHarness, *mounts: str) -> str:
    job = {"name": "pi", "image": "gleaner/pi", "mounts": mounts}
    return detail(harness.user.post("/v1/jobs", {"job": job}), 422)


def test_a_folder_that_is_not_allowed_is_refused_in_one_line_with_those_that_are(harness: ApiHarness) -> None:
    assert refusal(harness, "/data") == (
        "job.mounts: /data is not among the folders that jobs may mount here: none, until an admin allows some"
        " in [inputs] mounts"
    )
    allow(harness, *ALLOWED)
    for folder in ("/data", "/cvmfs/atlas.cern.ch/repo", "/cvmfs/atlas.cern"):
        assert refusal(harness, folder) == (
            f"job.mounts: {folder} is not among the folders that jobs may mount here: {', '.join(ALLOWED)}"
        )
    job = harness.user.submit(spec={"mounts": ["/data/calib", "/cvmfs/atlas.cern.ch"]})
    assert harness.user.get(f"/v1/jobs/{job}").json()["spec"]["mounts"] == ALLOWED


def test_what_is_no_list_of_folders_is_refused_in_one_line(harness: ApiHarness) -> None:
    """The rules are those of `mount_folders.fault_of_list`."""
    allow(harness, *ALLOWED)
    assert refusal(harness, "/data", "/data/calib").endswith("/data/calib is in /data: name one of the two")
    assert "at most 16" in refusal(harness, *(f"/data{number}" for number in range(17)))


@pytest.mark.parametrize(
    "folder", ["data", "/", "/job/x", "/data/..", "/var/lib/gleaner/storage", "/var/lib/gleaner/work/a", "/var/lib"]
)
def test_the_site_allows_no_folder_that_cannot_be_mounted(folder: str) -> None:
    with pytest.raises(ValueError, match=folder):
        Settings.model_validate({"inputs": {"mounts": [folder]}})
