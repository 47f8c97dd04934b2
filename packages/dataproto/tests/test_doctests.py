"""Every example in a docstring runs, and every public function and method has one."""

import doctest
import importlib
import inspect
import pkgutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensordict
import torch

import fanfold.dataproto
import fanfold.dataproto.tensordicts
from fanfold.dataproto import DataProto

# Working examples would need a cluster store, process groups, or say no more than the sentence.
WITHOUT = {
    "all_gather_data_proto",
    "header_of",
    "get_keys",
    "pop",
    "pop_keys",
    "concat_tensordict_with_none_bsz",
    "union_tensor_dict",
    "assert_tensordict_eq",
    "unpad",
    "get",
    "deserialize_single_tensor",
    "serialize_tensordict",
    "deserialize_tensordict",
}


def modules() -> Iterator[str]:
    for found in pkgutil.walk_packages(fanfold.dataproto.__path__, "fanfold.dataproto."):
        yield found.name


@pytest.mark.parametrize("name", list(modules()))
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    names: dict[str, Any] = {"torch": torch, "np": np, "Path": Path, "tempfile": tempfile}
    names |= vars(tensordict) | vars(fanfold.dataproto) | vars(module)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names):
        failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
        assert failed.failed == 0, example.name


def documented() -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers(DataProto):
        if not name.startswith("_"):
            yield f"DataProto.{name}", value
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
