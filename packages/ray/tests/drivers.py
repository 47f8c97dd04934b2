"""Drivers of their own processes, as scripts that connect to the tests' cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

START = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in all that a shell has put into the background
import ray
from fanfold.ray import *
from sample_workers import *
ray.init(address={address!r}, namespace={namespace!r}, log_to_driver=False, logging_level="ERROR")
def say(value):
    print("said " + json.dumps(value), flush=True)
"""


def script(body: str, address: str, namespace: str = "fanfold") -> str:
    return START.format(address=address, namespace=namespace) + textwrap.dedent(body)


def run(body: str, address: str, namespace: str = "fanfold") -> list[Any]:
    """Run a driver to its end and return what it said."""
    command = [sys.executable, "-c", script(body, address, namespace)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line.removeprefix("said ")) for line in done.stdout.splitlines() if line.startswith("said ")]


def begin(body: str, address: str, namespace: str = "fanfold") -> subprocess.Popen[str]:
    """Start a driver and return when it has said something; its `input()` waits until it is ended."""
    command = [sys.executable, "-c", script(body, address, namespace)]
    pipe = subprocess.PIPE  # an input of the tests' own may be at its end, and a driver that reads it would be gone
    driver = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert driver.stdout is not None
    if not driver.stdout.readline().startswith("said "):
        raise AssertionError(driver.communicate(timeout=30)[1])
    return driver
