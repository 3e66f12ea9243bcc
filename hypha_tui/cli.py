"""`hypha-tui`: the terminal, and the same things as commands for scripts.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage or configuration, 3 no link (may work later), 130 interrupted.
Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError, UnusedCliTokensError

from hypha_tui.exits import exit_code
from hypha_tui.options import Display, Reach
from node.errors import ConfigError
from node.version import __version__

EXIT_CODES = (
    "Exit codes: 0 done; 1 failed or refused; 2 wrong usage, configuration or job file; "
    "3 no link to a node, which may work later; 130 interrupted; 141 nobody reads the output."
)


Json = Annotated[bool, Parameter(name="--json", help="One JSON document instead of a table")]
HERE = Reach()
AS_SET = Display()
for _options in (Reach, Display):
    Parameter(name="*")(_options)
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

OF_LISTS = ("--csv", "--filter", "--columns", "--sort", "--reverse", "--wide")
"""Options that only lists have."""

app = App(
    name="hypha-tui",
    version=__version__,
    help="See and steer a cluster through any of its nodes. Without a command: the terminal.",
    help_epilogue=EXIT_CODES,
    version_flags=["--version"],
    default_parameter=Parameter(show_default=False, negative=""),
)


@app.default
def terminal(*, reach: Reach = HERE, display: Display = AS_SET) -> int:
    """Open the terminal."""
    from hypha_tui.process.opening import open_terminal

    return open_terminal(reach, display)


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
    wait: Annotated[bool, Parameter(help="Until the job ends; exit code 0 only if it is done")] = False,
    dry_run: Annotated[bool, Parameter(help="Send nothing; say what would come of it")] = False,
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
    headless: Annotated[bool, Parameter(help="No terminal: a line for each round")] = False,
    json: Annotated[bool, Parameter(name="--json", help="Only the summary, as JSON")] = False,
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
    allow_changes: Annotated[bool, Parameter(help="Not only look: browsers may cancel, submit..")] = False,
    theme: Annotated[str | None, Parameter(help="Colour theme [HYPHA_TUI_THEME]")] = None,
    reach: Reach = HERE,
) -> int:
    """Serve the terminal to browsers of this machine. Prints a link that lets one in, once."""
    from hypha_tui.serve.command import serve as serve_terminal
    from hypha_tui.settings.config import Given

    return run_command(
        serve_terminal(
            Given(context=reach.context, theme=theme, readonly=reach.readonly or None),
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
        raise _as_ours(error, arguments[0] if arguments and arguments[0] in app else "") from None
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


def _as_ours(error: CycloptsError, command: str) -> ConfigError:
    """What is wrong with a command line, in one line; `command` is the one that was called."""
    hint = f"`hypha-tui {command} --help` shows what there is" if command else "`hypha-tui --help` shows what there is"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        word = error.unused_tokens[0]
        if command:
            return ConfigError(f"{command} has no use for {word!r}", hint=hint)
        told = f"options go after the command {word!r}" if word in app else f"there is no command {word!r}"
        return ConfigError(told, hint=hint)
    option = error.token.keyword or error.token.value if isinstance(error, UnknownOptionError) else ""
    if option in OF_LISTS and command in LISTS:
        return ConfigError(f"{command} is not a list, which {option} is for", hint="use --json")
    return ConfigError(" ".join(str(error).split()).rstrip("."), hint=hint)


def main() -> None:
    """The entry point of `hypha-tui`."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
