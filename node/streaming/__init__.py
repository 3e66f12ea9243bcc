"""Rows of a dataset as a stream: deterministic, shared out among any number of workers, resumable at any row.

`StreamingLoader` reads rows or batches of NumPy arrays; `node.streaming.torch_dataset.StreamingDataset` is the same
thing for PyTorch. docs/loader.md shows both.
"""

from node.streaming.config import StreamingConfig
from node.streaming.coordinator import StreamCoordinator, WorkerHealth
from node.streaming.loader import LoaderStats, StreamingLoader
from node.streaming.partition import (
    Adaptive,
    Contiguous,
    HashBased,
    RangeBased,
    RoundRobin,
    Strategy,
    Stratified,
    divide,
)
from node.streaming.source import FolderSource, Source
from node.streaming.state import Generation, Pass, StreamState, merge

__all__ = [
    "Adaptive",
    "Contiguous",
    "FolderSource",
    "Generation",
    "HashBased",
    "LoaderStats",
    "Pass",
    "RangeBased",
    "RoundRobin",
    "Source",
    "Strategy",
    "Stratified",
    "StreamCoordinator",
    "StreamState",
    "StreamingConfig",
    "StreamingLoader",
    "WorkerHealth",
    "divide",
    "merge",
]
