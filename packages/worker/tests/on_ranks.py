"""What tests have ranks do; in a module of its own, so that processes of ranks can import it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

from fanfold.worker import Worker


class Explosive:
    def __reduce__(self) -> Any:
        return explode, ()


def explode() -> None:
    raise ZeroDivisionError("while unpacking")


def foreign(worker: Any) -> Any:
    module = types.ModuleType("only_on_the_rank")
    exec("class Foreign: pass", module.__dict__)
    sys.modules["only_on_the_rank"] = module
    return module.Foreign()


def unpicklable(worker: Any) -> Any:
    return threading.Lock()


def pid(worker: Any) -> int:
    return os.getpid()


def on_main_thread(worker: Any) -> bool:
    return threading.current_thread() is threading.main_thread()


def hash_randomization(worker: Any) -> int:
    return sys.flags.hash_randomization


def say(worker: Any, text: str) -> None:
    sys.stdout.write(text + "\n")


def open_files(worker: Any) -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def lengths(worker: Any, *values: Any) -> list[int]:
    return [len(value) for value in values]


def pass_on(worker: Any, second: Any, owner: Any) -> Any:
    return second.execute(ask_for_processes, owner)


def ask_for_processes(worker: Any, group: Any) -> Any:
    return group.process()


def reversed_bytes(worker: Any, value: bytearray) -> bytearray:
    return value[::-1]


def crash(worker: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class Dying(Worker):
    def __init__(self) -> None:
        super().__init__()
        if self.rank == 1:
            sys.stdout.write("no licence\n")
            sys.exit(3)


class Hanging(Worker):
    def __init__(self) -> None:
        super().__init__()
        if self.rank == 1:
            time.sleep(3600)
