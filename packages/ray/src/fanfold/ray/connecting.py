"""Connecting a driver to a cluster that runs already: quickly, and with a word on why not."""

from __future__ import annotations

import logging
import os
import socket

from fanfold.ray.errors import NoClusterError
from fanfold.ray.uv_run import workers_without_uv_run

import ray

PROBE_LIMIT = 5.0  # seconds for the address to accept a connection; Ray itself would try for 20 and more
NAMESPACE = "fanfold"  # where detached groups are named, unless the user says otherwise


def connect(address: str = "auto", namespace: str = NAMESPACE) -> None:
    """Connect this process to a running cluster; never starts one.

    Under `uv run`, Ray would start every worker through `uv run` in a copy of this process's folder. Workers of a
    process that connected here are run by their nodes' own Python, unless `RAY_ENABLE_UV_RUN_RUNTIME_ENV` is set.

    Args:
        address: `auto` for `RAY_ADDRESS`, or else the cluster that `ray start` started on this machine; or `host:port`.
        namespace: Where actors are named and looked up.

    Raises:
        NoClusterError: There is no cluster at that address, or it does not let this process in.
    """
    wanted = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if wanted != "auto":
        _check_listening(wanted)
    try:
        with workers_without_uv_run():
            ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise NoClusterError(_advice(wanted, error)) from error


def _check_listening(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise NoClusterError(f"the address of a cluster is 'auto' or host:port, such as 10.0.0.1:6379; got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_LIMIT).close()
    except (OSError, OverflowError) as error:
        raise NoClusterError(
            f"nothing answers at {address} ({error}); is the cluster up (`ray start --head --port={port}` on that host)"
            ", and is this the address that it printed?"
        ) from error


def _advice(wanted: str, error: BaseException) -> str:
    if wanted == "auto":
        return (
            "no Ray cluster runs on this machine; start one with `ray start --head --port=6379`, or give the address "
            "of another with --address host:port or RAY_ADDRESS"
        )
    hint = (
        "" if "RAY_AUTH_MODE" in os.environ else "; if the cluster asks for a token, set RAY_AUTH_MODE=token here too"
    )
    return f"something answers at {wanted}, but it did not let this process join a Ray cluster ({error}){hint}"
