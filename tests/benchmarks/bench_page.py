"""The web page with a hundred thousand jobs and a thousand nodes: `make bench-page`; two minutes.

`first_paint_s`: the 95th percentile, in Chromium on this machine, of all pages in turn. `open_pages_mib`: by how much
control grows while twenty live pages are open, each of which listens for news and asks for itself anew as a browser
does. `heartbeat_p99_ms`: of as many agents as speak fifty times a second, without pages and with these twenty.
"""

import asyncio
import math
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import uvicorn
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.stored_figures import StoredFigures, ended
from tests.chromium import Tab, started
from tests.databases import new_sqlite
from tests.slurm.records import seen
from tests.web.made_history import MadeHistory

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.api.app import create_app
from gleaner.control.control_state import ControlState
from gleaner.control.queue import tokens
from gleaner.control.queue.database import connect, transaction
from gleaner.control.settings import QueueSettings, Settings, StorageSettings
from gleaner.control.web.app import with_pages

OUTPUT = Path("bench-output/page.json")
NODES, HOURS, JOBS = 1000, 26, 100_000
PAGES = ("", "/jobs", "/nodes", "/agents", "/timeline", "/timeline?length=1d", "/report", "/jobs/1")
LIVE = ("", "/jobs", "/nodes", "/timeline")
ROUNDS = 5
OPEN_PAGES = 20
BEATS_PER_S = 50
BEATING_S = 20.0
POLL_S = 20.0
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures, and what each may be at most."""

    first_paint_s: float
    open_pages_mib: float
    heartbeat_p99_ms: float
    heartbeat_with_pages_p99_ms: float

    @property
    def limits(self) -> dict[str, float]:
        """The most that each may be."""
        return {
            "first_paint_s": 1.0,
            "open_pages_mib": 200.0,
            "heartbeat_with_pages_p99_ms": 1.2 * self.heartbeat_p99_ms + 20,
        }


@dataclass(frozen=True, slots=True)
class Voice:
    """An agent's token, and the attempts that it works on."""

    token: str
    attempts: list[dict[str, int]]


def main() -> None:
    """Measure, print a table, and keep the figures."""
    figures = StoredFigures(OUTPUT, nodes=NODES, hours=HOURS, jobs=JOBS, open_pages=OPEN_PAGES)
    with TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        place = Path(folder)
        url = new_sqlite(place)
        FolderStorage(place / "storage").prepare()
        engine = connect(url)
        made = MadeHistory(NODES, HOURS, JOBS, time.time())
        made.write(engine)
        beating: dict[str, list[dict[str, int]]] = {
            row["name"]: [] for row in made.rows["agent"] if row["ended_s"] is None
        }
        for row in made.rows["attempt"]:
            if row["ended_s"] is None:
                beating[row["agent"]].append({"job": row["job"], "attempt": row["attempt"]})
        with transaction(engine) as db:
            admin = tokens.issue(db, role="admin", name="root", group=None, now_s=time.time())
            voices = {
                name: Voice(tokens.issue(db, role="agent", name=name, group=None, now_s=time.time()), attempts)
                for name, attempts in beating.items()
            }
        nodes, ours = made.slurm()
        service = multiprocessing.get_context("spawn").Process(target=_serve, args=(url, port, place, nodes, ours))
        service.start()
        try:
            home = f"http://127.0.0.1:{port}"
            asyncio.run(_until_up(home))
            paints = _first_paints(f"{home}/web", admin)
            figures.note(first_paint_by_page_s=paints)
            alone_ms, _ = asyncio.run(_beats(home, voices, admin, pages=0))
            before_mib = _memory_mib(service.pid or 0)
            crowded_ms, highest_mib = asyncio.run(_beats(home, voices, admin, pages=OPEN_PAGES, pid=service.pid or 0))
        finally:
            service.terminate()
            service.join()
    every = [each for paint in paints.values() for each in paint]
    found = Figures(
        _percentile(every, 95), highest_mib - before_mib, _percentile(alone_ms, 99), _percentile(crowded_ms, 99)
    )
    figures.note(**asdict(found), limits=found.limits, heartbeats=len(alone_ms) + len(crowded_ms))
    _show(found)


