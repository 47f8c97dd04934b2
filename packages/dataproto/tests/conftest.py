"""Batches of every kind for property tests (`st.from_type(DataProto)`), and a second opinion on what is in them."""

import os
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from fanfold.dataproto import DataProto, object_column

# 300 examples in CI; HYPOTHESIS_PROFILE=few for a first look, =deep for 3,000, =endless for 100,000.
for name, examples in {"few": 30, "ci": 300, "deep": 3_000, "endless": 100_000}.items():
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=name in {"few", "ci"},
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.complex32,
    torch.complex64,
    torch.complex128,
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long profiles have no time limit."""
    if hypothesis.settings().max_examples > 300:
        for item in items:
            item.add_marker(pytest.mark.timeout(0))


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bit pattern of the dtype, so NaN and infinity too."""
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    if dtype == torch.bool:
        return (raw % 2).bool().reshape(shape)
    return raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


seeds = st.integers(0, 2**31)
dtypes = st.sampled_from(DTYPES)
row_shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.builds(random_tensor, dtypes, st.sampled_from([(), (2,), (0, 3)]), seeds)
    | st.integers(0, 3).map(lambda size: np.arange(float(size)))
)
cells = st.recursive(
    leaves,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.text(max_size=2), inside, max_size=2)
        | st.dictionaries(st.integers(0, 3), inside, max_size=2)
        | st.tuples(inside, inside)
    ),
    max_leaves=5,
)


@st.composite
def dense_columns(draw: st.DrawFn, rows: int) -> torch.Tensor:
    dtype, shape, seed = draw(dtypes), draw(row_shapes), draw(seeds)
    if draw(st.integers(0, 3)):
        return random_tensor(dtype, (rows, *shape), seed)
    return random_tensor(dtype, (*shape, 2 * rows), seed).movedim(-1, 0)[::2]  # a view with strides


@st.composite
def jagged_columns(draw: st.DrawFn, rows: int, offsets: torch.Tensor) -> torch.Tensor:
    before = draw(st.lists(st.integers(1, 2), max_size=1))
    after = draw(st.lists(st.integers(1, 2), max_size=1))
    values = random_tensor(draw(dtypes), (*before, int(offsets[-1]), *after), draw(seeds))
    if not before and draw(st.booleans()):
        # Rows with gaps between them: what narrowing leaves.
        lengths = (offsets.diff() - 1).clamp(min=0)
        return torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=len(before) + 1)


@st.composite
def trees(draw: st.DrawFn, rows: int, offsets: torch.Tensor) -> TensorDict:
    inside: dict[str, Any] = {"a": draw(dense_columns(rows))}
    if draw(st.booleans()):
        inside["j"] = draw(jagged_columns(rows, offsets))
    if draw(st.booleans()):
        inside["value"] = NonTensorData(draw(cells), batch_size=[rows])
    if rows and draw(st.booleans()):
        inside["stack"] = NonTensorStack(*[NonTensorData(draw(cells)) for _ in range(rows)])
    if draw(st.booleans()):
        inside["deep"] = TensorDict({"b": draw(dense_columns(rows))}, batch_size=[rows])
    return TensorDict(inside, batch_size=[rows])


@st.composite
def tensor_columns(draw: st.DrawFn, rows: int) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    kinds = draw(st.lists(st.sampled_from(["dense", "dense", "jagged", "jagged", "tree"]), max_size=4))
    makers: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "dense": lambda: dense_columns(rows),
        "jagged": lambda: jagged_columns(rows, offsets),
        "tree": lambda: trees(rows, offsets),
    }
    return {f"t{at}": draw(makers[kind]()) for at, kind in enumerate(kinds)}


@st.composite
def array_columns(draw: st.DrawFn, rows: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for at in range(draw(st.integers(0, 2))):
        made[f"o{at}"] = object_column(draw(st.lists(cells, min_size=rows, max_size=rows)))
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(["<i8", "<f4", "<U3", "?", "<M8[s]", "<c16", "|S2"]))
        raw = random_tensor(torch.uint8, (rows * np.dtype(dtype).itemsize,), draw(seeds)).numpy()
        made["n"] = (
            raw.view(dtype)
            if dtype not in {"<U3", "?"}
            else (raw[:: max(1, np.dtype(dtype).itemsize)] % 2).astype(dtype)
        )
    return made


@st.composite
def batches(draw: st.DrawFn) -> DataProto:
    rows = draw(st.integers(0, 6))
    tensors = draw(st.none() | tensor_columns(rows))
    arrays = draw(array_columns(rows))
    meta = draw(st.dictionaries(st.sampled_from(["step", "cfg", "lr", "names"]), cells, max_size=3))
    batch = None if tensors is None else TensorDict(tensors, batch_size=[rows])
    return DataProto(batch, arrays, meta)


st.register_type_strategy(DataProto, batches())


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def token(value: Any) -> Any:  # noqa: PLR0911 (one line for each kind)
    """What a value is, in terms that Python compares by content: types, dtypes, shapes and bytes."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return ("jagged", str(value.dtype), [token(row) for row in value.unbind()])
        raw = _bytes(value.detach()) if value.numel() else b""
        return (str(value.dtype), tuple(value.shape), raw)
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ("objects", value.shape, [token(cell) for cell in value.flat])
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return (str(value.dtype), value.tobytes())
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, dict):
        return ("dict", sorted(((token(key), token(item)) for key, item in value.items()), key=repr))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [token(item) for item in value])
    return (type(value).__name__, value)


def column_rows(column: Any) -> list[Any]:
    """One token for each row of a column, by other means than the package uses."""
    if isinstance(column, torch.Tensor):
        parts = column.unbind() if column.is_nested else [column[row] for row in range(len(column))]
        return [token(part) for part in parts]
    if isinstance(column, np.ndarray):
        return [token(cell) for cell in column]
    rows = int(column.batch_size[0])
    if isinstance(column, NonTensorData):
        return [token(column.data)] * rows
    if isinstance(column, NonTensorStack):
        return [token(value) for value in column.tolist()]
    inside = {name: column_rows(leaf) for name, leaf in column.items()}
    return [{name: values[row] for name, values in inside.items()} for row in range(rows)]


def batch_rows(batch: DataProto) -> list[dict[str, Any]]:
    columns = {} if batch.batch is None else dict(batch.batch.items())
    inside = {name: column_rows(column) for name, column in [*columns.items(), *batch.non_tensor_batch.items()]}
    return [{name: values[row] for name, values in inside.items()} for row in range(len(batch))]


def picture(batch: DataProto) -> Any:
    """Everything that can be seen of a batch."""
    names = [None if batch.batch is None else sorted(batch.batch.keys()), sorted(batch.non_tensor_batch)]
    kinds = {name: str(spec) for name, spec in batch.schema().columns.items() if "objects" not in str(spec)}
    return len(batch), names, kinds, batch_rows(batch), token(batch.meta_info)


@pytest.fixture(name="picture", scope="session")
def _picture() -> Callable[[DataProto], Any]:
    return picture


@pytest.fixture(name="rows_of", scope="session")
def _rows_of() -> Callable[[DataProto], list[dict[str, Any]]]:
    return batch_rows


@pytest.fixture(name="random_tensor", scope="session")
def _random_tensor() -> Callable[[torch.dtype, tuple[int, ...], int], torch.Tensor]:
    return random_tensor


@pytest.fixture(name="all_dtypes", scope="session")
def _all_dtypes() -> list[torch.dtype]:
    return DTYPES
