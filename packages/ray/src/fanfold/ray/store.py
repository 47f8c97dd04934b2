"""Where rows of batches are on a cluster: handles of results and of staged values, and the store that opens them.

A handle may be pickled and used by any process of the cluster. What it stands for lives as long as one of its
references does, and no longer than the process that owns it: the driver that made the call, or that staged the value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fanfold.dispatch import CollectError, batch_type_of
from fanfold.ray.cluster import cluster_id, require_cluster
from fanfold.ray.origins import lost_part, note_origin
from fanfold.ray.outcomes import FETCH_LIMIT, failure_of
from fanfold.ray.parcels import is_batch, opened, pack, put
from fanfold.ray.results import ResultHeader, bytes_of, opened_result
from fanfold.worker import Deadline, GroupUsageError, WaitTimeoutError

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.ray.refs import Ref


class Producer(Protocol):
    """The call that a result belongs to, where it was made in this process."""

    def header(self, position: int, timeout: float | None) -> ResultHeader:
        """Return the header of the result at a position, or raise the error of the call."""

    def known_header(self, position: int) -> ResultHeader | None:
        """Return the header of the result at a position if it is here; never waits."""


@dataclass(frozen=True, eq=False)
class Kept:
    """The result of one rank.

    Attributes:
        head: Ray's reference of its header.
        payload: Ray's reference of its rows.
        origin: Which rank made it, in which call, for messages.
        cluster: The cluster that it is in.
        rows: How many rows there are to be without padding; None for any number.
        padding: How many rows at its end are padding.
        call: Its call, in the process that made it; does not travel.
        position: Its place in that call.
        beside: Where some columns are apart: those by name, and the rest; does not travel.
    """

    head: Ref
    payload: Ref
    origin: str
    cluster: str
    rows: int | None = None
    padding: int = 0
    call: Producer | None = field(default=None, repr=False)
    position: int = 0
    beside: tuple[Any, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        note_origin(self.payload, self)
        note_origin(self.head, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and (self.payload, self.rows) == (other.payload, other.rows)

    def __hash__(self) -> int:
        return hash(self.payload)

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, (self.head, self.payload, self.origin, self.cluster, self.rows, self.padding)

    def check(self) -> None:
        """Refuse what is in another cluster."""
        _check_cluster(self.origin, self.cluster)

    def rows_of(self, header: ResultHeader) -> int | None:
        """Return how many rows are left without padding; None for what is no batch.

        Raises:
            CollectError: Rows and padding cannot be told apart.
        """
        return unpadded_rows(self.origin, header.rows, self.rows, self.padding)


class Stored:
    """A value that was put into the store once, to be used in many calls.

    Args:
        reference: Ray's; None once it was freed.
        nbytes: Its bytes, as far as they are known.
        cluster: The cluster that it is in.
    """

    def __init__(self, reference: Ref | None, nbytes: int, cluster: str) -> None:
        self.reference, self.nbytes, self.cluster = reference, nbytes, cluster
        if reference is not None:
            note_origin(reference, self)

    origin = "a value that was staged"

    def check(self) -> None:
        """Refuse what was freed, or is in another cluster."""
        if self.reference is None:
            raise GroupUsageError("this value was freed; stage the batch again")
        _check_cluster(self.origin, self.cluster)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stored, (self.reference, self.nbytes, self.cluster)


class RayStore:
    """Puts, opens and frees values; equal to every other one, and it travels."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayStore)

    def __hash__(self) -> int:
        return hash(RayStore)

    def put(self, value: object) -> Stored:
        """Store a value once; it goes when nobody refers to the handle any more, or with this process.

        Raises:
            NoClusterError: This process is not connected to a cluster.
            NotPicklableError: It cannot travel.
            StoreFullError: There is no room for it.
        """
        require_cluster("staging a batch")
        what = f"a {type(value).__qualname__}"
        sent = value if is_batch(value) else pack(value, what)
        return Stored(put(sent, what), bytes_of(value, sent), cluster_id())

    def fetch(self, handles: Sequence[Kept | Stored], timeout: float | None) -> list[Any]:
        """Bring the values of handles to this process, all at once, and return them.

        Raises:
            WaitTimeoutError: They did not come in time.
            PartLostError: One is gone; says which, from which rank, and what can be done.
            GroupCallError: The call that was to produce one has failed.
        """
        limit = Deadline(FETCH_LIMIT if timeout is None else timeout, "rows that are elsewhere")
        headers = {handle: self._head(handle, limit) for handle in handles if isinstance(handle, Kept)}
        wanted = [_payload(handle, headers) for handle in handles]
        arrived = iter(values_of([ref for ref in wanted if ref is not None], limit))
        values = [None if ref is None else next(arrived) for ref in wanted]
        return [_opened(handle, headers, value) for handle, value in zip(handles, values, strict=True)]

    def header(self, handle: Kept, timeout: float | None) -> dict[str, Any]:
        """Bring the header of a result.

        Raises:
            WaitTimeoutError: The rank was not done in time.
            GroupCallError: The call has failed.
            CollectError: Padding cannot be told from rows.
            GroupUsageError: The result is no batch.
        """
        header = self._head(handle, Deadline(FETCH_LIMIT if timeout is None else timeout, "a header"), timeout)
        return header.described(handle.rows_of(header))

    def free(self, handles: Sequence[Kept | Stored]) -> None:
        """Let go of staged values; calls that are using one keep it until they are over."""
        for handle in handles:
            if isinstance(handle, Stored):
                handle.reference = None

    def _head(self, handle: Kept, limit: Deadline, timeout: float | None = None) -> ResultHeader:
        handle.check()
        if handle.call is not None:
            return handle.call.header(handle.position, timeout)
        found: ResultHeader = values_of([handle.head], limit)[0]
        return found


