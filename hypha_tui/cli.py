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

from hypha_tui.client.endpoint import Connection, Endpoint
from hypha_tui.exits import exit_code
from node.errors import ConfigError
from node.version import __version__

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed or refused; 2 wrong usage, configuration or job file; "
    "3 no link to a node, which may work later; 130 interrupted; 141 nobody reads the output."
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
    context: Annotated[str | None, Parameter(help="A cluster of config.toml [HYPHA_TUI_CONTEXT]")] = None
    readonly: Annotated[bool | None, Parameter(negative="", help="Change nothing [HYPHA_TUI_READONLY]")] = None

    def connection(self) -> Connection:
        """What the flags say about the node."""
        return Connection(self.node, self.cert, self.key, self.trust, self.crls, self.state_dir)

    def endpoint(self) -> Endpoint:
        """The node to talk to."""
        from hypha_tui.settings.config import Given, load
        from hypha_tui.settings.contexts import Contexts

        settings = load(os.environ, Given(context=self.context, readonly=self.readonly))
        return Contexts(settings, os.environ).first(self.connection())[1]


Json = Annotated[bool, Parameter(name="--json", negative="", help="One JSON document instead of a table")]
HERE = Reach()
LISTS = {
    "overview": "Tell the cluster in numbers, and which jobs go on.",
    "peers": "List the nodes of the cluster.",
    "leases": "List leases with what is left of them.",
    "slices": "Show the state of every slice of a job's present pass.",
    "transfers": "List slices, updates and other bytes on their way.",
    "jobs": "List jobs.",
    "datasets": "List datasets and who serves them.",
    "metrics": "List the values of a job's curves.",
    "events": "List the last events of all nodes.",
    "logs": "Print the last lines that a job's tasks wrote.",
    "node": "Tell who the node is that is asked.",
    "inspect": "Tell one object in full, with the events about it.",
}

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
    theme: Annotated[str | None, Parameter(help="Colour theme [HYPHA_TUI_THEME]")] = None,
    hz: Annotated[float | None, Parameter(help="Frames a second, 0.2 to 10; 0: on r only [HYPHA_TUI_HZ]")] = None,
    glyphs: Annotated[str | None, Parameter(help="auto, unicode, block or ascii [HYPHA_TUI_GLYPHS]")] = None,
    ascii: Annotated[bool, Parameter(negative="", help="Draw with ASCII only")] = False,
    mouse: Annotated[bool | None, Parameter(help="Take the mouse, or leave it alone [HYPHA_TUI_MOUSE]")] = None,
    preset: Annotated[str | None, Parameter(help="Keys: default, vim or plain [HYPHA_TUI_PRESET]")] = None,
    record: Annotated[Path | None, Parameter(help="Keep what the node tells in this new file")] = None,
    replay: Annotated[Path | None, Parameter(help="Show a recording instead of a cluster")] = None,
) -> int:
    """Open the terminal."""
    from hypha_tui.process.opening import open_terminal
    from hypha_tui.settings.config import Given

    given = Given(reach.context, theme, hz, "ascii" if ascii else glyphs, mouse, preset, reach.readonly)
    return open_terminal(given, reach.connection(), record, replay)


@app.command(name="contexts")
def list_contexts(*, json: Json = False) -> int:
    """List the clusters of config.toml."""
    from hypha_tui.twin import settings as settings_commands

    return settings_commands.contexts(os.environ, as_json=json)


config_app = App(name="config", help="Look at the terminal's own settings.")
app.command(config_app)


@config_app.command(name="show")
def show_config(*, json: Json = False) -> int:
    """Print each setting and where it comes from: flag, environment, file or default."""
    from hypha_tui.twin import settings as settings_commands

    return settings_commands.show(os.environ, as_json=json)


# Read only when they are called: their options need more of the program than `--version` is worth.
for _name, _help in LISTS.items():
    app.command(f"hypha_tui.cli_lists:{_name}", name=_name, help=_help)
app.command("hypha_tui.cli_lists:metrics", name="curves", show=False)


@app.command
def submit(
    path: Path,
    /,
    *,
    wait: Annotated[bool, Parameter(negative="", help="Until the job ends; exit code 0 only if it is done")] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Send nothing; say what would come of it")] = False,
    diff: Annotated[str, Parameter(help="Send nothing; say what differs from this job, file or folder")] = "",
    reach: Reach = HERE,
    json: Json = False,
) -> int:
    """Submit a job: a TOML file, or a folder with job.toml and the files it needs. Prints the job's id."""
    from hypha_tui.twin import jobs as commands

    if diff:
        return run_command(commands.compare(reach.endpoint(), path, diff, as_json=json))
    if dry_run:
        return run_command(commands.try_out(reach.endpoint(), path, as_json=json))
    return run_command(commands.submit(reach.endpoint(), path, wait=wait, as_json=json))


