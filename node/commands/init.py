"""`hypha-node init`: a configuration to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from node.commands.output import say
from node.errors import ConfigError

app = App(name="init", help="Write a commented configuration file.")

TEMPLATE = """\
# Configuration of a Hypha node. Start it with: hypha-node --config {file}
# A flag beats an environment variable (HYPHA_NAME=.., HYPHA_RESOURCES__GPU=..), which beats this file.
# Relative paths start at this file's folder. Lines with one # in front are the defaults, or examples.

# name = "gpu-box-1"                    # default: the name in the certificate
roles = ["worker"]                      # any of gateway, scheduler, worker, data
# state_dir = "~/.local/state/hypha"    # database, sockets, downloaded slices

## Who this node is, and whom it trusts. To try it out, make all of them here:
##   hypha-node cert root --dir certs; hypha-node cert org --dir certs; hypha-node cert node node --dir certs
cert_pem = "certs/node-cert.pem"
key_pem = "certs/node-key.pem"
trust_pem = "certs/node-trust.pem"
# crls_pem = "certs/hypha-crl.pem"      # revoked certificates; read again when it changes

## Where it listens. Port 0 is any free port. The default is this machine only; /ip4/0.0.0.0/tcp/4001 is everywhere.
# listen_addresses = ["/ip4/127.0.0.1/tcp/0"]
## What others dial, when that is not where it listens (port forwarding).
# external_addresses = ["/ip4/203.0.113.50/tcp/4001"]
## Nodes to join through. One is enough; more are safer.
# gateway_addresses = ["/dns4/gw.example.org/tcp/4001"]
# exclude_cidr = ["10.0.0.0/8"]         # addresses that are never dialled
# relay_circuit = true                  # taken, and without effect yet: nodes must be able to dial each other
# mdns = true                           # find nodes of the same authority on the local network

## data: folders of safetensors slices, made by `hypha-node dataset build`. A dataset has its folder's name.
## A folder of datasets will do: what comes there is served without a restart.
## One in object storage is named by itself: s3://, gs:// or az://bucket/path/name.
# dataset_path = ["/var/hypha/datasets/wikitext-103"]
## Where schedulers of the cluster may put results of jobs. Without it they may not.
# results_path = "/var/hypha/results"

## worker: where tasks work. The default is in state_dir.
# work_dir = "/var/hypha/work"
## May code that comes with a job run here? "sandboxed" (the default where bubblewrap works), "allow" or "refuse".
# job_code = "sandboxed"

## OpenTelemetry.
# telemetry_endpoint = "http://otel-collector:4318"
# telemetry_protocol = "http/protobuf"
# telemetry_sampler = "parentbased_traceidratio"
# telemetry_sample_ratio = 0.1
# telemetry_headers = "Authorization=Bearer%20TOKEN"
# telemetry_attributes = "deployment.environment=production"

## scheduler: POST every metric as JSON to http://HOST:PORT/status.
# status_bridge = "127.0.0.1:61000"

## Peer ids of nodes whose commands are taken without an operator's signature.
# operators = []

## scheduler: where the metrics of jobs are written as well. API keys come from the environment.
# [exports]
# csv = "/var/hypha/csv"
# tensorboard = "/var/hypha/tensorboard"    # pip install 'hypha-tui[tensorboard]'
# mlflow = "https://mlflow.example.org"     # pip install 'hypha-tui[mlflow]'
# wandb = "my-project"                      # pip install 'hypha-tui[wandb]'

## worker: the node finds out what the machine has. This lowers or overrides it: cores, and GB.
# [resources]
# cpu = 16
# memory = 64
# storage = 500
# gpu = 24

## worker: GB for slices and downloads that several tasks may use, and GB that are left free on the disk.
# [cache]
# size = 20
# keep_free = 1

## worker: hosts that files of tasks may be fetched from, and whether from outside of the public net as well.
# [fetch]
# hosts = ["huggingface.co", "*.huggingface.co", "*.hf.co"]
# private = false

## worker: folders and files of this machine that jobs may mount, with all below. read_only = false: they may write.
# [[mounts]]
# path = "/mnt/data"
# read_only = true

## worker: price an hour that is asked for, and the lowest bid that is answered.
# [offer]
# price = 0.0
# floor = 0.0
# strategy = "flexible"                 # or "whole": all of the worker in one offer

## worker: programs that run tasks. Without any, the built-in ones for training and averaging are used.
# [[executors]]
# class = "train"
# name = "diloco-transformer"
# runtime = "process"
# cmd = "python3"
# args = ["-m", "my_executor", "--socket", "{{SOCKET_PATH}}", "--work-dir", "{{WORK_DIR}}", "--job", "{{JOB_JSON}}"]

# [[executors]]
# class = "aggregate"
# name = "parameter-server"
# runtime = "parameter-server"
"""


@app.default
def init(
    file: Path = Path("hypha.toml"),
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a commented configuration file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(TEMPLATE.format(file=file))
    except FileExistsError:
        raise ConfigError(f"{file} exists already", hint="--force replaces it") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    say(f"{file} written")