def values_of(references: Sequence[Ref], limit: Deadline) -> list[Any]:
    """Return the values of references, or raise what became of the first that has none."""
    try:
        return ray.get(list(references), timeout=limit.left()) if references else []
    except GetTimeoutError as error:
        raise WaitTimeoutError(limit.what, limit.seconds) from error
    except ObjectLostError as error:
        raise lost_part(error) from error
    except Exception as error:
        raise failure_of(error).error from error


def unpadded_rows(origin: str, found: int | None, rows: int | None, padding: int) -> int | None:
    """Return how many rows are left without padding.

    Raises:
        CollectError: Rows and padding are counted, and there are not as many as both together.
    """
    if found is None or rows is None:
        return found
    if found != rows + padding:
        why = "of which the last are padding" if padding else "dealt out by weight"
        raise CollectError(
            f"{origin}: got {rows + padding} rows, {why}, and returned {found}; expected a row for each. Return one "
            "row per row, or register the method with uneven='split' and without balance",
            {},
        )
    return rows


def without_padding(value: Any, rows: int | None) -> Any:
    """Return a batch of the first rows; what is no batch, or has no more, as it is."""
    found = batch_type_of(value)
    return value if found is None or rows is None or found.length(value) == rows else found.rows(value, 0, rows)


def _payload(handle: Kept | Stored, headers: Mapping[Any, ResultHeader]) -> Ref | None:
    handle.check()
    if isinstance(handle, Stored):
        return handle.reference
    return handle.payload if headers[handle].inside is None else None


def _opened(handle: Kept | Stored, headers: Mapping[Any, ResultHeader], value: Any) -> Any:
    if isinstance(handle, Stored):
        return opened([value], readonly=False)[0]
    header = headers[handle]
    return without_padding(opened_result(header, value), handle.rows_of(header))


def _check_cluster(what: str, cluster: str) -> None:
    require_cluster("opening rows that are elsewhere")
    if cluster != cluster_id():
        raise GroupUsageError(
            f"{what} is in another cluster ({cluster}); this process is connected to {cluster_id()}. Bring the rows "
            "with get() there, and pass the batch"
        )
