"""What a rank returns of a call whose result stays where it is: a small header and the rows, two task returns.

Both are owned by the caller, so they survive the rank. The header is brought, the payload only where rows are wanted;
a small result travels inside the header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.dispatch import batch_type_of
from fanfold.ray.parcels import TRAVELS_WITH_CALL, Parcel, is_batch, opened, pack
from fanfold.worker import GroupUsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ResultHeader(NamedTuple):
    """What is known of a rank's result without its rows.

    Attributes:
        type: The class of the result.
        rows: How many it has; None for what is no batch.
        columns: Their names.
        nbytes: Bytes of the payload, as far as the batch type can tell.
        meta: What belongs to the whole batch, where that is small.
        inside: The result itself, in a list, where it is small; else None.
        method: What was called, for messages.
        in_pieces: Whether some columns are apart.
    """

    type: str
    rows: int | None
    columns: tuple[str, ...]
    nbytes: int
    meta: Mapping[str, Any] | None
    inside: list[Any] | None
    method: str
    in_pieces: bool = False

    def described(self, rows: int | None) -> dict[str, Any]:
        """Return what the batch's own library wants to know, for that many rows.

        Raises:
            GroupUsageError: The result is no batch.
        """
        if rows is None:
            raise GroupUsageError(
                f"{self.method} returned {self.type}, which has no rows; use result() of what the call gave"
            )
        return {
            "type": self.type,
            "rows": rows,
            "columns": self.columns,
            "nbytes": self.nbytes,
            "meta": self.meta,
        }


def kept_result(result: Any, method: str, apart: Sequence[str]) -> tuple[Any, ...]:
    """Return what a rank returns instead of its result: as many values as `returns_of` says.

    Without `apart`: a header, and the payload or None where it is in the header. With it: a header, the batch without
    columns, its other columns, and each that is to be apart by itself, or None where it has no such column. What has no
    columns is the payload.

    Raises:
        NotPicklableError: The result cannot travel.
    """
    found = batch_type_of(result)
    if not apart:
        return _header_and_payload(result, method)
    if found is None or found.columns is None or found.select is None:
        sent = _sent(result, method)
        return _header(result, method, bytes_of(result, sent), inside=None), sent, *[None] * (1 + len(apart))
    names, select = list(found.columns(result)), found.select
    header = _header(result, method, bytes_of(result, result), inside=None)._replace(in_pieces=True)
    columns = [_sent(select(result, [name]), method) if name in names else None for name in apart]
    others = select(result, [name for name in names if name not in apart])
    return header, _sent(select(result, []), method), _sent(others, method), *columns


def _sent(value: Any, method: str) -> Any:
    return value if is_batch(value) else pack(value, f"the result of {method}")


def returns_of(apart: Sequence[str]) -> int:
    """Return how many values a rank returns whose result stays with it."""
    return 3 + len(apart) if apart else 2


def _header_and_payload(result: Any, method: str) -> tuple[ResultHeader, Any]:
    sent = _sent(result, method)
    nbytes = bytes_of(result, sent)
    small = nbytes <= TRAVELS_WITH_CALL
    return _header(result, method, nbytes, inside=[sent] if small else None), None if small else sent


def _header(result: Any, method: str, nbytes: int, inside: list[Any] | None) -> ResultHeader:
    found = batch_type_of(result)
    return ResultHeader(
        type=f"{type(result).__module__}.{type(result).__qualname__}",
        rows=None if found is None else found.length(result),
        columns=() if found is None or found.columns is None else tuple(found.columns(result)),
        nbytes=nbytes,
        meta=_small_meta(result),
        inside=inside,
        method=method,
    )


def opened_result(header: ResultHeader, payload: Any, *, readonly: bool = False) -> Any:
    """Return the result that a rank returned, with memory of its own unless it is to be read only."""
    sent = payload if header.inside is None else header.inside[0]
    return opened([sent], readonly=readonly)[0]


def bytes_of(value: Any, sent: Any) -> int:
    """Return the bytes of a value that is sent as it is or as a parcel, as far as that can be told."""
    if isinstance(sent, Parcel):
        return sent.size
    found = batch_type_of(value)
    return 0 if found is None or found.nbytes is None else found.nbytes(value)


def _small_meta(result: Any) -> Mapping[str, Any] | None:
    meta = getattr(result, "meta_info", None)
    if not isinstance(meta, dict):
        return None
    try:
        return meta if pack(meta, "meta_info").size <= TRAVELS_WITH_CALL else None
    except Exception:  # noqa: BLE001  # what cannot be pickled is said when the batch itself is sent
        return None
