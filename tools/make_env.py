"""Make the virtual environment that the Makefile's targets use, once, and again when what it is made from changes.

Safe to interrupt and to run beside itself: one at a time holds the lock, and the stamp is written last.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "train,datasets,s3,dev,fast,serve,tensorboard"
MADE_FROM = ("pyproject.toml", "constraints.txt")


def main() -> int:
    """Bring the environment named by the first argument up to date; 2 where Python is too old."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever `python3` is, runs this
        sys.stderr.write(f"make: this is Python {sys.version.split()[0]}, 3.11 or newer is needed; set PYTHON=\n")
        return 2
    environment = ROOT / sys.argv[1]
    made_from = sys.version + "".join((ROOT / name).read_text() for name in MADE_FROM) + str(ROOT)
    stamp, wanted = environment / "stamp", hashlib.sha256(made_from.encode()).hexdigest()
    with (ROOT / f"{sys.argv[1]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return 0
        sys.stderr.write(f"setting up {sys.argv[1]} (once; a few minutes) ..\n")
        stamp.unlink(missing_ok=True)
        venv.EnvBuilder(with_pip=True).create(environment)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install = [*pip, "--constraint", "constraints.txt", "--editable", f".[{EXTRAS}]"]
        code = subprocess.run(install, cwd=ROOT, check=False).returncode
        if code:
            sys.stderr.write("make: the packages could not be installed; see the lines above, then run it again\n")
            return code
        stamp.write_text(wanted)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
