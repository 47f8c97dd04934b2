from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fanfold.dispatch import FanfoldError, Mesh, MeshError
from hypothesis import given
from hypothesis import strategies as st


def test_a_table_names_every_place() -> None:
    mesh = Mesh.from_table("train", [[0, 2], [1, 3]], ("dp", "tp"))
    assert mesh.ranks == (0, 1, 2, 3)
    assert mesh.place() == {0: 0, 1: 1, 2: 0, 3: 1}
    assert mesh.place("tp") == {0: 0, 1: 0, 2: 1, 3: 1}
    assert mesh.where(3) == {"dp": 1, "tp": 1}
    assert (mesh.size(), mesh.size("tp")) == (2, 2)
    assert mesh.collectors() == (0, 1)


def test_sizes_follow_megatrons_order() -> None:
    mesh = Mesh.from_sizes("train", {"tp": 2, "dp": 2, "pp": 2})
    # Neighbouring ranks are tensor-parallel neighbours, the pipeline comes last.
    assert mesh.axes == ("pp", "dp", "tp")
    assert [mesh.where(rank) for rank in (0, 1, 2, 4, 7)] == [
        {"pp": 0, "dp": 0, "tp": 0},
        {"pp": 0, "dp": 0, "tp": 1},
        {"pp": 0, "dp": 1, "tp": 0},
        {"pp": 1, "dp": 0, "tp": 0},
        {"pp": 1, "dp": 1, "tp": 1},
    ]
    assert mesh.collectors() == (0, 2)
    assert Mesh.from_sizes("train", {"tp": 2, "dp": 2, "pp": 2}, collect={"pp": -1}).collectors() == (4, 6)


def test_another_order_of_axes() -> None:
    mesh = Mesh.from_sizes("m", {"dp": 2, "tp": 3}, order="dp-tp")
    assert mesh.place() == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}


def test_dp_ranks_keep_data_parallel_order_whatever_the_rank_numbers() -> None:
    mesh = Mesh.from_dp_ranks("train", [1, 1, 0, 0], [False, True, True, False])
    assert mesh.collectors() == (2, 1)
    assert mesh.place() == {0: 1, 1: 1, 2: 0, 3: 0}
    assert mesh.where(0) == {"dp": 1, "replica": 1}


def test_dp_ranks_may_have_different_numbers_of_replicas() -> None:
    mesh = Mesh.from_dp_ranks("train", [0, 0, 0, 1], [False, False, True, True])
    assert mesh.collectors() == (2, 3)


def test_a_device_mesh_is_known_by_its_shape() -> None:
    device_mesh = SimpleNamespace(mesh=np.arange(4).reshape(2, 2), mesh_dim_names=("dp", "tp"))
    assert Mesh.from_device_mesh("m", device_mesh) == Mesh.from_table("m", [[0, 1], [2, 3]], ("dp", "tp"))
    with pytest.raises(
        MeshError, match=r"mesh 'm': got SimpleNamespace, expected a device mesh.*mesh_dim_names=\(\.\.\.\)"
    ):
        Mesh.from_device_mesh("m", SimpleNamespace(mesh=np.arange(4), mesh_dim_names=None))


def test_along_another_axis() -> None:
    mesh = Mesh.from_sizes("m", {"tp": 2, "dp": 3})
    other = mesh.along("tp", {"dp": -1})
    assert other.size() == 2
    assert other.collectors() == (4, 5)
    assert mesh.along("dp") is mesh
    with pytest.raises(MeshError, match=r"mesh 'm': got collect place 3 on axis 'dp', which has 3"):
        mesh.along("tp", {"dp": 3})


def test_selecting_ranks() -> None:
    mesh = Mesh.from_sizes("m", {"tp": 2, "dp": 2, "pp": 2})
    assert mesh.select(dp=0) == (0, 1, 4, 5)
    assert mesh.select(dp=0, pp=[1]) == (4, 5)
    assert mesh.select(lambda at: at["tp"] == at["dp"]) == (0, 3, 4, 7)
    assert mesh.select(lambda at: at["tp"] == 1, pp=0) == (1, 3)
    with pytest.raises(MeshError, match="mesh 'm' has no axis 'ep'; its axes are pp, dp, tp"):
        mesh.select(ep=0)


def test_a_slice_numbers_its_places_anew() -> None:
    mesh = Mesh.from_sizes("m", {"tp": 2, "dp": 3})
    part = mesh.restrict([5, 2, 3])
    assert part.ranks == (2, 3, 5)
    assert part.place() == {2: 0, 3: 0, 5: 1}
    assert part.collectors() == (2, 5)  # rank 4 would collect for the last place; its neighbour stands in
    assert mesh.restrict(range(6)) is mesh
    assert part.renumbered().ranks == (0, 1, 2)


