"""`hypha-node`: runs a node, or one of the commands of `node.commands`.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 a link that may work later, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from node.errors import ConfigError, HyphaError
from node.version import __version__

PROGRAM = "hypha-node"
COMMANDS = {
    "init": ("node.commands.init:app", "Write a commented configuration file."),
    "probe": ("node.commands.probe:app", "Call another node and say who answers."),
    "config": ("node.commands.config:app", "Check a configuration, or show where each value comes from."),
    "cert": ("node.commands.cert:app", "Make certificates, or revoke them."),
    "dataset": ("node.data.cli:app", "Build, verify or show a dataset."),
}
"""Commands by name: where each one is, to be imported when it is called, and what it does."""
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

app = App(
    name=PROGRAM,
    version=f"{PROGRAM} {__version__}",
    help="Run a node of a Hypha cluster in the foreground, in one role or more.",
    result_action="return_value",
)
for _name, (_target, _help) in COMMANDS.items():
    app.command(_target, name=_name, help=_help)


@app.default
def start(
    *,
    role: Annotated[
        list[str] | None, Parameter(negative="", help="gateway, scheduler, worker, data; joined by commas.")
    ] = None,
    config: Annotated[
        Path | None, Parameter(help="Configuration file (TOML); else the one HYPHA_CONFIG names.")
    ] = None,
    listen: Annotated[list[str] | None, Parameter(negative="", help="Address to listen on; may be repeated.")] = None,
    gateway: Annotated[
        list[str] | None, Parameter(negative="", help="Address to join through; may be repeated.")
    ] = None,
    name: Annotated[str | None, Parameter(help="Name that others see; default: the certificate's.")] = None,
    state_dir: Annotated[Path | None, Parameter(help="Folder of all that the node keeps.")] = None,
    mdns: Annotated[bool | None, Parameter(help="Look for nodes on the local network.")] = None,
    validate: Annotated[bool, Parameter(negative="", help="Check configuration and certificates, then end.")] = False,
) -> int:
    """Run a node in the foreground until SIGTERM or Ctrl-C."""
    from node.config import ROLES, chosen_file, load

    flags: dict[str, Any] = {
        "roles": [part for text in role for part in text.split(",") if part] if role else None,
        "listen_addresses": listen,
        "gateway_addresses": gateway,
        "name": name,
        "state_dir": state_dir,
        "mdns": mdns,
    }
    loaded = load(chosen_file(config), os.environ, flags)
    if not loaded.config.roles:
        raise ConfigError("no role", hint=f"give --role with one or more of {', '.join(ROLES)}")
    for line in loaded.warnings:
        _tell(line)
    from node.identity.credentials import load_identity

    settings = loaded.config
    identity = load_identity(settings.cert_pem, settings.key_pem, settings.trust_pem, settings.crls_pem)
    if identity.role != "node":
        raise ConfigError(
            f"{settings.cert_pem} is an operator's certificate", hint="a node needs one of `hypha-node cert node`"
        )
    for line in identity.warnings:
        _tell(line)
    if validate:
        for dataset in settings.dataset_folders:
            if "data" in settings.roles and not dataset.is_dir():
                raise ConfigError(f"dataset folder {dataset} does not exist")
        for mount in settings.mounts:
            if "worker" in settings.roles and not mount.path.exists():
                raise ConfigError(f"mount {mount.path} does not exist")
        sys.stdout.write("configuration is valid\n")
        return 0
    import msgspec

    from node import daemon

    return daemon.run(msgspec.structs.replace(settings, name=settings.name or identity.name), identity)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; the exit code. What goes wrong is one line on stderr."""
    if list(arguments) == ["--version"]:
        # cyclopts would load rich for this one line
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
        return 0
    try:
        code = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        _tell(_usage(error))
        return EXIT_USAGE
    except HyphaError as error:
        if _debugging():
            raise
        _tell(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader has gone; without this the interpreter complains again when it flushes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if _debugging():
            raise
        detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _tell(f"internal error: {detail}; HYPHA_DEBUG=1 shows where")
        return 1
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point of the `hypha-node` script."""
    sys.exit(run(sys.argv[1:]))


def _usage(error: CycloptsError) -> str:
    from cyclopts import UnusedCliTokensError

    tokens = getattr(error, "unused_tokens", None)
    if isinstance(error, UnusedCliTokensError) and tokens:
        from node.schema import nearest

        close = nearest(tokens[0], list(COMMANDS))
        return f"unknown argument {tokens[0]!r}; " + (f"did you mean {close}?" if close else f"see {PROGRAM} --help")
    text = " ".join(str(error).split()).rstrip(".")
    return f"{text}; see {PROGRAM} --help"


def _debugging() -> bool:
    return os.environ.get("HYPHA_DEBUG", "") not in ("", "0")


def _tell(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {' '.join(text.split())}\n")


if __name__ == "__main__":
    main()
