"""The package from outside: its door, its errors, what importing it brings along."""

import subprocess
import sys

import pytest

import fanfold.dataproto
from fanfold.dataproto import DataProtoError, FanfoldError, errors

PUBLIC = [
    "BalancedSplit", "ColumnError", "ColumnSchema", "ColumnTypeError", "DataProto", "DataProtoConfig", "DataProtoError",
    "DataProtoFuture", "DataProtoItem", "FanfoldError", "FileFormatError", "Header", "MergeError", "MiniBatches",
    "MissingKeyError", "NotEqualError", "Part", "PartStore", "RemoteBatch", "RemoteError", "RemoteTimeoutError",
    "RowIndexError", "Schema", "SchemaError", "SplitError", "WireError", "all_gather_data_proto", "collate_fn",
    "deep_equal", "deserialize_single_tensor", "deserialize_tensordict", "fold_batch_dim", "header_of",
    "list_of_dict_to_dict_of_list", "object_column", "pad_dataproto_to_divisor", "position_ids_from_mask",
    "serialize_single_tensor", "serialize_tensordict", "unfold_batch_dim", "union_numpy_dict", "union_tensor_dict",
    "unpad_dataproto",
]  # fmt: skip


def test_the_door() -> None:
    assert fanfold.dataproto.__all__ == PUBLIC
    assert all(hasattr(fanfold.dataproto, name) for name in PUBLIC)


def test_every_error_has_the_root_and_a_built_in_that_fits() -> None:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, DataProtoError)]
    assert len(found) == 13
    for error in found:
        assert issubclass(error, FanfoldError)
        if error is not DataProtoError:
            assert issubclass(error, ValueError | TypeError | KeyError | IndexError | RuntimeError | AssertionError)
    assert str(errors.MissingKeyError("a sentence")) == "a sentence"


SCRIPT = """
import sys
import torch, tensordict
before = set(sys.modules)
import fanfold.dataproto, fanfold.dataproto.tensordicts
added = set(sys.modules) - before
tops = {name.split(".")[0] for name in added} - {"fanfold", "safetensors", "numpy"} - sys.stdlib_module_names
print(sorted(tops), "torch.utils.data" in added)
print([name for name in ("ray", "transformers", "pandas") if name in added])
"""


@pytest.mark.timeout(660)
def test_importing_it_brings_nothing_along() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.splitlines() == ["[] False", "[]"]


@pytest.mark.parametrize("switch", ["set_lazy_legacy", "set_list_to_stack"])
def test_settings_of_tensordict_stay_as_they_are(switch: str) -> None:
    import inspect  # noqa: PLC0415 (only here)
    import pkgutil  # noqa: PLC0415 (only here)

    for module in pkgutil.walk_packages(fanfold.dataproto.__path__, "fanfold.dataproto."):
        assert switch not in inspect.getsource(sys.modules.get(module.name) or __import__(module.name, fromlist=["x"]))
