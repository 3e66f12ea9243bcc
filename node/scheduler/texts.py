"""What a job says of itself in words: why it waits, how it runs, how a task failed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from node.wire import CommitRound, TaskStatus


def waiting_text(
    held: int,
    wanted: int,
    *,
    has_server: bool,
    workers_answer: str,
    server_answer: str,
    has_lost: bool,
    server_lost: str,
) -> str:
    """`waiting: 0 of 2; 3 workers refused: gpu 0 < 10`, and so on; the answers are those of the two searches."""
    is_full = held >= wanted
    parts = [f"waiting: {held} of {wanted}"]
    if is_full and not has_server and not server_answer:
        parts = ["waiting: for a parameter server"]
    if not is_full and workers_answer:
        parts.append(workers_answer)
    if not has_server and server_answer:
        parts.append(f"no parameter server: {server_answer}")
    if has_lost and not is_full:
        parts.append("looking for a replacement")
    if server_lost:
        parts.append(server_lost)
    return "; ".join(parts)


def running_text(workers: int, wanted: int, *, answer: str, has_lost: bool, behind: Sequence[str]) -> str:
    """`running with 1 of 2; looking for a replacement`, and who keeps the others waiting; empty when all is well."""
    parts = []
    if workers < wanted:
        what = "a replacement" if has_lost else f"{wanted - workers} more"
        text = f"running with {workers} of {wanted}; looking for {what}"
        parts.append(f"{text}: {answer}" if answer else text)
    if behind:
        parts.append(f"waiting for {', '.join(sorted(behind))}")
    return "; ".join(parts)


def server_lost_text(where: str, reason: str, version: int | None) -> str:
    """What is lost with a parameter server, and what is not."""
    return f"the parameter server on {where} was lost ({reason}); placing it again from version {version or 0}"


def round_text(report: CommitRound, rounds: int, name_of_task: Callable[[str], str]) -> str:
    """A committed round in one line, those left out of it named."""
    samples = sum(share.samples for share in report.contributions)
    text = f"round {report.round + 1} of {rounds}: {len(report.contributions)} updates, {samples} samples"
    return text + "".join(f"; {name_of_task(task)}: {why}" for task, why in sorted(report.left_out.items()))


def failure_text(role: str, where: str, status: TaskStatus, detail: str) -> str:
    """`train task on worker-1: exit code 41: no such layer: 7`: the exit code, or the detail, and the last line."""
    what = f"exit code {status.exit_code}" if status.exit_code is not None else detail or "failed"
    last = next((line.strip() for line in reversed(status.tail) if line.strip()), detail)
    return f"{role} task on {where}: {what}" + (f": {last}" if last not in ("", what) else "")
