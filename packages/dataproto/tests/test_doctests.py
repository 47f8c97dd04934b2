"""Every example in a docstring runs, and every public function and method has one."""

import doctest
import importlib
import inspect
import pkgutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import fanfold.dataproto
import fanfold.dataproto.tensordicts
from fanfold.dataproto import (
    BalancedSplit,
    DataProto,
    DataProtoConfig,
    DataProtoFuture,
    Header,
    MiniBatches,
    RemoteBatch,
)

WITHOUT = {"all_gather_data_proto"}  # an example would need a process group


class Store:
    """What the examples call `store`: parts in this process."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}

    def put(self, value: object) -> int:
        self.held[len(self.held)] = value
        return len(self.held) - 1

    def fetch(self, handles: Sequence[int], timeout: float | None) -> list[Any]:
        return [self.held[handle] for handle in handles]

    def header(self, handle: int, timeout: float | None) -> Any:
        return self.held[handle]

    def free(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self.held[handle] = None


def modules() -> Iterator[str]:
    for found in pkgutil.walk_packages(fanfold.dataproto.__path__, "fanfold.dataproto."):
        yield found.name


@pytest.mark.parametrize("name", list(modules()))
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    names: dict[str, Any] = vars(tensordict) | vars(fanfold.dataproto) | vars(module)
    names |= {"torch": torch, "np": np, "Path": Path, "tempfile": tempfile, "store": Store()}
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names):
        failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
        assert failed.failed == 0, example.name


def documented() -> Iterator[tuple[str, Any]]:
    for owner in (DataProto, DataProtoConfig, DataProtoFuture, RemoteBatch, MiniBatches, BalancedSplit, Header):
        for name, value in inspect.getmembers(owner):
            if (
                not name.startswith("_")
                and name not in {"count", "index"}
                and (inspect.isroutine(value) or isinstance(value, property))
            ):
                yield f"{owner.__name__}.{name}", value
    for package in (fanfold.dataproto, fanfold.dataproto.tensordicts):
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isfunction(value):
                yield name, value


@pytest.mark.parametrize(("name", "value"), [found for found in documented() if found[0] not in WITHOUT])
def test_has_an_example(name: str, value: Any) -> None:
    documentation = inspect.getdoc(value)
    assert documentation, name
    assert ">>>" in documentation, name
