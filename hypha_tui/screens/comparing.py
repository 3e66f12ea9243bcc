"""A job beside another: one that the cluster knows, or a file or folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from hypha_tui.client.api import Client
from hypha_tui.client.jobfile import JOB_FILE, check, read_draft
from hypha_tui.screens.report import ReportScreen
from hypha_tui.store import text
from hypha_tui.store.cluster import ClusterStore
from hypha_tui.store.difference import difference, spec_of
from hypha_tui.widgets.drawing import Drawing, Line
from node.errors import HyphaError
from node.jobspec import JobSpec
from node.views import JobView

if TYPE_CHECKING:
    from hypha_tui.screens.app import HyphaApp

Other = str | Path
"""The id of a job, or a job's file or folder."""


async def spec_of_other(other: Other, client: Client) -> JobSpec:
    """What that job is; a HyphaError says why it cannot be had."""
    if isinstance(other, str):
        return spec_of(await client.spec(other))
    draft = await asyncio.to_thread(read_draft, other.expanduser())
    return check(draft.text, other.name if draft.folder is None else f"{other.name}/{JOB_FILE}")


def called(other: Other, store: ClusterStore) -> str:
    """What an operator calls it."""
    if isinstance(other, Path):
        return text.clean(other.name or str(other))
    job = store.get(JobView, other)
    return text.clean(job.name) if job is not None and job.name else other


def report(drawing: Drawing, old: JobSpec, new: JobSpec, *, title: str) -> ReportScreen:
    """The settings in which two jobs differ, the old value before the arrow."""
    changes = difference(old, new)
    width = max((len(change.key) for change in changes), default=0)
    arrow = drawing.glyphs.arrow
    lines: list[Line] = [
        [
            (f"{change.key:<{width}}  ", "title"),
            (text.clean(was), "dim"),
            (f" {arrow} ", "line"),
            (text.clean(now), "text"),
        ]
        for change in changes
        for was, now in [change.words]
    ]
    return ReportScreen(drawing, title, lines or [[("no setting differs", "dim")]])


async def compare_file(app: HyphaApp, file: Path, job_id: str) -> None:
    """What a file would change of a job: the given one, else the newest of its name, else the most active."""
    main = app.main
    try:
        new = await spec_of_other(file, app.client)
        jobs = app.store.jobs_by_activity()
        same = [job.id for job in sorted(jobs, key=lambda job: job.age_s) if job.name == new.name]
        chosen = next(iter([job_id] * bool(job_id) + same + [job.id for job in jobs]), "")
        if not chosen:
            main.say("the cluster knows no job to compare with")
            return
        old = await spec_of_other(chosen, app.client)
    except HyphaError as error:
        main.say(str(error))
        return
    title = f"{called(file, app.store)}, and {called(chosen, app.store)} before the arrow"
    app.push_screen(report(app.drawing, old, new, title=title))