@given(tp=st.integers(1, 3), dp=st.integers(1, 4), pp=st.integers(1, 3), data=st.data())
def test_any_slice_has_one_collector_for_each_of_its_places(tp: int, dp: int, pp: int, data: st.DataObject) -> None:
    mesh = Mesh.from_sizes("m", {"tp": tp, "dp": dp, "pp": pp}, collect={"pp": -1})
    ranks = data.draw(st.sets(st.sampled_from(mesh.ranks), min_size=1))
    part = mesh.restrict(sorted(ranks))
    assert set(part.ranks) == ranks
    collectors = part.collectors()
    assert [part.where(rank)["dp"] for rank in collectors] == list(range(part.size()))
    # The order of places is kept: who was before is still before.
    assert [mesh.where(rank)["dp"] for rank in collectors] == sorted({mesh.where(rank)["dp"] for rank in ranks})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Mesh.from_table("m", [[0, 1], [1, 2]], ("dp", "tp")), "ranks 1 sit in two places"),
        (lambda: Mesh.from_table("m", [[0, 1]], ("dp",)), r"got \[0, 1\] at \(0,\), expected a rank"),
        (lambda: Mesh.from_table("m", [0, 1], ("dp", "tp")), r"got 0 at \(0,\), expected a list"),
        (lambda: Mesh.from_table("m", [[0], [1]], ("dp", "dp")), "got axes dp, dp, expected each name once"),
        (lambda: Mesh.from_table("m", [0, 1], ("tp",)), "mesh 'm' has no axis 'dp'; its axes are tp"),
        (lambda: Mesh.from_table("m", [], ("dp",)), "mesh 'm' has no ranks"),
        (lambda: Mesh.from_sizes("m", {"dp": 2, "xx": 2}), "got axes dp, xx and order="),
        (lambda: Mesh.from_sizes("m", {"dp": 2}, order="dp-tp-dp"), "expected each axis once in it"),
        (lambda: Mesh.from_sizes("m", {"dp": 0}), "got size 0 for axis 'dp', expected at least 1"),
        (lambda: Mesh.from_dp_ranks("m", [0, 2], [True, True]), "places 0, 2 of axis 'dp' are taken and 1 are not"),
        (lambda: Mesh.from_dp_ranks("m", [-1, 0], [True, True]), "number the places from 0 without gaps"),
        (lambda: Mesh.from_dp_ranks("m", [0, 0], [True, True]), "ranks 0, 1 are .* rows would come back twice"),
        (lambda: Mesh.from_dp_ranks("m", [0, 1], [True, False]), "no rank is to be collected for data-parallel rank 1"),
        (lambda: Mesh.from_dp_ranks("m", [0, 1], [True]), "got 2 data-parallel ranks and 1 collect flags"),
        (lambda: Mesh("m", ("dp",), (0, 1), ((0,), (0,))), "ranks 0 and 1 both sit at dp=0"),
        (lambda: Mesh("m", ("dp",), (1, 0), ((0,), (1,))), "ranks 1, 0 are not in ascending order"),
        (lambda: Mesh("m", ("dp",), (0, 1), ((0,),)), r"one coordinate per axis \(dp\) for each of 2 ranks"),
    ],
)
def test_tables_that_contradict_themselves_are_refused(build: Any, message: str) -> None:
    with pytest.raises(MeshError, match=message) as caught:
        build()
    assert isinstance(caught.value, FanfoldError)
    assert isinstance(caught.value, ValueError)


def test_a_mesh_must_cover_the_group() -> None:
    mesh = Mesh.from_dp_ranks("train", [0, 1], [True, True])
    mesh.check_covers(2)
    with pytest.raises(MeshError, match=r"'train' does not cover the group of 4 ranks: ranks 2, 3 have no place in it"):
        mesh.check_covers(4)
    with pytest.raises(MeshError, match="it names ranks 1, which the group does not have"):
        mesh.check_covers(1)
    with pytest.raises(MeshError, match=r"rank 7 is not in it; it has ranks 0, 1"):
        mesh.where(7)


def test_long_lists_of_ranks_are_cut_short() -> None:
    with pytest.raises(MeshError, match=r"ranks 1, 2, 3, 4, 5, 6, 7, 8, \.\.\. \(99 in all\) have no place"):
        Mesh.of_world([0]).check_covers(100)


def test_a_mesh_is_a_value() -> None:
    mesh = Mesh.from_sizes("m", {"tp": 2, "dp": 2})
    assert mesh == Mesh.from_sizes("m", {"tp": 2, "dp": 2})
    assert hash(mesh) == hash(Mesh.from_sizes("m", {"tp": 2, "dp": 2}))
    mesh.collectors()
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    with pytest.raises(FrozenInstanceError):
        mesh.name = "n"  # type: ignore[misc]
