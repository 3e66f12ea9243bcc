"""`python tools/screenshots.py`: runs the demo's job and saves what the terminal shows of it as docs/*.svg.

Everything is real: the cluster, the job, the terminal. Takes as long as the demo.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from hypha_tui import demo
from hypha_tui.client.api import ApiClient, connected
from hypha_tui.local_cluster import LocalCluster
from hypha_tui.screens.app import HyphaApp
from node.views import JobView, LeaseView, TransferView

DOCS = Path(__file__).parents[1] / "docs"
SIZE = (120, 40)
ENVIRONMENT = {"LANG": "C.UTF-8", "TERM": "xterm-256color"}
ROUNDS = 8
"""As the job of the demo says."""
WITHIN_S = 600.0
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


async def take(cluster: LocalCluster) -> None:
    """Overview and leases in the middle of the job, curves at its end."""
    async with connected(demo.endpoint(cluster)) as client:
        await demo.submit(client, workers=2, rounds=ROUNDS)
    app = HyphaApp(ApiClient(demo.endpoint(cluster)), environment=ENVIRONMENT)
    async with asyncio.timeout(WITHIN_S), app.run_test(size=SIZE) as pilot:
        await until_round(pilot, app, ROUNDS // 2)
        while not any(one.what == "slice" for one in app.store.views(TransferView)):
            await look(pilot, app)
        save(app, "overview")
        await pilot.press("3")
        while min((held.remaining_s for held in app.store.views(LeaseView)), default=0.0) <= 0.0:
            await look(pilot, app)
        await look(pilot, app)
        save(app, "leases")
        await pilot.press("6")
        await until_round(pilot, app, ROUNDS)
        save(app, "curves")


async def until_round(pilot: Pilot[None], app: HyphaApp, number: int) -> None:
    """Wait until so many rounds are committed."""
    while not any(job.round >= number for job in app.store.views(JobView)):
        await look(pilot, app)
    await look(pilot, app)


async def look(pilot: Pilot[None], app: HyphaApp) -> None:
    """Let half a second pass, and draw."""
    await pilot.pause(0.5)
    app.draw_frame()
    await pilot.pause()


def save(app: HyphaApp, name: str) -> None:
    """Save what is shown. Fonts are left to the reader's machine: nothing is fetched from elsewhere."""
    svg = _FONTS.sub("", app.export_screenshot(title="hypha-tui"))
    (DOCS / f"{name}.svg").write_text(svg)
    sys.stderr.write(f"docs/{name}.svg\n")


def main() -> None:
    """Start the demo's cluster, take the pictures, stop it."""
    with LocalCluster(Path(tempfile.mkdtemp(prefix="hypha-pictures-"))) as cluster:
        try:
            demo.start(cluster, 2, lambda text: None)
            asyncio.run(take(cluster))
        finally:
            cluster.stop()
            cluster.remove()


if __name__ == "__main__":
    main()
