"""The executors of a worker."""

from __future__ import annotations

import sys

from node.config import ExecutorConfig, NodeConfig


def executors_of(config: NodeConfig) -> list[ExecutorConfig]:
    """The configured executors; where there are none, ours."""
    if config.executors:
        return list(config.executors)
    flags = ["--socket", "{SOCKET_PATH}", "--work-dir", "{WORK_DIR}", "--job", "{JOB_JSON}"]
    return [
        ExecutorConfig(
            class_="train",
            name="diloco-transformer",
            runtime="process",
            cmd=sys.executable,
            args=["-m", "node.executors.train", *flags],
        ),
        ExecutorConfig(
            class_="inference",
            name="transformers",
            runtime="process",
            cmd=sys.executable,
            args=["-m", "node.executors.infer", *flags],
        ),
        ExecutorConfig(class_="aggregate", name="parameter-server", runtime="parameter-server"),
    ]