@app.command
def cancel(job: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Cancel a job, by id or name."""
    from hypha_tui.twin import steering as steering_commands

    return run_command(steering_commands.steer_job(reach.endpoint(), "cancel", job, as_json=json))


job_app = App(name="job", help="Pause a job, go on with it, end it, or fetch its model.")
app.command(job_app)
job_app.command(cancel, name="cancel")


@job_app.command
def pause(job: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Let a job go on to its next commit, then let its leases go until it is resumed."""
    from hypha_tui.twin import steering as steering_commands

    return run_command(steering_commands.steer_job(reach.endpoint(), "pause", job, as_json=json))


@job_app.command
def resume(job: str, /, *, reach: Reach = HERE, json: Json = False) -> int:
    """Go on with a job that is paused, failed or was cancelled, from its last committed round."""
    from hypha_tui.twin import steering as steering_commands

    return run_command(steering_commands.steer_job(reach.endpoint(), "resume", job, as_json=json))


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
    from hypha_tui.twin import jobs as commands

    return run_command(commands.export(reach.endpoint(), job, to, version, as_json=json))


# Read only when they are called, like the lists.
lease_app = App(name="lease", help="Act on a lease.")
worker_app = App(name="worker", help="Act on a worker.")
app.command(lease_app)
app.command(worker_app)
lease_app.command("hypha_tui.cli_steering:release", name="release", help="Let a lease go; its job looks for another.")
worker_app.command("hypha_tui.cli_steering:cordon", name="cordon", help="Have a worker offer nothing any more.")
worker_app.command("hypha_tui.cli_steering:uncordon", name="uncordon", help="Have a worker offer again.")
worker_app.command("hypha_tui.cli_steering:drain", name="drain", help="Cordon a worker, and move what it runs.")


@app.command
def demo(
    *,
    headless: Annotated[bool, Parameter(negative="", help="No terminal: a line for each round")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Only the summary, as JSON")] = False,
    workers: Annotated[int, Parameter(help="How many workers train")] = 2,
    rounds: Annotated[int, Parameter(help="How many rounds; 0: as the job says")] = 0,
    out: Annotated[Path | None, Parameter(help="Where the trained model goes")] = None,
    record: Annotated[Path | None, Parameter(help="Keep what the cluster tells in this new file")] = None,
) -> int:
    """Start a throw-away cluster on this machine and train a small model on it."""
    from hypha_tui.demo import run as run_demo

    return run_demo(headless=headless, as_json=json, workers=workers, rounds=rounds, out=out, record=record)


@app.command
def serve(
    *,
    port: Annotated[int, Parameter(help="Port of 127.0.0.1; 0: any that is free")] = 8421,
    sessions: Annotated[int, Parameter(help="Most terminals at once")] = 4,
    allow_changes: Annotated[bool, Parameter(negative="", help="Not only look: browsers may cancel, submit..")] = False,
    theme: Annotated[str | None, Parameter(help="Colour theme [HYPHA_TUI_THEME]")] = None,
    reach: Reach = HERE,
) -> int:
    """Serve the terminal to browsers of this machine. Prints a link that lets one in, once."""
    from hypha_tui.serve.command import serve as serve_terminal
    from hypha_tui.settings.config import Given

    return run_command(
        serve_terminal(
            Given(context=reach.context, theme=theme, readonly=reach.readonly),
            reach.connection(),
            port=port,
            sessions=sessions,
            allow_changes=allow_changes,
        )
    )


def run_command(command: Coroutine[Any, Any, int]) -> int:
    """Run what a command does; its exit code."""
    import asyncio  # a third of the start-up time of `--version`

    return asyncio.run(command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. Every failure is one line on stderr."""
    return exit_code(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    try:
        code = app(_with_seconds(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise ConfigError(_one_line(error), hint="`hypha-tui --help` shows what there is") from None
    return code if isinstance(code, int) else 0


def _with_seconds(arguments: Sequence[str]) -> list[str]:
    """`--watch` without a number is every second."""
    found: list[str] = []
    for number, word in enumerate(arguments):
        found.append(word)
        follows = arguments[number + 1] if number + 1 < len(arguments) else ""
        if word == "--watch" and not follows.replace(".", "", 1).isdigit():
            found.append("1")
    return found


def _one_line(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        word = error.unused_tokens[0]
        return f"options go after the command {word!r}" if word in app else f"there is no command {word!r}"
    return " ".join(str(error).split()).rstrip(".")


def main() -> None:
    """The entry point of `hypha-tui`."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
