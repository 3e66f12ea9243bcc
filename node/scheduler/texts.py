"""What a job says of itself in words: why it waits, how it runs, how a task failed. Pure."""

from __future__ import annotations

from node.wire import TaskStatus


def waiting_text(
    held: int, wanted: int, *, has_server: bool, workers_answer: str, server_answer: str, has_lost: bool, restarted: str
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
    if has_lost:
        parts.append("looking for a replacement")
    if restarted:
        parts.append(restarted)
    return "; ".join(parts)


def short_of_workers_text(workers: int, wanted: int, *, answer: str, has_lost: bool) -> str:
    """`running with 1 of 2; looking for a replacement`."""
    what = "a replacement" if has_lost else f"{wanted - workers} more"
    text = f"running with {workers} of {wanted}; looking for {what}"
    return f"{text}: {answer}" if answer else text


def failure_text(role: str, where: str, status: TaskStatus, detail: str) -> str:
    """`train task on worker-1: exit code 41: no such layer: 7`: the exit code, or the detail, and the last line."""
    what = f"exit code {status.exit_code}" if status.exit_code is not None else detail or "failed"
    last = next((line.strip() for line in reversed(status.tail) if line.strip()), detail)
    return f"{role} task on {where}: {what}" + (f": {last}" if last not in ("", what) else "")
