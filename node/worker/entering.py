"""Becomes a task behind its mounts: `python -I -S entering.py DEVICE:INODE:PATH.. -- COMMAND..`.

bubblewrap takes paths. A task that may write to a folder can put a link into it between the look at a path and its
mount, and so have another place of the machine mounted. What was mounted is therefore compared with what was looked
at, before any code of the job runs.
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    """Run what follows `--` in this process's place; returns only where that cannot be."""
    end = arguments.index("--")
    for mount in arguments[:end]:
        device, inode, path = mount.split(":", 2)
        found = os.stat(path)  # noqa: PTH116 - pathlib takes longer to import than all of this to run
        if (found.st_dev, found.st_ino) != (int(device), int(inode)):
            sys.stderr.write(f"{path} was replaced while the task started\n")
            return 126
    command = arguments[end + 1 :]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
