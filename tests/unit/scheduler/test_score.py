"""What a commit adds to a job's curves: bytes of the round, samples so far, how much smaller updates were."""

from __future__ import annotations

from node.scheduler.score import Score
from node.wire import CommitRound, Contribution, VersionFile


def committed(score: Score, round_: int, up: int, down: int, *, fragments: int = 1) -> dict[str, float]:
    files = {
        kind: VersionFile(kind=kind, number=round_ + 1, sha256="0" * 64, size_bytes=1_000)
        for kind in ("weights", "momentum", "delta")
    }
    shares = [Contribution(task_id=f"t{n}", peer_id="W", samples=32, sha256="0", norm=1.0) for n in range(2)]
    report = CommitRound(task_id="ps", epoch=0, round=round_, contributions=shares, **files)
    plotted = score.committed(9.0 * (round_ + 1), report, 64, 9.0, up, down, fragments)
    return {one.point.name: one.point.value for one in plotted if not one.point.worker}


def test_a_commit_tells_the_bytes_and_the_compression_of_its_round() -> None:
    score = Score("job", began_at=0.0)
    first = committed(score, 0, 2_000, 500)
    assert (first["bytes_round"], first["compression"], first["samples_total"]) == (2_500, 1.0, 64)
    second = committed(score, 1, 2_500, 800)
    assert (second["bytes_up"], second["bytes_round"], second["compression"]) == (2_500, 800, 4.0)
    assert second["samples_total"] == 128


def test_with_fragments_an_update_is_compared_with_the_part_that_it_is_for() -> None:
    assert committed(Score("job", began_at=0.0), 0, 500, 0, fragments=2)["compression"] == 2.0


def test_a_round_without_a_byte_has_no_compression() -> None:
    """After a restart the counts go on from what was written down."""
    score = Score("job", began_at=0.0)
    score.restore([], 640, 9_000, 4_000)
    points = committed(score, 0, 9_000, 4_000)
    assert "compression" not in points
    assert (points["bytes_round"], points["samples_total"]) == (0, 704)
