"""`hypha-node probe`: call another node and say who answers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from node import addresses
from node.commands.output import columns
from node.config import chosen_file, load
from node.identity.credentials import load_identity
from node.network.probe import probe as call

app = App(name="probe", help="Call another node and say who answers.")


@app.default
def probe(
    address: Annotated[str, Parameter(help="Multiaddr or https://host:port of the node.")],
    /,
    *,
    config: Annotated[Path | None, Parameter(help="Configuration whose certificate to call with.")] = None,
    cert: Annotated[Path | None, Parameter(help="Certificate to call with.")] = None,
    key: Annotated[Path | None, Parameter(help="Its private key.")] = None,
    trust: Annotated[Path | None, Parameter(help="Trust bundle.")] = None,
) -> None:
    """Call another node with our certificate; nothing is joined. Exit code 3: it cannot be reached."""
    where = addresses.parse(address)
    ours = load(chosen_file(config), os.environ, {"cert_pem": cert, "key_pem": key, "trust_pem": trust}).config
    identity = load_identity(ours.cert_pem, ours.key_pem, ours.trust_pem, ours.crls_pem)
    found = asyncio.run(call(identity, where))
    columns(
        [
            ("peer", found.peer_id),
            ("name", found.name),
            ("roles", ", ".join(found.roles)),
            ("version", found.version),
            ("answered in", f"{found.seconds * 1000:.1f} ms"),
            ("certificate", f"{found.certificate_days:.0f} days left"),
            ("addresses", " ".join(found.addresses)),
        ]
    )
