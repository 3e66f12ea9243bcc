"""`hypha-tui`: the terminal, and the same things as commands for scripts.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage or configuration, 3 no link (may work later), 130 interrupted.
Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from hypha_tui.client.endpoint import Connection, Endpoint, resolve
from node.errors import HyphaError
from node.version import __version__

INTERRUPTED = 130
PIPE_CLOSED = 141
USAGE = 2
EXIT_CODES = (
    "Exit codes: 0 done; 1 failed or refused; 2 wrong usage, configuration or job file; "
    "3 no link to a node, which may work later; 130 interrupted."
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Reach:
    """How to reach a node, and as whom. Each option has an environment variable."""

    node: Annotated[str, Parameter(help="Address: /ip4/../tcp/.., https://host:port or unix:PATH [HYPHA_TUI_NODE]")] = (
        ""
    )
    cert: Annotated[Path | None, Parameter(help="An operator's certificate [HYPHA_TUI_CERT]")] = None
    key: Annotated[Path | None, Parameter(help="Its key; beside the certificate if not given [HYPHA_TUI_KEY]")] = None
    trust: Annotated[Path | None, Parameter(help="The cluster's authority, likewise [HYPHA_TUI_TRUST]")] = None
    crls: Annotated[Path | None, Parameter(help="Revocation lists [HYPHA_TUI_CRLS]")] = None
    state_dir: Annotated[Path | None, Parameter(help="A node of this machine, by folder [HYPHA_TUI_STATE_DIR]")] = None

    def endpoint(self) -> Endpoint:
        """The node to talk to."""
        given = Connection(self.node, self.cert, self.key, self.trust, self.crls, self.state_dir)
        return resolve(given, os.environ)


Json = Annotated[bool, Parameter(name="--json", negative="", help="One JSON document instead of a table")]
HERE = Reach()

app = App(
    name="hypha-tui",
    version=__version__,
    help="See and steer a cluster through any of its nodes. Without a command: the terminal.",
    help_epilogue=EXIT_CODES,
    version_flags=["--version"],
    default_parameter=Parameter(show_default=False),
)


@app.default
def terminal(
    *,
    reach: Reach = HERE,
    theme: Annotated[str, Parameter(help="Colour theme")] = "",
    ascii: Annotated[bool, Parameter(negative="", help="Draw with ASCII only")] = False,
) -> int:
    """Open the terminal."""
    endpoint = reach.endpoint()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HyphaError("the terminal needs a terminal", hint="for scripts: hypha-tui jobs --json, and the like")
    _prepare_terminal()
    from hypha_tui.client.api import ApiClient
    from hypha_tui.screens.app import HyphaApp

    terminal_app = HyphaApp(ApiClient(endpoint), theme=theme, ascii_only=ascii)
    terminal_app.run()
    return terminal_app.return_code or 0


@app.command
def peers(*, reach: Reach = HERE, json: Json = False) -> int:
    """List the nodes of the cluster."""
    return _show(reach, "peers", json)


@app.command
def leases(*, reach: Reach = HERE, json: Json = False) -> int:
    """List leases with what is left of them."""
    return _show(reach, "leases", json)


@app.command
def transfers(*, reach: Reach = HERE, json: Json = False) -> int:
    """List slices, updates and other bytes on their way."""
    return _show(reach, "transfers", json)


@app.command
def jobs(*, reach: Reach = HERE, json: Json = False) -> int:
    """List jobs."""
    return _show(reach, "jobs", json)


@app.command
def datasets(*, reach: Reach = HERE, json: Json = False) -> int:
    """List datasets and who serves them."""
    return _show(reach, "datasets", json)


@app.command
def events(*, reach: Reach = HERE, json: Json = False) -> int:
    """List the last events of all nodes."""
    from hypha_tui import commands

    return _run(commands.events(reach.endpoint(), as_json=json))


@app.command
def metrics(job: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Print the metrics of a job, by id or name."""
    from hypha_tui import commands

    return _run(commands.metrics(reach.endpoint(), job, as_json=json))


