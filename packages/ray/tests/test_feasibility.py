from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from fanfold.ray.feasibility import (
    NodeState,
    can_share,
    fits,
    in_address_order,
    is_hopeless,
    need_of,
    separate_nodes,
    shared_nodes,
    shortage_table,
)
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESOURCES = st.fixed_dictionaries({"CPU": st.integers(0, 5).map(float), "GPU": st.integers(0, 2).map(float)})


@st.composite
def nodes(draw: st.DrawFn, most: int = 4) -> list[NodeState]:
    rooms = draw(st.lists(RESOURCES, max_size=most))
    return [node(f"10.0.0.{10 - i}", room) for i, room in enumerate(rooms)]


def node(address: str, room: Mapping[str, float], total: Mapping[str, float] | None = None) -> NodeState:
    return NodeState(node_id=f"id-{address}", address=address, total=total or room, free=room)


def placeable(needs: Sequence[Mapping[str, float]], places: Sequence[NodeState], apart: bool) -> bool:
    """By trying everything."""
    for chosen in itertools.product(range(len(places)), repeat=len(needs)):
        if apart and len(set(chosen)) < len(chosen):
            continue
        asked = [[need for need, where in zip(needs, chosen, strict=True) if where == i] for i in range(len(places))]
        totals = [{name: sum(need[name] for need in part) for name in ("CPU", "GPU")} for part in asked]
        if all(fits(total, place.free) for total, place in zip(totals, places, strict=True)):
            return True
    return not needs


def test_need_is_for_all_processes_of_an_entry() -> None:
    assert need_of({"CPU": 0.5, "GPU": 1.0}, 4) == {"CPU": 2.0, "GPU": 4.0}


@given(st.lists(RESOURCES, max_size=3), nodes())
def test_separate_nodes_are_found_whenever_there_are_any(
    needs: list[dict[str, float]], places: list[NodeState]
) -> None:
    found = separate_nodes(needs, places)
    assert (found is not None) == placeable(needs, places, apart=True)
    if found is not None:
        assert len({place.node_id for place in found}) == len(needs)
        assert all(fits(need, place.free) for need, place in zip(needs, found, strict=True))


@given(st.integers(1, 3), RESOURCES, nodes())
def test_equal_entries_are_in_the_order_of_addresses(
    count: int, need: dict[str, float], places: list[NodeState]
) -> None:
    found = separate_nodes([need] * count, places)
    if found is not None:
        assert found == in_address_order(found)


def test_uneven_entries_keep_their_places() -> None:
    small, big = node("10.0.0.1", {"CPU": 2.0}), node("10.0.0.9", {"CPU": 4.0})
    assert separate_nodes([{"CPU": 4.0}, {"CPU": 2.0}], [small, big]) == [big, small]


@given(st.lists(RESOURCES, min_size=1, max_size=4), nodes())
def test_shared_nodes_hold_what_they_are_given(needs: list[dict[str, float]], places: list[NodeState]) -> None:
    found = shared_nodes(needs, places)
    assert len(found) == len(needs)
    for place in places:
        here = [need for need, node in zip(needs, found, strict=True) if node is place]
        assert fits({name: sum(need.get(name, 0.0) for need in here) for need in here for name in need}, place.free)


@given(st.integers(1, 9), st.integers(1, 4))
def test_equal_nodes_have_equal_numbers_of_equal_entries(count: int, places: int) -> None:
    found = shared_nodes([{"CPU": 1.0}] * count, [node(f"10.0.0.{i}", {"CPU": 9.0}) for i in range(places)])
    addresses = [place.address for place in found if place]
    each = Counter(addresses).values()
    assert len(addresses) == count
    assert addresses == sorted(addresses)
    assert max(each) - min([*each, *[0] * (places - len(each))]) <= 1


def test_what_has_no_room_yet_is_left_to_wait() -> None:
    here = node("10.0.0.1", {"CPU": 3.0})
    assert shared_nodes([{"CPU": 2.0}, {"CPU": 4.0}, {"CPU": 1.0}], [here]) == [here, None, here]


def test_nodes_with_accelerators_nobody_asked_for_come_last() -> None:
    with_gpu, without = node("10.0.0.1", {"CPU": 4.0, "GPU": 1.0}), node("10.0.0.9", {"CPU": 4.0})
    assert separate_nodes([{"CPU": 1.0}], [with_gpu, without], avoid="GPU") == [without]
    assert separate_nodes([{"CPU": 1.0}] * 2, [with_gpu, without], avoid="GPU") == [with_gpu, without]


@given(st.lists(RESOURCES, min_size=1, max_size=3), nodes())
def test_what_can_be_placed_is_never_hopeless(needs: list[dict[str, float]], places: list[NodeState]) -> None:
    if placeable(needs, places, apart=False):
        assert not is_hopeless(needs, places)


@given(st.integers(1, 4), RESOURCES, nodes())
def test_equal_entries_are_judged_exactly(count: int, need: dict[str, float], places: list[NodeState]) -> None:
    needs = [need] * count
    assert is_hopeless(needs, places) == (not placeable(needs, places, apart=False))
    assert can_share(needs, places, lambda place: place.free) == placeable(needs, places, apart=False)


def test_hopeless_by_what_is_there_not_by_what_is_free() -> None:
    busy = node("10.0.0.1", {"CPU": 0.0}, total={"CPU": 4.0})
    assert not is_hopeless([{"CPU": 4.0}], [busy])
    assert is_hopeless([{"CPU": 5.0}], [busy])
    assert is_hopeless([{"CPU": 1.0}], [])


def test_table_names_asked_present_free_and_holder() -> None:
    here = NodeState("id", "10.0.0.1", {"CPU": 8.0}, {"CPU": 1.0}, held={"trainer.pool:0": {"CPU": 4.0}})
    assert shortage_table([{"CPU": 2.0}, {"CPU": 3.0}], [here]).splitlines() == [
        "  node      resource  asked per entry  present  free  held by",
        (
            "  10.0.0.1  CPU       2, 3             8        1     trainer.pool:0 (4), tasks and actors outside of "
            "placement groups (3)"
        ),
    ]
    assert "no node is alive" in shortage_table([{"CPU": 2.0}], [])
