"""Where a job's results and checkpoints go in object storage, with what fails for good as a `JobError`."""

from __future__ import annotations

from node.errors import JobError, ObjectStoreError
from node.objectstore import Bucket, open_bucket


def open_place(to: str) -> Bucket:
    """The bucket and folder that a job names. Raises `JobError` where it can never work."""
    try:
        return open_bucket(to)
    except ObjectStoreError as error:
        raise JobError(error.message, hint=error.hint) from error
