"""`hypha-node cert`: the certificate authority."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from node.commands.output import say
from node.identity import authority
from node.identity.caller import Role

app = App(name="cert", help="Make certificates: a root, an organization, then nodes and operators; or revoke them.")

Directory = Annotated[Path, Parameter(name="--dir", help="Folder of the certificates.")]
Organization = Annotated[str, Parameter(name="--org", help="Name of the organization.")]
Days = Annotated[int, Parameter(name="--days", help="Days of validity.")]
Force = Annotated[bool, Parameter(name="--force", negative="", help="Replace existing files, keys included.")]
Renew = Annotated[bool, Parameter(name="--renew", negative="", help="Keep the key, and so the peer id.")]
Names = Annotated[list[str], Parameter(negative="", help="One or more names.")]
DEFAULT_ORG = "hypha"


@app.command
def root(
    *,
    directory: Directory = Path(),
    org: Organization = DEFAULT_ORG,
    days: Days = authority.ROOT_DAYS,
    force: Force = False,
) -> None:
    """Make the root of a cluster. Keep its key off the nodes."""
    say(str(authority.make_root(directory, org, days=days, force=force).cert))


@app.command
def org(
    *,
    directory: Directory = Path(),
    org: Organization = DEFAULT_ORG,
    root: Annotated[str, Parameter(name="--root", help="Root to use, when the folder holds several.")] = "",
    days: Days = authority.ORG_DAYS,
    force: Force = False,
) -> None:
    """Make an organization's authority below the root, with an empty revocation list."""
    say(str(authority.make_org(directory, org, root=root, days=days, force=force).cert))


@app.command
def node(
    names: Names,
    /,
    *,
    directory: Directory = Path(),
    org: Organization = "",
    days: Days = authority.NODE_DAYS,
    force: Force = False,
    renew: Renew = False,
) -> None:
    """Make certificates for nodes. Prints the peer id and the certificate file of each."""
    _members(names, "node", directory, org, days, force, renew)


@app.command
def operator(
    names: Names,
    /,
    *,
    directory: Directory = Path(),
    org: Organization = "",
    days: Days = authority.NODE_DAYS,
    force: Force = False,
    renew: Renew = False,
) -> None:
    """Make certificates for operators, who may submit and cancel jobs through any node."""
    _members(names, "operator", directory, org, days, force, renew)


@app.command
def revoke(names: Names, /, *, directory: Directory = Path(), org: Organization = "") -> None:
    """Put nodes or operators (names, or certificate files) on the revocation list. Give the list to all nodes."""
    say(str(authority.revoke(directory, names, org=org)))


def _members(names: list[str], role: Role, directory: Path, org: str, days: int, force: bool, renew: bool) -> None:
    for name in names:
        made = authority.make_member(directory, name, role=role, org=org, days=days, force=force, renew=renew)
        say(f"{made.peer_id} {made.cert}")
