"""The program that writes metrics to one sink: batches come in on standard input, an answer to each goes out.

A batch is a length (4 bytes, big-endian) and MessagePack; an answer one line of JSON. The first answer says whether the
sink can be used at all. After a failure the program ends: the node starts it anew and sends the batch again.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from node.scheduler.exporters_sinks import SINKS, Sink, Value

WAITING = 64
END_WITHIN_S = 5.0
SECRET_NAMES = ("KEY", "TOKEN", "PASSWORD", "SECRET", "HEADERS")
REASON_LENGTH = 300


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`failed` says why not; `is_final`: starting again cannot help."""

    failed: str = ""
    is_final: bool = False


def main(arguments: Sequence[str]) -> int:
    """Serve one sink: its kind and its target are the arguments."""
    kind, target = arguments
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries print
    batches: queue.Queue[bytes | None] = queue.Queue(WAITING)
    threading.Thread(target=_read, args=(batches,), daemon=True).start()
    try:
        sink: Sink = SINKS[kind](target)
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        is_missing = isinstance(error, ModuleNotFoundError)
        reason = f"{name} is not installed: pip install 'hypha-tui[{kind}]'" if is_missing else _reason(error)
        return _tell(answers, Answer(failed=reason, is_final=True))
    except Exception as error:
        return _tell(answers, Answer(failed=_reason(error)))
    _tell(answers, Answer())
    decoder = msgspec.msgpack.Decoder(list[Value])
    while (batch := batches.get()) is not None:
        try:
            _write(sink, decoder.decode(batch))
        except Exception as error:
            return _tell(answers, Answer(failed=_reason(error)))
        _tell(answers, Answer())
    try:
        sink.close()
    except Exception:
        return 1
    return 0


def _write(sink: Sink, values: Sequence[Value]) -> None:
    run: list[Value] = []
    for value in values:
        if not value.ended:
            run.append(value)
            continue
        sink.write(run)
        run = []
        sink.end(value.job_id, value.ended)
    sink.write(run)


def _read(batches: queue.Queue[bytes | None]) -> None:
    """Take batches in. The end of the input is the node's: then nothing may keep this process, not even its sink."""
    while len(head := _exactly(4)) == 4:
        batches.put(_exactly(int.from_bytes(head, "big")))
    end = threading.Timer(END_WITHIN_S, os._exit, (1,))
    end.daemon = True
    end.start()
    batches.put(None)


def _exactly(size: int) -> bytes:
    """So many bytes of standard input; fewer at its end. Not by `sys.stdin`: exiting would wait for its lock."""
    data = bytearray()
    while len(data) < size and (piece := os.read(0, size - len(data))):
        data += piece
    return bytes(data)


def _tell(answers: BinaryIO, answer: Answer) -> int:
    try:
        answers.write(msgspec.json.encode(answer) + b"\n")
    except BrokenPipeError:
        return 1  # the node has ended
    return 1 if answer.failed else 0


def _reason(error: Exception) -> str:
    """An error in one line, without anything that the environment holds as a secret."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    for name, value in os.environ.items():
        if len(value) >= 4 and any(word in name.upper() for word in SECRET_NAMES):
            text = text.replace(value, "***")
    return text[:REASON_LENGTH]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
