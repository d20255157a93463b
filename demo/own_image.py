"""`make demo-own-image`: a user brings an image and inputs without any help from the site.

The user has a token for group physics and no other rights. The same image is pushed twice, as an archive from
`docker save` and as a SIF file. There are two campaigns of two runs each. They read a steering file that the user
sends, 100 MB of common input from a URL, and constants in a folder on the nodes. Their memory and time are limited. All
runs begin on one node. Then a regular job needs that node, and the runs continue on other nodes. At the end, each run
is compared with the same run in Docker without interruption.
"""

import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from demo import cluster, nsenter, proof, reference, sif_file, web_server
from demo.campaign import OUTPUT, console, ended, judged, show_runs, stage, write

IMAGE = "gleaner/steered:demo"
PLACE = Path("/var/lib/gleaner/demo-own-image")
"""The user's files on this machine, which the uninterrupted runs read as well."""
ON_HEAD = "/tmp/own-image"
CALIB = "/opt/site/calib"
"""A folder on the nodes that the site allows jobs to mount (`deploy/settings/privileged.json`)."""
CONSTANTS = "scale = 3\n"
PROCESS = "hardqcd"
RUNS, COMPUTING_S = 4, 60.0
"""The number of runs that compute at the same time, and the seconds for which each computes on this machine."""
WEIGHTS_BYTES = 100_000_000
GIVE_UP_S = 900
ROUNDS: dict[str, object] = {"length_s": 600, "shortest_slice_s": 10}
"""The settings of rounds, which are so long that runs migrate only because of regular jobs."""
WORK_BEFORE_MOVE = 40
"""The number of printed lines after which a run has work to lose."""
CAMPAIGN = """\
image: {image}
name: {name}
command: ["--seed", "{{index}}"]
indices: {first}-{last}
memory_mib: 400..800
compute_limit: 20m
silent_limit: 10m
never_retry_on: [2]
inputs:
  - steering.txt
  - url: {url}
    sha256: {sha256}
mounts: [{calib}]
"""


@dataclass(slots=True)
class Brought:
    """Something that the runs need, with its file and the numbers of bytes that were transferred."""

    what: str
    file_bytes: int
    uploaded_bytes: int
    stored: str
    """Its place in the storage folder."""
    fetched: str = ""
    cached: str = "while needed"
    stored_bytes: int = 0


def main() -> int:
    """Run the demo, and return 0 if every result is proven right."""
    began_s = time.time()
    stage("5 of 5: a user's own image and inputs", "4 min; a minute more the first time")
    OUTPUT.mkdir(exist_ok=True)
    wanted = prepare()
    with web_server.serving(PLACE / "inputs") as server, calib_on_nodes():
        return show(server, wanted, began_s)


def show(server: web_server.WebServer, wanted: Sequence[reference.Wanted], began_s: float) -> int:
    """Push the images, submit and migrate the runs, and compare the results. Return the exit status."""
    with ThreadPoolExecutor(max_workers=len(wanted)) as beside:
        whole = [beside.submit(uninterrupted, run) for run in wanted]
        make_files()
        cluster.configure({"rounds": ROUNDS, "inputs": {"urls": [web_server.BASE], "mounts": [CALIB]}})
        cluster.clear()
        look_again()
        images = [push("lab:docker", "image.tar", "docker"), push("lab:sif", "image.sif", "sif")]
        runs = [run.result() for run in whole]
    moved_s = time.time()
    regular = [occupy("alice", ["node2", "node3"])]
    console.print("a regular job has node2 and node3; two campaigns of two runs each are submitted")
    campaigns, inputs = submit(wanted)
    try:
        move(campaigns, regular)
        finish(campaigns)
    finally:
        for job in regular:
            cluster.run("head", "scancel", job)
        cluster.configure()
    inputs[1].fetched = f"from the URL: {sum('weights.bin' in path for path in server.asked)}, by agents: "
    return conclude(campaigns, wanted, runs, images, inputs, computed_s=time.time() - moved_s, began_s=began_s)


def as_user(*words: str) -> Any:
    """Return the answer of `glean` when a user of group physics runs it."""
    return cluster.glean(*words, as_user=True, timeout_s=300)


# ── the user's files ──────────────────────────────────────────────────────────────────────────────────────


def prepare() -> list[reference.Wanted]:
    """Build the user's image and write the inputs. Return the runs."""
    built = ["build", "--quiet", "--tag", IMAGE, str(cluster.ROOT / "images" / "steered")]
    subprocess.run([*nsenter.OUTER, *built], check=True, capture_output=True, timeout=300)
    for name in ("inputs", "calib"):
        (PLACE / name).mkdir(parents=True, exist_ok=True)
    weights = PLACE / "inputs" / "weights.bin"
    if not weights.exists():
        weights.write_bytes(random.Random(1).randbytes(WEIGHTS_BYTES))
    (PLACE / "calib" / "constants").write_text(CONSTANTS)
    events = reference.events_within(COMPUTING_S, at_once=RUNS)
    steering = f"process = {PROCESS}\nevents = {events}\nconstants = {CALIB}/constants\n"
    (PLACE / "inputs" / "steering.txt").write_text(steering)
    return [reference.Wanted(seed, events) for seed in range(1, RUNS + 1)]


