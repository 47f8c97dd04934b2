"""A call whose results stay with the ranks: it knows their headers, and brings their rows only when it is asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from fanfold.ray.cluster import cluster_id
from fanfold.ray.results import ResultHeader, opened_result
from fanfold.ray.store import Kept, RayStore, values_of
from fanfold.worker import Call, Deadline, Success

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanfold.ray.refs import Ref


_AT_LEAST = 1.0  # seconds for bringing rows that are there, however little of the call's own time is left


class Returned(NamedTuple):
    """The two references that a call with a kept result gives for a rank."""

    header: Ref
    payload: Ref


class KeptCall(Call):
    """A call over the headers of its results."""

    def __init__(self, *, handles: Iterable[Any], **others: Any) -> None:
        returned = list(handles)
        super().__init__(
            handles=[handle.header if isinstance(handle, Returned) else handle for handle in returned], **others
        )
        # Held by the handles from `promised` on, so that rows nobody can ask for any more go, whoever knows the call.
        self._payloads = {
            position: handle.payload for position, handle in enumerate(returned) if isinstance(handle, Returned)
        }
        self._handles: WeakValueDictionary[int, Kept] = WeakValueDictionary()

    def promised(self) -> tuple[RayStore, Sequence[tuple[Kept, Kept]], KeptCall]:
        """Return the store, the results in collect order, each as header and payload, and the call itself."""
        position_of = {member.rank: position for position, member in enumerate(self._members)}
        kept = [self._kept(position_of[rank]) for rank in self._plan.collected]
        self._handles.update({handle.position: handle for handle in kept})
        self._payloads = {}
        return RayStore(), [(handle, handle) for handle in kept], self

    def _kept(self, position: int) -> Kept:
        member, padding = self._members[position], self._plan.padding(self._members[position].rank)
        return Kept(
            head=self[position],
            payload=self._payloads[position],
            origin=f"the result of {self.label} from rank {member.rank} ({member.name}, node {member.node})",
            cluster=cluster_id(),
            rows=self._plan.rows(member.rank) if padding else None,
            padding=padding,
            call=self,
            position=position,
        )

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
        wanted = [position for position, header in headers.items() if header.inside is None]
        limit = Deadline(max(deadline.left(), _AT_LEAST), deadline.what)
        arrived = dict(zip(wanted, values_of([handles[p].payload for p in wanted], limit), strict=True))
        return {
            self._members[position].rank: opened_result(header, arrived.get(position))
            for position, header in headers.items()
        }
