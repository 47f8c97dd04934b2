"""Every rank's rows on every rank, inside a worker. Letters: `B` rows, `W` ranks of the process group."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import dense, objects
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.buffers import as_bytes
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnTypeError, MergeError
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.table import Table

_ON_CPU = ("gloo", "mpi", "ucc")


def all_gather_data_proto(data: DataProto, process_group: Any) -> None:
    """Put the rows of all ranks below each other, in rank order, in place, on every rank; ranks may have different B.

    Works on CPU (gloo) and GPU (nccl) groups. Dense tensors go through one collective for each column, everything else
    (jagged, nested, object columns) through one for all. Each rank keeps its own `meta_info`, and its devices.

    Raises:
        MergeError: the ranks have different columns, dtypes or row shapes; on every rank alike, before tensors are
            sent.
    """
    if not isinstance(data, DataProto):
        raise ColumnTypeError(f"got a {type(data).__name__}; expected a DataProto")
    world = dist.get_world_size(process_group)
    found, rows = data._tensors(), data._rows()
    local = {} if found is None else dict(found.columns)
    plain = {name: column for name, column in local.items() if isinstance(column, Tensor) and not column.is_nested}
    rest = data.select([name for name in local if name not in plain] if found is not None else None, None, [])
    told: list[Any] = [None] * world
    outline = {name: (column.dtype, tuple(column.shape[1:])) for name, column in plain.items()}
    dist.all_gather_object(told, (rows, outline, found is None, rest), group=process_group)
    _check_outlines([entry[1:3] for entry in told])
    counts = [entry[0] for entry in told]
    gathered = {name: _gathered(plain[name], counts, process_group) for name in sorted(plain)}
    _put(data, found, gathered, [entry[3] for entry in told], sum(counts))


def _check_outlines(outlines: list[Any]) -> None:
    for rank, outline in enumerate(outlines):
        if outline != outlines[0]:
            raise MergeError(
                f"rank {rank} has the columns {outline[0]}, rank 0 has {outlines[0][0]}; expected the same"
            )


def _gathered(column: Tensor, counts: list[int], group: Any) -> Tensor:
    # Collectives know few dtypes and equal sizes only: rows travel as bytes, filled up to the longest rank.
    device = _collective_device(column, group)
    width = torch.Size(column.shape[1:]).numel() * column.dtype.itemsize
    mine = torch.zeros(max(counts) * width, dtype=torch.uint8, device=device)
    raw = as_bytes(dense.contiguous(column.detach())) if column.numel() else mine[:0]
    mine[: len(raw)] = raw.to(device)
    everyone = [torch.empty_like(mine) for _ in counts]
    dist.all_gather(everyone, mine, group=group)
    parts = [buffer[: count * width] for buffer, count in zip(everyone, counts, strict=True)]
    whole = torch.cat(parts).to(column.device)
    shape = (sum(counts), *column.shape[1:])
    return whole.view(column.dtype).view(shape) if whole.numel() else column.new_empty(shape)


def _collective_device(column: Tensor, group: Any) -> torch.device:
    if any(name in str(dist.get_backend(group)) for name in _ON_CPU):
        return torch.device("cpu")
    if column.device.type != "cpu":
        return column.device
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _put(data: DataProto, found: Table | None, gathered: dict[str, Tensor], rests: list[DataProto], rows: int) -> None:
    shared = Shared()
    columns: dict[str, Column] = {}
    for name, own in () if found is None else found.columns.items():
        if name in gathered:
            columns[name] = gathered[name]
        else:
            whole = column_rules.cat(name, [rest._columns()[name] for rest in rests], shared)
            columns[name] = column_rules.to_device(whole, _device_of(own), shared)
    arrays = {
        name: objects.cat(name, [rest.non_tensor_batch[name] for rest in rests]) for name in data.non_tensor_batch
    }
    data._replace(None if found is None else Table(columns, rows, found.device), arrays)


def _device_of(column: Column) -> torch.device:
    return column.device if column.device is not None else torch.device("cpu")