def uninterrupted(run: reference.Wanted) -> proof.Run:
    """Return the uninterrupted run in Docker, which is computed now unless an earlier one was kept."""
    kept = reference.folder(reference.image_id(IMAGE)) / f"own-{run.index}-{run.events}"
    words = ("--seed", str(run.index))
    return reference.run_whole(IMAGE, words, kept, inputs=PLACE / "inputs", mount=(PLACE / "calib", CALIB))


@contextmanager
def calib_on_nodes() -> Iterator[None]:
    """Provide the site's folder on every node."""
    for node in cluster.NODES:
        words = ("sh", "-c", f"mkdir -p {CALIB} && cat >{CALIB}/constants")
        cluster.run(node, *words, stdin=CONSTANTS)
    yield
    for node in cluster.NODES:
        cluster.run(node, "rm", "-rf", CALIB)


def make_files() -> None:
    """Make the archive and the SIF file unless they exist for this image, and copy all files to the user's folder."""
    made = PLACE / "made-of.txt"
    image_id = reference.image_id(IMAGE)
    if not made.exists() or made.read_text() != image_id:
        saved = ["save", "--output", str(PLACE / "image.tar"), image_id]
        subprocess.run([*nsenter.OUTER, *saved], check=True, capture_output=True, timeout=300)
        sif_file.of_image(image_id, PLACE / "image.sif")
        made.write_text(image_id)
    cluster.run("head", "sh", "-c", f"rm -rf {ON_HEAD} && mkdir {ON_HEAD}", user=cluster.SERVICE_USER)
    for name in ("image.tar", "image.sif", "inputs/steering.txt"):
        send(PLACE / name, f"{ON_HEAD}/{Path(name).name}")


def send(file: Path, to: str) -> None:
    """Copy a file from this machine to the head."""
    words = nsenter.words("head", "sh", "-c", f"cat >{to}", user=cluster.SERVICE_USER)
    with file.open("rb") as content:
        subprocess.run(words, stdin=content, check=True, capture_output=True, timeout=300)


def push(name: str, file: str, what: str) -> Brought:
    """Push an image as the user does. Return the number of bytes that were sent."""
    before = wire_bytes()
    row = as_user("image", "push", name, f"{ON_HEAD}/{file}")
    sent_bytes = wire_bytes() - before
    console.print(f"glean image push {name} {file}: {row['image_id'][7:19]}, {sent_bytes / 1e6:.0f} MB sent")
    stored = f"images/{row['image_id'].removeprefix('sha256:')}"
    return Brought(f"{what} image", (PLACE / file).stat().st_size, sent_bytes, stored)


def wire_bytes() -> int:
    """Return the bytes that programs on the head have sent to each other. They include all uploads, because `glean` and
    control both run there."""
    lines = cluster.run("head", "cat", "/proc/net/dev").splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def submit(wanted: Sequence[reference.Wanted]) -> tuple[list[int], list[Brought]]:
    """Submit one campaign for each of the images. Return the campaigns, and the inputs with the bytes that were
    sent."""
    with (PLACE / "inputs" / "weights.bin").open("rb") as weights:
        given = {"url": f"{web_server.BASE}weights.bin", "sha256": hashlib.file_digest(weights, "sha256").hexdigest()}
    campaigns: list[int] = []
    sent: list[int] = []
    for at, kind in enumerate(("docker", "sif")):
        first, last = wanted[2 * at].index, wanted[2 * at + 1].index
        text = CAMPAIGN.format(image=f"lab:{kind}", name=kind, first=first, last=last, calib=CALIB, **given)
        file = f"{ON_HEAD}/{kind}.yaml"
        cluster.run("head", "sh", "-c", f"cat >{file}", user=cluster.SERVICE_USER, stdin=text)
        before = wire_bytes()
        campaigns.append(int(as_user("submit", file)["campaign"]))
        sent.append(wire_bytes() - before)
        console.print(f"glean submit {kind}.yaml: campaign {campaigns[-1]}, {sent[-1] / 1e6:.1f} MB sent")
    steering = Brought(
        "steering file", (PLACE / "inputs" / "steering.txt").stat().st_size, sum(sent), "", fetched="by agents: "
    )
    return campaigns, [steering, Brought("input from a URL", WEIGHTS_BYTES, 0, "")]


def look_again() -> None:
    """Run a new agent on each node if agents have run before, because those did not see the site's folder."""
    if not cluster.api("GET", "/agents"):
        return
    words = ("--group", "physics", "--image", reference.IMAGE, "--cpus", "6", "--memory-mib", "400", "--array", "1-3")
    jobs = cluster.glean("submit", *words, after=reference.arguments("{index}", 1_000_000))["jobs"]
    cluster.until("an agent on each node", lambda: all(map(cluster.log_of, jobs)), timeout_s=GIVE_UP_S)
    cluster.clear()


# ── the nodes ─────────────────────────────────────────────────────────────────────────────────────────────