@app.command
def logs(
    job: str,
    task: str = "",
    /,
    *,
    lines: Annotated[int, Parameter(help="How many lines of each task")] = 200,
    reach: Reach = HERE,
    json: Json = False,
) -> int:
    """Print the last lines that a job's tasks wrote."""
    from hypha_tui import commands

    return _run(commands.logs(reach.endpoint(), job, task, lines=lines, as_json=json))


@app.command
def submit(
    path: Path,
    /,
    *,
    wait: Annotated[bool, Parameter(negative="", help="Until the job ends; exit code 0 only if it is done")] = False,
    reach: Reach = HERE,
    json: Json = False,
) -> int:
    """Submit a job: a TOML file, or a folder with job.toml and the files it needs. Prints the job's id."""
    from hypha_tui import commands

    return _run(commands.submit(reach.endpoint(), path, wait=wait, as_json=json))


@app.command
def cancel(job: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Cancel a job, by id or name."""
    from hypha_tui import commands

    return _run(commands.cancel(reach.endpoint(), job, as_json=json))


job_app = App(name="job", help="Go on with a job, or fetch its model.")
app.command(job_app)


@job_app.command
def resume(job: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Go on with a job that failed or was cancelled, from its last committed round."""
    from hypha_tui import commands

    return _run(commands.resume(reach.endpoint(), job, as_json=json))


@job_app.command
def export(
    job: str,
    /,
    *,
    to: Annotated[Path, Parameter(help="The folder to put it into, in a folder named after the job")],
    version: Annotated[str, Parameter(help="latest, or the number of a version")] = "latest",
    reach: Reach = HERE,
    json: Json = False,
) -> int:
    """Fetch a job's model: the final one, or else the newest whole version. Goes on where an earlier try stopped."""
    from hypha_tui import commands

    return _run(commands.export(reach.endpoint(), job, to, version, as_json=json))


@app.command
def demo(
    *,
    headless: Annotated[bool, Parameter(negative="", help="No terminal: a line for each round")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Only the summary, as JSON")] = False,
    workers: Annotated[int, Parameter(help="How many workers train")] = 2,
    rounds: Annotated[int, Parameter(help="How many rounds; 0: as the job says")] = 0,
    out: Annotated[Path | None, Parameter(help="Where the trained model goes")] = None,
) -> int:
    """Start a throw-away cluster on this machine and train a small model on it."""
    from hypha_tui.demo import run as run_demo

    return run_demo(headless=headless, as_json=json, workers=workers, rounds=rounds, out=out)


def _show(reach: Reach, what: str, as_json: bool) -> int:
    from hypha_tui import commands

    return _run(commands.show(reach.endpoint(), what, as_json=as_json))


def _run(command: Coroutine[Any, Any, int]) -> int:
    import asyncio  # a third of the start-up time of `--version`

    return asyncio.run(command)


def _prepare_terminal() -> None:
    """Textual reads these when it is imported."""
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    os.environ.setdefault("TEXTUAL_FPS", "15" if os.environ.get("SSH_TTY") else "30")
    os.environ.setdefault("ESCDELAY", "50")
    for name in ("COLUMNS", "LINES"):  # exported by a shell, they would hide every resize
        os.environ.pop(name, None)
    if os.environ.get("NO_COLOR") == "":
        del os.environ["NO_COLOR"]


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. Every failure is one line on stderr."""
    if list(arguments) == ["--version"]:
        sys.stdout.write(f"{__version__}\n")  # cyclopts would import Rich to say it
        return 0
    try:
        code = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(f"{_one_line(error)}; `hypha-tui --help` shows what there is", USAGE)
    except HyphaError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code if isinstance(code, int) else 0


def _one_line(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        word = error.unused_tokens[0]
        return f"options go after the command {word!r}" if word in app else f"there is no command {word!r}"
    return " ".join(str(error).split()).rstrip(".")


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"hypha-tui: {' '.join(message.split())}\n")
    return code


def main() -> None:
    """The entry point of `hypha-tui`."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
