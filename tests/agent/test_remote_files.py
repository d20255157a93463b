"""A job whose input comes from a server of XRootD, and whose results go to one and to a server of S3, end to end."""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from pydantic import SecretStr
from tests.agent.control_harness import Control, job_spec
from tests.transfer.bad_server import bad_server
from tests.transfer.processes import s3_running
from tests.transfer.s3_server import BUCKET
from tests.transfer.xrootd_server import xrootd

from gleaner.agent.job_spec import OutputSpec, UrlInputSpec
from gleaner.agent.transfer.remotes import schemes
from gleaner.control.models.outputs import DeliveryPhase
from gleaner.control.models.secrets import SecretPut
from gleaner.control.queue import jobs, secret_key, secrets
from gleaner.control.queue.database import transaction
from gleaner.control.settings import InputSettings, OutputSettings

pytestmark = pytest.mark.extended
CONTENT = hashlib.shake_128(b"events").digest(5 * 2**20 + 7)


@pytest.fixture
def files() -> Iterator[Path]:
    """The folder of a server of XRootD, which its own account reaches, with an input."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o755)
    (place / "files/new").mkdir(parents=True)
    (place / "files/in.root").write_bytes(CONTENT)
    shutil.chown(place / "files/new", "nobody")
    yield place
    shutil.rmtree(place)


def with_secret(control: Control, s3: str) -> None:
    """Let the group have keys for the server of S3."""
    key_file = control.folder / "secrets.key"
    secret_key.make(key_file)
    queue = control.state.settings.queue.model_copy(update={"secret_key_file": key_file})
    control.state.settings = control.state.settings.model_copy(update={"queue": queue})
    given = SecretPut(name="s3", url=s3, value=SecretStr("AKIAEXAMPLE:wJalrXUtnFEMI"))
    with transaction(control.state.engine) as db:
        keys = secret_key.read(key_file)
        secrets.put(db, given, group="physics", setter="ada", keys=keys, now_s=control.now_s)


def test_an_input_from_xrootd_arrives_and_results_go_to_s3_and_to_xrootd(
    control: Control, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        bad_server(tmp_path) as certified,
        s3_running(certified.certificate) as s3_port,
        xrootd(files, "data", "all.export /") as root_port,
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(certified.certificate))
        root, s3 = f"root://127.0.0.1:{root_port}//", f"s3://127.0.0.1:{s3_port}/{BUCKET}/"
        settings = {
            "inputs": InputSettings(urls=(root,)),
            "outputs": OutputSettings(urls=(f"{root}new/{{group}}/", f"{s3}{{group}}/")),
        }
        control.state.settings = control.state.settings.model_copy(update=settings)
        with_secret(control, s3)
        given = (UrlInputSpec(name="in.root", url=f"{root}in.root", into_job=True),)
        rules = jobs.SubmissionRules(0, urls=(root,), targets=(f"{root}new/physics/", f"{s3}physics/"))
        made = list[int]()
        for to in rules.targets:
            wanted = job_spec("5")
            spec = wanted.job.model_copy(update={"inputs": given, "outputs": OutputSpec(to=f"{to}{{job}}/")})
            with transaction(control.state.engine) as db:
                submission = wanted.model_copy(update={"job": spec})
                made += jobs.submit(db, submission, group="physics", rules=rules, now_s=control.now_s).jobs
        assert control.live(control.agent("a", lives_s=600, idle_s=5.0, node={"fetches": schemes()})) == 0
        ends = [control.job(job).delivery for job in made]
        assert [end and (end.phase, end.problem) for end in ends] == [(DeliveryPhase.DELIVERED, "")] * 2
        there = files / f"files/new/physics/{made[0]}"
        at_root = {str(path.relative_to(there)): path.read_bytes() for path in there.rglob("*") if path.is_file()}
        at_s3 = objects(s3_port, certified.certificate, f"physics/{made[1]}/")
    for job, found in zip(made, (at_root, at_s3), strict=True):
        assert found["in.root"] == CONTENT
        lines = found.pop(f"job-{job}.sha256").decode().splitlines()
        assert lines == [f"{hashlib.sha256(found[name]).hexdigest()}  {name}" for name in sorted(found)]


def objects(port: int, certificate: Path, prefix: str) -> dict[str, bytes]:
    """The objects below a prefix."""
    client: Any = boto3.client(
        "s3", endpoint_url=f"https://127.0.0.1:{port}", region_name="us-east-1", verify=str(certificate),
        aws_access_key_id="any", aws_secret_access_key="any",
    )  # fmt: skip
    keys = [one["Key"] for one in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]
    return {key.removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