def occupy(user: str, nodes: Sequence[str]) -> str:
    """Submit a regular job that needs these nodes exclusively. Return its id once it runs."""
    options = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", "--exclusive", "--time=20"]
    job = cluster.sbatch(*options, script=f"sleep {GIVE_UP_S}", user=user)
    cluster.until(
        f"{user}'s job to start", lambda: cluster.regular_job(job).state == "RUNNING", timeout_s=cluster.PATIENCE_S
    )
    return job


def rows(campaigns: Sequence[int]) -> list[dict[str, Any]]:
    """Return the jobs of the campaigns, in the order of their seeds."""
    return [row for one in campaigns for row in cluster.api("GET", f"/jobs?campaign={one}&limit=100")["jobs"]]


def move(campaigns: Sequence[int], regular: list[str]) -> None:
    """Submit a regular job for the node with all runs, once each of them has work to lose."""

    def have_all_begun() -> bool:
        found = rows(campaigns)
        return all(row["state"] == "Running" and len(cluster.log_of(row["id"])) > WORK_BEFORE_MOVE for row in found)

    cluster.until("all runs to compute", have_all_begun, timeout_s=GIVE_UP_S)
    console.print("all runs compute on node1; now a regular job wants node1, and the others are free again")
    cluster.run("head", "scancel", regular.pop())
    regular.append(occupy("bob", ["node1"]))


def finish(campaigns: Sequence[int]) -> None:
    """Wait until all runs have ended."""
    cluster.until(
        "the campaigns to end",
        lambda: all(row["state"] == "Complete" for row in rows(campaigns)),
        timeout_s=GIVE_UP_S,
    )


# ── the results ───────────────────────────────────────────────────────────────────────────────────────────


def conclude(
    campaigns: Sequence[int],
    wanted: Sequence[reference.Wanted],
    whole: Sequence[proof.Run],
    images: Sequence[Brought],
    inputs: Sequence[Brought],
    *,
    computed_s: float,
    began_s: float,
) -> int:
    """Compare and summarize the results. Return the exit status."""
    runs: list[dict[str, Any]] = []
    agents: set[str] = set()
    for at, campaign in enumerate(campaigns):
        jobs = jobs_of([campaign])
        agents |= {attempt["agent"] for job in jobs for attempt in job["attempts"] if attempt["started_s"]}
        mine = slice(2 * at, 2 * at + 2)
        runs += judged(jobs, campaign, wanted[mine], whole[mine], restores_at_least=1, nodes_at_least=2, has_pace=False)
    brought = [*images, *inputs]
    for one, name in zip(inputs, ("steering.txt", "weights.bin"), strict=True):
        (content,) = {
            shown["content"] for job in jobs_of(campaigns) for shown in job["inputs"] if shown["name"] == name
        }
        one.stored = f"inputs/physics/{content.removeprefix('sha256:')}"
    for one in brought:
        one.stored_bytes = int(cluster.run("head", "du", "-sb", f"/srv/gleaner/{one.stored}").split()[0])
    for image in images:
        nodes = nodes_with(f"sha256:{Path(image.stored).name}")
        image.fetched, image.cached = f"by nodes: {len(nodes)}", " ".join(nodes)
    for one in inputs:
        one.fetched += str(len(agents))
    brought.append(Brought(f"mount {CALIB}", len(CONSTANTS), 0, "", fetched="no", cached="on all, by the site"))
    summary = {
        "runs": runs,
        "brought": [{key: getattr(one, key) for key in Brought.__slots__} for one in brought],
        "campaigns_s": round(computed_s, 1),
        "demo_s": round(time.time() - began_s, 1),
    }
    write(summary, "own-image.json")
    show_runs(runs)
    show_brought(brought)
    console.print(f"facts: demo-output/own-image.json    {summary['demo_s']:.0f} s in all")
    return 0 if all(run["identical"] and not run["doubts"] for run in runs) else 1


def jobs_of(campaigns: Sequence[int]) -> list[dict[str, Any]]:
    """Return all details of the campaigns' jobs."""
    return [cluster.api("GET", f"/jobs/{row['id']}") for row in rows(campaigns)]


def nodes_with(image_id: str) -> list[str]:
    """Return the nodes to which agents have fetched the image, according to each node's record."""
    record = "/var/lib/gleaner/work/pulled-images.json"
    found = [(node, cluster.run(node, "sh", "-c", f"cat {record} 2>/dev/null || echo {{}}")) for node in cluster.NODES]
    return [node for node, text in found if image_id in json.loads(text)]


def show_brought(brought: Sequence[Brought]) -> None:
    """Print the table of the files that the runs needed."""
    table = Table(title="what was uploaded, stored, fetched and cached, in MB", title_justify="left")
    for column in ("what", "file", "uploaded", "stored", "fetched", "on the nodes now"):
        table.add_column(column, justify="right" if column in {"file", "uploaded", "stored"} else "left")
    for one in brought:
        sizes = (f"{size / 1e6:.1f}" for size in (one.file_bytes, one.uploaded_bytes, one.stored_bytes))
        table.add_row(one.what, *sizes, one.fetched, one.cached)
    console.print(table)


if __name__ == "__main__":
    sys.exit(ended(main, "make demo-own-image"))
