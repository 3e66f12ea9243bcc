"""Where a training job stands while its rounds are not over, and why: it follows from its leases and tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from node.scheduler.crew import Crew
from node.scheduler.order import AGGREGATE, TRAIN
from node.scheduler.rounds import Rounds
from node.scheduler.texts import running_text, waiting_text

SERVING = frozenset({"ready", "exported"})
"""States in which a parameter server can be sent updates."""


def standing(
    crew: Crew, rounds: Rounds, wanted: int, *, answers: Mapping[str, str], data_missing: str
) -> tuple[str, str]:
    """`waiting`, `starting` or `running`, and the reason; `answers` are those of the searches by role."""
    workers, server = crew.group.alive(TRAIN), crew.group.server
    if server is None or not workers:
        if data_missing:
            return "waiting", f"waiting: {data_missing}"
        if rounds.ledger is None:
            return "waiting", "waiting: looking for the dataset"
        return "waiting", waiting_text(
            len(crew.idle) + len(workers),
            wanted,
            has_server=server is not None,
            workers_answer=answers.get(TRAIN, ""),
            server_answer=answers.get(AGGREGATE, ""),
            has_lost=crew.has_lost,
            server_lost=crew.server_lost,
        )
    if not any(task.state == "running" for task in workers) or server.state not in SERVING:
        return "starting", crew.server_lost
    behind = [crew.name_of_task(task_id) for task_id in rounds.stragglers.behind]
    answer = answers.get(TRAIN, "")
    return "running", running_text(len(workers), wanted, answer=answer, has_lost=crew.has_lost, behind=behind)
