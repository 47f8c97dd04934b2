"""Rows that go from the ranks of one call to the ranks of another, by reference: the driver never holds them.

What a batch's own library says about rows that are elsewhere is a list of handles and an assembly, a function that
makes the rows of their values anywhere. The references travel as arguments of their own, so that Ray brings what they
stand for to the rank's node before the method starts, and counts them until it is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.ray.parcels import opened, trusted
from fanfold.ray.results import opened_result
from fanfold.ray.store import Kept, Stored, unpadded_rows, without_padding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanfold.ray.refs import Ref
    from fanfold.worker import Deadline


_NAMED = 4  # as many origins as fit into an error


class Passed(NamedTuple):
    """An argument whose rows are elsewhere, as the driver places it.

    Attributes:
        assembly: Makes the rows of the values behind the handles; it can be pickled.
        handles: What has to be fetched for it, each once.
    """

    assembly: Callable[[Sequence[Any]], Any]
    handles: Sequence[Kept | Stored]

    @property
    def calls(self) -> list[Any]:
        """The calls of this process that produce the rows, each once."""
        made = [handle.call for handle in self.handles if isinstance(handle, Kept) and handle.call is not None]
        return list({id(call): call for call in made}.values())


class Source(NamedTuple):
    """Where a rank finds a value among the parts that came with a call.

    Attributes:
        header: Position of the header of a result; None where the payload alone is enough.
        payload: Position of what holds the rows; None where the header holds them.
        origin: Where it comes from, for messages.
        rows: How many rows are wanted; None for all.
        padding: How many rows at its end are padding.
    """

    header: int | None
    payload: int | None
    origin: str
    rows: int | None
    padding: int


class Assembled(NamedTuple):
    """An argument whose rows came as parts, as it is sent to a rank."""

    assembly: Callable[[Sequence[Any]], Any]
    sources: Sequence[Source]

    def open(self, parts: Sequence[Any], *, readonly: bool) -> Any:
        """Return the argument as the method sees it."""
        try:
            made = self.assembly([_value(source, parts, readonly=readonly) for source in self.sources])
        except Exception as error:
            named = [source.origin for source in self.sources[:_NAMED]]
            more = f" and {len(self.sources) - _NAMED} more" if len(self.sources) > _NAMED else ""
            error.add_note(f"the rows were to be made of {', '.join(named)}{more}")
            raise
        return trusted(made) if readonly else made


class Parts:
    """The references that travel with one request, each once."""

    def __init__(self) -> None:
        self.references: list[Ref] = []
        self._places: dict[Ref, int] = {}

    def taken(self, value: Any) -> Any:
        """Return what to send of a placed argument, and take its references in."""
        if not isinstance(value, Passed):
            return value
        return Assembled(value.assembly, [self._source(handle) for handle in value.handles])

    def _source(self, handle: Kept | Stored) -> Source:
        handle.check()
        if isinstance(handle, Stored):
            assert handle.reference is not None  # checked
            return Source(None, self._place(handle.reference), handle.origin, None, 0)
        header = handle.call.known_header(handle.position) if handle.call is not None else None
        inside = header is not None and header.inside is not None
        known = header is not None and not inside
        return Source(
            None if known and not handle.padding else self._place(handle.head),
            None if inside else self._place(handle.payload),
            handle.origin,
            handle.rows,
            handle.padding,
        )

    def _place(self, reference: Ref) -> int:
        if reference not in self._places:
            self._places[reference] = len(self.references)
            self.references.append(reference)
        return self._places[reference]


def passed_on(value: Any, deadline: Deadline) -> Passed | None:
    """Return what to place of a value whose rows are kept on this cluster; None if they are elsewhere."""
    handles, assembly = value.deferred(deadline.left())
    if not handles or not all(isinstance(handle, (Kept, Stored)) for handle in handles):
        return None
    return Passed(assembly, handles)


def _value(source: Source, parts: Sequence[Any], *, readonly: bool) -> Any:
    if source.header is None:
        assert source.payload is not None  # one of both is there
        return without_padding(opened([parts[source.payload]], readonly=readonly)[0], source.rows)
    header = parts[source.header]
    payload = None if source.payload is None else parts[source.payload]
    rows = unpadded_rows(source.origin, header.rows, source.rows, source.padding)
    return without_padding(opened_result(header, payload, readonly=readonly), rows)
