"""Whether a pool fits a cluster, and on which nodes: pure arithmetic.

A *need* is what all processes of one entry of a pool ask of the one node they share; N nodes, P entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fanfold.ray.addresses import address_sort_key

Resources: TypeAlias = Mapping[str, float]

_ROUNDING = 1e-6  # of sums of ten-thousandths, which is how Ray counts


@dataclass(frozen=True)
class NodeState:
    """What one node has, what of that is free, and who holds the rest.

    Attributes:
        node_id: Ray's own id of the node.
        address: Where it is.
        total: By resource, what the node has.
        free: By resource, what nobody holds.
        held: By placement group, what it holds.
    """

    node_id: str
    address: str
    total: Resources
    free: Resources
    held: Mapping[str, Resources] = field(default_factory=dict)


def need_of(bundle: Resources, processes: int) -> dict[str, float]:
    """Return what that many equal bundles ask of one node."""
    return {name: amount * processes for name, amount in bundle.items()}


def in_address_order(nodes: Sequence[NodeState]) -> list[NodeState]:
    """Return nodes by numeric address; several on one address by their id."""
    return sorted(nodes, key=lambda node: (address_sort_key(node.address), node.node_id))


def separate_nodes(
    needs: Sequence[Resources], nodes: Sequence[NodeState], *, avoid: str = ""
) -> list[NodeState] | None:
    """Find a node of its own for each need among what is free, by address as far as possible.

    Args:
        needs: P needs.
        nodes: N nodes.
        avoid: A resource whose owners are taken last, since the needs do not ask for it.

    Returns:
        P nodes, or None where some would have to share.
    """
    candidates = _candidates(nodes, avoid)
    chosen: dict[int, int] = {}  # position of the candidate -> position of the need
    for position in range(len(needs)):
        if not _match(position, needs, candidates, chosen, set()):
            return None
    by_need = {need: node for node, need in chosen.items()}
    return _ascending(needs, [candidates[by_need[position]] for position in range(len(needs))])


def shared_nodes(needs: Sequence[Resources], nodes: Sequence[NodeState], *, avoid: str = "") -> list[NodeState | None]:
    """Share free nodes out evenly where there are fewer than needs: each need goes where the fewest are already.

    Args:
        needs: P needs.
        nodes: N nodes.
        avoid: A resource whose owners are taken last, since the needs do not ask for it.

    Returns:
        P nodes, nodes of equal needs by address; None for a need that has to wait for room.
    """
    room = [_Room(node, dict(node.free)) for node in _candidates(nodes, avoid)]
    found: list[NodeState | None] = [None] * len(needs)
    for position in sorted(range(len(needs)), key=lambda place: sorted(needs[place].values()), reverse=True):
        fitting = [left for left in room if fits(needs[position], left.free)]
        if fitting:
            found[position] = min(fitting, key=lambda left: left.entries).take(needs[position])
    return found if None in found else [*_ascending(needs, [node for node in found if node is not None])]


@dataclass
class _Room:
    node: NodeState
    free: dict[str, float]
    entries: int = 0

    def take(self, need: Resources) -> NodeState:
        self.entries += 1
        for name, amount in need.items():
            self.free[name] = self.free.get(name, 0.0) - amount
        return self.node


def _candidates(nodes: Sequence[NodeState], avoid: str) -> list[NodeState]:
    return sorted(in_address_order(nodes), key=lambda node: bool(avoid) and node.total.get(avoid, 0) > 0)


def _match(
    need: int, needs: Sequence[Resources], nodes: Sequence[NodeState], chosen: dict[int, int], tried: set[int]
) -> bool:
    # Augmenting paths (Kuhn): whoever sits on a node moves on if there is another node for it.
    for position, node in enumerate(nodes):
        if position in tried or not fits(needs[need], node.free):
            continue
        tried.add(position)
        if position not in chosen or _match(chosen[position], needs, nodes, chosen, tried):
            chosen[position] = need
            return True
    return False


def _ascending(needs: Sequence[Resources], found: Sequence[NodeState]) -> list[NodeState]:
    ordered = list(found)
    for need in {tuple(sorted(need.items())) for need in needs}:
        places = [i for i, other in enumerate(needs) if tuple(sorted(other.items())) == need]
        for place, node in zip(places, in_address_order([found[i] for i in places]), strict=True):
            ordered[place] = node
    return ordered


def fits(need: Resources, room: Resources) -> bool:
    """Say whether a node with that much room can take a need."""
    return all(amount <= room.get(name, 0.0) + _ROUNDING for name, amount in need.items())


def is_hopeless(needs: Sequence[Resources], nodes: Sequence[NodeState]) -> bool:
    """Say whether the needs could not be placed even if everything were free.

    Never says so of what can be placed; for needs that differ it may not notice that they cannot.
    """
    if any(all(not fits(need, node.total) for node in nodes) for need in needs):
        return True
    if _short_in_sum(needs, nodes):
        return True
    equal = all(need == needs[0] for need in needs)
    return equal and not can_share(needs, nodes, lambda node: node.total)


def _short_in_sum(needs: Sequence[Resources], nodes: Sequence[NodeState]) -> bool:
    asked = {name: sum(need.get(name, 0.0) for need in needs) for need in needs for name in need}
    return any(amount > sum(node.total.get(name, 0.0) for node in nodes) + _ROUNDING for name, amount in asked.items())


def can_share(
    needs: Sequence[Resources], nodes: Sequence[NodeState], room_of: Callable[[NodeState], Resources]
) -> bool:
    """Say whether putting each need on the first node with room places them all; exact where the needs are equal."""
    room = [_Room(node, dict(room_of(node))) for node in in_address_order(nodes)]
    for need in sorted(needs, key=lambda need: sorted(need.values()), reverse=True):
        fitting = next((left for left in room if fits(need, left.free)), None)
        if fitting is None:
            return False
        fitting.take(need)
    return True


def shortage_table(needs: Sequence[Resources], nodes: Sequence[NodeState]) -> str:
    """Write what was asked beside what each node has, has free, and who holds the rest."""
    names = sorted({name for need in needs for name in need})
    rows = [("node", "resource", "asked per entry", "present", "free", "held by")]
    for node in in_address_order(nodes):
        rows += [_row(node, name, needs) for name in names]
    if not nodes:
        rows.append(("(no node is alive)", *("",) * 5))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(node: NodeState, name: str, needs: Sequence[Resources]) -> tuple[str, str, str, str, str, str]:
    asked = ", ".join(f"{need.get(name, 0.0):g}" for need in needs)
    total, free = node.total.get(name, 0.0), node.free.get(name, 0.0)
    return node.address, name, asked, f"{total:g}", f"{free:g}", _holders(node, name, total - free)


def _holders(node: NodeState, name: str, taken: float) -> str:
    known = {holder: amounts[name] for holder, amounts in node.held.items() if amounts.get(name, 0.0) > 0}
    other = taken - sum(known.values())
    parts = [f"{holder} ({amount:g})" for holder, amount in sorted(known.items())]
    parts += [f"tasks and actors outside of placement groups ({other:g})"] if other > _ROUNDING else []
    return ", ".join(parts)
