"""`make demo-campaign`: a week of a group's work in five minutes, with one campaign file, four commands and a user's
token.

The campaign has sixty short Pythia runs over two parameters and several seeds. The group's image lacks one of the
processes, so a third of the runs fail. The user sees the reason, runs the failed ones again with a corrected image, and
fetches the results. At the end, each result is compared with the same run in Docker without Gleaner.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from demo import cluster, nsenter, proof, reference
from demo.campaign import OUTPUT, console, ended, stage, write

FILE = Path(__file__).with_name("scan.yaml")
DOCKERFILE = f"""FROM {reference.IMAGE}
RUN sed -i '/"ttbar"/d' "$(find / -xdev -name generate.py -print -quit)"
"""
FIRST, CORRECTED = "lab:scan", "lab:corrected"
GIVE_UP_S = 900
ROUNDS: dict[str, object] = {"length_s": 120, "shortest_slice_s": 10}


def main() -> int:
    """Run the demo, and return 0 if each result is the same as without Gleaner."""
    began_s = time.time()
    stage("5 of 5: a campaign of a group", "5 min")
    OUTPUT.mkdir(exist_ok=True)
    cluster.configure({"rounds": ROUNDS})
    cluster.clear()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        whole = list(pool.map(_without_gleaner, _points()))
    _push(FIRST, DOCKERFILE)
    _push(CORRECTED, f"FROM {reference.IMAGE}\n")
    submitted_s = time.time()
    glean("submit", str(FILE))
    campaign = max(row["id"] for row in cluster.api("GET", "/campaigns")["campaigns"])
    _wait(campaign)
    glean("campaign", "show", str(campaign))
    glean("rerun", "--campaign", str(campaign), "--failed", "--image", CORRECTED)
    _wait(campaign)
    fetched = OUTPUT / "scan"
    subprocess.run(["rm", "-rf", str(fetched)], check=True)
    glean("results", "--campaign", str(campaign), "--to", str(fetched))
    took_s = time.time() - submitted_s
    differ = [index for index, run in enumerate(whole, start=1) if _files(fetched, campaign, index) != run.files]
    jobs = [cluster.api("GET", f"/jobs/{row['id']}") for row in _rows(campaign)]
    again = sum(len(job["attempts"]) > 1 for job in jobs)
    write({"campaign": campaign, "differ": differ, "again": again, "campaign_s": round(took_s, 1)}, "scan.json")
    console.print(
        f"{len(whole) - len(differ)} of {len(whole)} results are those of runs without Gleaner; {again} ran twice; "
        f"{took_s:.0f} s from the first command to the last, {time.time() - began_s:.0f} s in all"
    )
    return 1 if differ or not again else 0


def glean(*words: str) -> None:
    """Show one of the user's commands and its output."""
    console.print(f"\n$ glean {' '.join(words)}", highlight=False, soft_wrap=True)
    user = cluster.write_user_environment(OUTPUT)
    done = subprocess.run(
        ["bash", "-c", f'. {user}; exec glean "$@"', "glean", *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    console.print(done.stdout + done.stderr, highlight=False, markup=False, soft_wrap=True)
    if done.returncode:
        raise cluster.ClusterError(f"glean {words[0]} ended with exit code {done.returncode}")


def _push(name: str, dockerfile: str) -> None:
    """Build an image and push it to Gleaner, as the user does before the campaign."""
    built = f"gleaner-demo/{name}"
    words = ["docker", "--host", nsenter.SOCKET, "build", "--quiet", "--tag", built, "-"]
    subprocess.run(words, input=dockerfile, text=True, check=True, capture_output=True, timeout=300)
    glean("image", "push", name, built)


def _points() -> list[dict[str, str]]:
    """Return the values of each job, in the order of their indices."""
    parameters: Mapping[str, Any] = yaml.safe_load(FILE.read_text())["parameters"]
    first, last = parameters["seed"].split("-")
    seeds = range(int(first), int(last) + 1)
    rows = itertools.product(parameters["process"], parameters["events"], seeds)
    return [dict(zip(parameters, map(str, row), strict=True)) for row in rows]


def _without_gleaner(point: Mapping[str, str]) -> proof.Run:
    words = ("--process", point["process"], "--events", point["events"], "--seed", point["seed"], "--out", ".")
    kept = reference.folder(reference.image_id()) / f"scan-{'-'.join(point.values())}"
    return reference.run_whole(reference.IMAGE, words, kept)


def _rows(campaign: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = cluster.api("GET", f"/jobs?campaign={campaign}&limit=1000")["jobs"]
    return rows


def _wait(campaign: int) -> None:
    """Wait until all jobs have ended."""
    cluster.until(
        "the campaign to end",
        lambda: all(row["state"] == "Complete" for row in _rows(campaign)),
        timeout_s=GIVE_UP_S,
    )


def _files(fetched: Path, campaign: int, index: int) -> dict[str, bytes]:
    folder = fetched / f"campaign-{campaign}" / f"scan-{index}"
    files = sorted(folder.glob("[!.]*"))  # without the record of `glean results`
    return {path.name: path.read_bytes() for path in files}


if __name__ == "__main__":
    sys.exit(ended(main, "make demo-campaign"))
