"""The end of a training job: its model comes here, and with it the last validation loss. Pure; `job.py` drives it."""

from __future__ import annotations

from node.scheduler import messages as m
from node.scheduler.crew import Crew
from node.scheduler.messages import JobEffect
from node.scheduler.order import Order
from node.scheduler.rounds import Rounds

LAST_EVALUATION_S = 60.0
"""How long a finished job waits for the validation loss of its last version."""


class Exporting:
    """How far the export has come."""

    def __init__(self, order: Order, rounds: Rounds, crew: Crew) -> None:
        self._order = order
        self._rounds = rounds
        self._crew = crew
        self._pull_asked = ""
        """The parameter server whose export is on its way here."""
        self._pulled_at: float | None = None

    def pulled(self, now: float) -> None:
        """The model is here."""
        self._pulled_at = now
        self._crew.is_model_here = True

    def settle(self, now: float) -> tuple[str, list[JobEffect], bool]:
        """What it waits for in words, what to do, and whether nothing is left to do."""
        if self._pulled_at is not None:
            waited = now - self._pulled_at >= LAST_EVALUATION_S
            evaluator = self._crew.group.tasks.get(self._crew.evaluator)
            nobody = evaluator is None or not evaluator.is_alive
            if self._rounds.score.has_evaluation(self._order.rounds) or nobody or waited:
                return "", list(self._rounds.score.closing(now)), True
            return "waiting for the last validation loss", [], False
        server = self._crew.group.server
        if server is None or server.state != "exported":
            return self._crew.server_lost, [], False
        if self._pull_asked == server.task_id:
            return "fetching the model", [], False
        self._pull_asked = server.task_id
        return "fetching the model", [m.PullExport(server.peer_id, server.exported)], False