def _serve(url: str, port: int, place: Path, nodes: tuple[object, ...], ours: tuple[object, ...]) -> None:
    """Serve API and pages; every poll has the same answer."""
    storage = FolderStorage(place / "storage")
    settings = Settings(queue=QueueSettings(url=url), storage=StorageSettings(folder=place / "storage"))
    state = ControlState(settings, connect(url), storage, leads_until_s=math.inf)

    def poll() -> None:
        while True:
            state.cluster = seen(time.time(), *nodes, jobs=ours)  # type: ignore[arg-type]
            time.sleep(POLL_S)

    threading.Thread(target=poll, daemon=True).start()
    uvicorn.run(with_pages(create_app(state)), host="127.0.0.1", port=port, log_level="error", access_log=False)


async def _until_up(home: str) -> None:
    async with httpx.AsyncClient() as client:
        for _ in range(int(PATIENCE_S * 10)):
            try:
                await client.get(f"{home}/health", timeout=PATIENCE_S)
            except httpx.TransportError:
                await asyncio.sleep(0.1)
            else:
                return
    raise RuntimeError("control does not answer")


def _first_paints(home: str, token: str) -> dict[str, list[float]]:
    """Return the seconds to the first paint of each page."""
    found: dict[str, list[float]] = {path: [] for path in PAGES}
    with started() as browser:
        tab = Tab(browser, scheme="light", width=1200)
        tab.page.goto(f"{home}/sign-in")
        tab.page.fill("[name=token]", token)
        tab.page.press("[name=token]", "Enter")
        tab.page.wait_for_url(home)
        for _ in range(ROUNDS):
            for path in PAGES:
                tab.page.goto(home + path, wait_until="load")
                script = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
                paint = tab.page.wait_for_function(script).json_value()
                found[path].append(paint / 1000)
    return found


async def _beats(
    home: str, voices: dict[str, Voice], admin: str, *, pages: int, pid: int = 0
) -> tuple[list[float], float]:
    """Return the milliseconds of each heartbeat while so many pages are open, and the highest memory of control."""
    took_ms: list[float] = []
    highest_mib = 0.0
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=home, timeout=PATIENCE_S, limits=limits, follow_redirects=True) as agents:
        viewers = [asyncio.create_task(_view(home, admin, LIVE[n % len(LIVE)])) for n in range(pages)]
        await asyncio.sleep(3 if pages else 0.5)  # the pages are open
        names = list(voices)

        async def beat(name: str) -> None:
            began_s = time.perf_counter()
            head, body = {"Authorization": f"Bearer {voices[name].token}"}, {"attempts": voices[name].attempts}
            answer = await agents.post(f"/v1/agents/{name}/beat", json=body, headers=head)
            answer.raise_for_status()
            took_ms.append(1000 * (time.perf_counter() - began_s))

        beats: list[asyncio.Task[None]] = []
        for number in range(int(BEATS_PER_S * BEATING_S)):
            beats.append(asyncio.create_task(beat(names[number % len(names)])))
            await asyncio.sleep(1 / BEATS_PER_S)
            if pid and number % BEATS_PER_S == 0:
                highest_mib = max(highest_mib, _memory_mib(pid))
        await asyncio.gather(*beats)
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)
    return took_ms, highest_mib


async def _view(home: str, token: str, path: str) -> None:
    """Open one page as a browser does: listen for news, and ask for the page anew with each."""
    async with httpx.AsyncClient(base_url=f"{home}/web", timeout=PATIENCE_S) as browser:
        here = {"Origin": home}
        (await browser.post("/sign-in", data={"token": token}, headers=here)).raise_for_status()
        (await browser.get(path)).raise_for_status()
        async with browser.stream("GET", "/events") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event: news"):
                    (await browser.get(path, headers={"HX-Request": "true"})).raise_for_status()


def _memory_mib(pid: int) -> float:
    """Return the memory that a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def _percentile(values: list[float], per_cent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[per_cent - 1]


def _show(found: Figures) -> None:
    table = Table("figure", "measured", "at most")
    for name, value in asdict(found).items():
        limit = found.limits.get(name)
        table.add_row(name, f"{value:.2f}", "" if limit is None else f"{limit:.2f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(ended(main, "make bench-page", OUTPUT))
