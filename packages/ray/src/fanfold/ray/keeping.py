"""A call whose results stay with the ranks: it knows their headers, and brings their rows only when it is asked to."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from fanfold.ray.cluster import cluster_id
from fanfold.ray.results import ResultHeader, opened_result
from fanfold.ray.store import Kept, RayStore, values_of
from fanfold.worker import Call, Deadline, Success

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fanfold.ray.refs import Ref


_AT_LEAST = 1.0  # seconds for bringing rows that are there, however little of the call's own time is left


class Returned(NamedTuple):
    """The references that a call with a kept result gives for a rank.

    Attributes:
        header: Of what is known of the result.
        payload: Of the result; where some columns are apart, of its row count and metadata.
        rest: Then, of its other columns.
        columns: And of those columns, by name.
    """

    header: Ref
    payload: Ref
    rest: Ref | None = None
    columns: Mapping[str, Ref] = MappingProxyType({})

    @classmethod
    def of(cls, submitted: Sequence[Ref], apart: Sequence[str]) -> Returned:
        """Tell apart what a call for `returns_of(apart)` values gave."""
        header, payload, *others = submitted
        return (
            cls(header, payload, others[0], dict(zip(apart, others[1:], strict=True)))
            if apart
            else cls(header, payload)
        )


class KeptCall(Call):
    """A call over the headers of its results."""

    def __init__(self, *, handles: Iterable[Any], **others: Any) -> None:
        returned = list(handles)
        super().__init__(
            handles=[handle.header if isinstance(handle, Returned) else handle for handle in returned], **others
        )
        # Held by the handles from `promised` on, so that rows nobody can ask for any more go, whoever knows the call.
        self._payloads = {position: handle for position, handle in enumerate(returned) if isinstance(handle, Returned)}
        self._handles: WeakValueDictionary[int, Kept] = WeakValueDictionary()

    def promised(self) -> tuple[RayStore, Sequence[tuple[Any, ...]], KeptCall]:
        """Return the store, the results in collect order, and the call itself.

        Each result is header and payload; where some columns are apart, these by name and the rest besides.
        """
        position_of = {member.rank: position for position, member in enumerate(self._members)}
        kept = [self._parts(position_of[rank]) for rank in self._plan.collected]
        self._handles.update({parts[0].position: parts[0] for parts in kept})
        self._payloads = {}
        return RayStore(), kept, self

    def _parts(self, position: int) -> tuple[Any, ...]:
        returned = self._payloads[position]
        if returned.rest is None:
            handle = self._kept(position, returned.payload)
            return handle, handle
        columns = {name: self._kept(position, reference) for name, reference in returned.columns.items()}
        beside = columns, self._kept(position, returned.rest)
        handle = self._kept(position, returned.payload, beside)
        return handle, handle, *beside

    def _kept(self, position: int, payload: Ref, beside: tuple[Any, ...] = ()) -> Kept:
        member, padding = self._members[position], self._plan.padding(self._members[position].rank)
        return Kept(
            head=self[position],
            payload=payload,
            origin=f"the result of {self.label} from rank {member.rank} ({member.name}, node {member.node})",
            cluster=cluster_id(),
            rows=self._plan.rows(member.rank) if padding or self._is_reordered else None,
            padding=padding,
            call=self,
            position=position,
            beside=beside,
        )

    @property
    def _is_reordered(self) -> bool:
        return self._plan.division is not None and self._plan.division.order is not None

    def header(self, position: int, timeout: float | None) -> ResultHeader:
        """Wait for the header of one result.

        Raises:
            GroupCallError: A rank failed.
            WaitTimeoutError: It did not come in time.
            CallCancelledError: The call was cancelled.
        """
        deadline = self._sooner(timeout)
        self._take_finished(0.0)
        while not self._is_known(position) and (patience := self._patience(deadline)) is not None:
            self._take_finished(patience)
        if not self._is_known(position):
            self._settle(deadline)  # raises: there is no result
        header: ResultHeader = self._success(position).value
        return header

    def known_header(self, position: int) -> ResultHeader | None:
        """Return the header of one result if it is here; never waits."""
        self._take_finished(0.0)
        return self._success(position).value if self._is_known(position) else None

    def _is_known(self, position: int) -> bool:
        failed = bool(self._failed_after) or self._cancelled
        return not failed and isinstance(self._outcomes.get(position), Success)

    def _success(self, position: int) -> Success:
        outcome = self._outcomes[position]
        assert isinstance(outcome, Success)  # asked before
        return outcome

    def _brought(self, deadline: Deadline) -> dict[int, Any]:
        handles = dict(self._handles)
        headers: dict[int, ResultHeader] = {position: self._success(position).value for position in handles}
        limit = Deadline(max(deadline.left(), _AT_LEAST), deadline.what)
        pieces = {position: handles[position] for position, header in headers.items() if header.in_pieces}
        wanted = [position for position, header in headers.items() if header.inside is None and position not in pieces]
        arrived = dict(zip(wanted, values_of([handles[p].payload for p in wanted], limit), strict=True))
        whole = {
            position: opened_result(header, arrived.get(position))
            for position, header in headers.items()
            if position not in pieces
        }
        whole |= {position: self._put_together(handle, limit) for position, handle in pieces.items()}
        return {self._members[position].rank: value for position, value in sorted(whole.items())}

    def _put_together(self, handle: Kept, limit: Deadline) -> Any:
        # With its padding: whoever collects the results of all ranks takes that away.
        found, whole = self.plan.batch_type, replace(handle, rows=None, padding=0, beside=())
        assert found  # a result stays only where a batch is divided, and is of that kind
        assert found.lazy
        columns, rest = handle.beside
        bare = [replace(piece, rows=None, padding=0) for piece in (rest, *columns.values())]
        parts = (whole, whole, dict(zip(columns, bare[1:], strict=True)), bare[0])
        return found.lazy(RayStore(), [parts]).get(limit.left())
