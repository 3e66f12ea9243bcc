"""What would come of a job if it were submitted now: all that can be known without sending it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypha_tui.client.contents import Contents
from hypha_tui.client.jobfields import suggest_name
from hypha_tui.store import text
from hypha_tui.store.matching import Matching, datasets_line, matching
from node.jobspec import JobSpec
from node.views import DatasetView, JobView, PeerView

FILES_SHOWN = 40


@dataclass(frozen=True, slots=True)
class DryRun:
    """A job, what would be packed, and what the cluster has for it."""

    spec: JobSpec
    contents: Contents
    matching: Matching
    data: tuple[str, str]
    name_note: str

    @property
    def is_good(self) -> bool:
        """Whether it could be submitted and would start at once."""
        return not self.contents.problems and self.matching.tone != "lost" and self.data[1] == "ok"

    def rows(self) -> list[tuple[str, str, str]]:
        """Label, words and tone of each line."""
        files = self.contents.files
        rows = [("job", f"{self.spec.name}: {what(self.spec)}", "text")]
        if self.name_note:
            rows.append(("name", self.name_note, "late"))
        rows += [("workers", self.matching.sentence, self.matching.tone), ("data", *self.data)]
        if self.matching.server is not None and self.matching.server.peers:
            rows.append(("averages", f"{self.matching.server.peers[0].name}, for example", "text"))
        rows.append(("packed", f"{_files(len(files))}, {text.size(self.contents.size_bytes)}", "text"))
        rows += [("", f"{text.size(size):>9}  {name}", "dim") for name, size in files[:FILES_SHOWN]]
        if len(files) > FILES_SHOWN:
            rows.append(("", f"and {len(files) - FILES_SHOWN:,} more", "dim"))
        rows += [("problem", problem, "lost") for problem in self.contents.problems]
        return rows

    def document(self) -> dict[str, Any]:
        """The same as one JSON object."""
        found = self.matching
        return {
            "name": self.spec.name,
            "ok": self.is_good,
            "problems": list(self.contents.problems),
            "workers_needed": found.workers.need.count,
            "workers_matching": len(found.workers.peers),
            "price_per_h": found.price_per_h,
            "matching": found.sentence,
            "refusals": [{"count": count, "reason": reason} for count, reason in found.workers.reasons],
            "dataset": self.spec.dataset,
            "data": self.data[0],
            "size_bytes": self.contents.size_bytes,
            "files": [{"name": name, "size_bytes": size} for name, size in self.contents.files],
        }


def dry_run(
    spec: JobSpec,
    contents: Contents,
    peers: Iterable[PeerView],
    datasets: Sequence[DatasetView],
    jobs: Iterable[JobView],
) -> DryRun:
    """The job against what is known of the cluster."""
    note = name_note(spec.name, [job.name for job in jobs])
    return DryRun(spec, contents, matching(spec, peers), datasets_line(spec, datasets), note)


def what(spec: JobSpec) -> str:
    """What a job does, in a few words."""
    workers = "1 worker" if spec.num_workers == 1 else f"{spec.num_workers:,} workers"
    if spec.output is not None:
        return f"{workers}, {spec.output.kind} of each row"
    return f"{workers}, {spec.rounds.update_rounds:,} {'round' if spec.rounds.update_rounds == 1 else 'rounds'}"


def name_note(name: str, taken: Sequence[str]) -> str:
    """That another job has this name, with one that none has; empty otherwise."""
    free = suggest_name(name, taken)
    return "" if free == name else f"a job is called {name} already; {free} is free"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
