"""Every mistake in the use of groups is a typed error at the earliest moment, which names what was got."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from fanfold.dispatch import Dispatch, FanfoldError, PerRank, Rows, register
from fanfold.worker import (
    ClassWithInitArgs,
    GroupUsageError,
    InlineBackend,
    MeshError,
    MethodNameClashError,
    PoolError,
    RankEnvironmentError,
    RankInfo,
    RecipeError,
    ResourcePool,
    UnknownMethodError,
    UnknownOptionError,
    Worker,
    WorkerGroup,
    create_colocated_worker_cls,
    gather,
    wait,
)
from fanfold.worker.testing import Fault, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Meshed(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def say(self, mesh: Any, dp_rank: Any, collect: Any = True) -> None:
        self.register_mesh_rank(mesh, dp_rank, collect=collect)


class Counted(Worker):
    built = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.built += 1


@pytest.fixture(name="group")
def _group() -> Iterator[WorkerGroup[Any]]:
    with WorkerGroup([3], Probe) as group:
        yield group


STARTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "misspelt option": (lambda: start(naem_prefix="x"), UnknownOptionError, "did you mean 'name_prefix'"),
    "no pool": (lambda: WorkerGroup(None, Counted), PoolError, "got None"),  # type: ignore[call-overload]
    "text as pool": (lambda: WorkerGroup("22", Counted), PoolError, "got '22'"),  # type: ignore[arg-type]
    "empty node": (lambda: WorkerGroup([1, 0], Counted), PoolError, r"process_on_nodes\[1\] .* got 0"),
    "no class": (lambda: WorkerGroup([1], lambda: 1), RecipeError, "made from a class"),  # type: ignore[call-overload]
    "constructor": (lambda: ClassWithInitArgs(Counted, 1), RecipeError, r"Counted\(\) cannot be built like that"),
    "constructor of each rank": (
        lambda: WorkerGroup([2], ClassWithInitArgs(Probe, PerRank([1]))),
        GroupUsageError,
        "has 1 items; the group has 2 ranks",
    ),
    "start_timeout": (lambda: start(start_timeout=0), GroupUsageError, "start_timeout .* got 0"),
    "start_timeout without end": (lambda: start(start_timeout=float("inf")), GroupUsageError, "every wait has a limit"),
    "call_timeout": (lambda: start(call_timeout="9"), GroupUsageError, "call_timeout .* got '9'"),
    "no call_timeout": (lambda: start(call_timeout=None), GroupUsageError, "call_timeout .* got None"),
    "call_timeout that is no number": (lambda: start(call_timeout=float("nan")), GroupUsageError, "got nan"),
    "warn_after": (lambda: start(warn_after=0), GroupUsageError, r"warn_after \(or None\) .* got 0"),
    "name_prefix": (lambda: start(name_prefix=3), GroupUsageError, "name_prefix .* got 3"),
    "backend's name": (lambda: start(backend="inlien"), GroupUsageError, "no backend 'inlien'"),
    "backend's class": (lambda: start(backend=InlineBackend), GroupUsageError, r"give an instance: InlineBackend\(\)"),
    "no backend": (lambda: start(backend=3), GroupUsageError, "backend=3 .* has no start, place, call, wait, fetch"),
    "worker_env of the contract": (lambda: start(worker_env={"RANK": "1"}), RankEnvironmentError, "sets RANK"),
    "worker_env's value": (lambda: start(worker_env={"A": 1}), RankEnvironmentError, "got A=1"),
    "worker_env's null": (lambda: start(worker_env={"A": "x\0"}), RankEnvironmentError, "without a null"),
    "worker_env's name": (lambda: start(worker_env={"A=B": "1"}), RankEnvironmentError, "'A=B'"),
    "worker_env's empty name": (lambda: start(worker_env={"": "1"}), RankEnvironmentError, "no variable can have: ''"),
    "worker_env no mapping": (lambda: start(worker_env=["A"]), RankEnvironmentError, r"got \['A'\]"),
}


def start(**options: Any) -> Any:
    return WorkerGroup([1], Counted, **options)


@pytest.mark.parametrize("mistake", STARTS)
def test_before_anything_is_started(mistake: str) -> None:
    make, error, message = STARTS[mistake]
    built = Counted.built
    with pytest.raises(error, match=message) as caught:
        make()
    assert isinstance(caught.value, FanfoldError)
    assert Counted.built == built


CALLS: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "method": (lambda group: group.remeber(1), UnknownMethodError, "did you mean 'remember'"),
    "option": (lambda group: group.remember.options(timout=1), UnknownOptionError, "did you mean 'timeout'"),
    "negative timeout": (lambda group: group.remember.options(timeout=-1), GroupUsageError, "timeout .* got -1"),
    "timeout as text": (lambda group: group.remember.options(timeout="3"), GroupUsageError, "timeout .* got '3'"),
    "timeout as switch": (lambda group: group.remember.options(timeout=True), GroupUsageError, "got True"),
    "blocking": (lambda group: group.remember.options(blocking="no"), GroupUsageError, "blocking .* got 'no'"),
    "uneven": (lambda group: group.double.options(uneven="spilt"), GroupUsageError, "did you mean 'split'"),
    "rank beyond": (lambda group: group.remember.options(ranks=[5])(1), GroupUsageError, r"ranks \[5\]"),
    "no rank": (lambda group: group.remember.options(ranks=[])(1), GroupUsageError, "no rank"),
    "rank twice": (lambda group: group.remember.options(ranks=[0, 0])(1), GroupUsageError, r"\[0, 0\]"),
    "ranks as text": (lambda group: group.remember.options(ranks="01"), GroupUsageError, "got '01'"),
    "rank as text": (lambda group: group.remember.options(ranks=["0"]), GroupUsageError, r"got \['0'\]"),
    "index as text": (lambda group: group["a"], GroupUsageError, "got 'a'"),
    "index as fraction": (lambda group: group[1.0], GroupUsageError, r"got 1\.0"),
    "index as switch": (lambda group: group[True], GroupUsageError, "got True"),
    "index beyond": (lambda group: group[3], IndexError, "no rank number 3"),
    "method as function": (lambda group: group.execute("who"), GroupUsageError, r"execute_all\('who', \.\.\.\)"),
    "no function": (lambda group: group.execute(3), GroupUsageError, "got 3"),
    "function without worker": (lambda group: group.execute(lambda: 1), GroupUsageError, "takes no argument"),
    "function as method": (lambda group: group.execute_all(max, 1), GroupUsageError, r"group\.execute\(function"),
    "method by name": (lambda group: group.execute_all("echoo", 1), UnknownMethodError, "did you mean 'echo'"),
    "attribute by name": (lambda group: group.execute_all("rank"), UnknownMethodError, "rank"),
    "role": (lambda group: group.spawn({"actor"}), GroupUsageError, "no role 'actor'"),
    "role as text": (lambda group: group.spawn("actor"), GroupUsageError, r"say spawn\(\{'actor'\}\)"),
    "recover beyond": (lambda group: group.recover([9]), GroupUsageError, r"ranks \[9\]"),
    "recover as text": (lambda group: group.recover("all"), GroupUsageError, "got 'all'"),
    "recover's option": (lambda group: group.recover(timout=3), UnknownOptionError, "did you mean 'timeout'"),
    "recover's timeout": (lambda group: group.recover(timeout=-1), GroupUsageError, "timeout .* got -1"),
    "look": (lambda group: group.start_worker_aliveness_check("1"), GroupUsageError, "every_n_seconds .* got '1'"),
    "look's option": (
        lambda group: group.start_worker_aliveness_check(on_lsot="interrupt"),
        UnknownOptionError,
        "did you mean 'on_lost'",
    ),
    "why_stuck": (lambda group: group.why_stuck(-1), GroupUsageError, "limit .* got -1"),
    "wait for a number": (lambda group: wait([3]), GroupUsageError, "wait takes calls, .* got 3"),
    "wait for one": (lambda group: wait(group.later(1)), GroupUsageError, r"wait\(\[call\]\)"),
    "wait for what cannot say": (lambda group: wait([Promise()]), GroupUsageError, "use gather"),
    "wait's count": (lambda group: wait([], count=-1), GroupUsageError, "count .* got -1"),
    "gather a number": (lambda group: gather(3), GroupUsageError, "gather takes calls, .* got 3"),
    "gather numbers": (lambda group: gather([1]), GroupUsageError, "got 1"),
    "gather's timeout": (lambda group: gather(timeout=-1), GroupUsageError, "timeout .* got -1"),
    "result's timeout": (lambda group: group.later(1).result(-1), GroupUsageError, "timeout .* got -1"),
    "result's timeout as text": (lambda group: group.later(1).result("3"), GroupUsageError, "timeout .* got '3'"),
}


class Promise:
    """Stands for a result that is not here yet, as other libraries have them."""

    def result(self, timeout: float | None = None) -> int:
        return 7

    get = result


@pytest.mark.parametrize("mistake", CALLS)
def test_nothing_is_sent(mistake: str, group: WorkerGroup[Any]) -> None:
    call, error, message = CALLS[mistake]
    with pytest.raises(error, match=message):
        call(group)
    assert group.remember("sent") == [1, 1, 1]


@pytest.mark.parametrize("name", ["execute_all", "_ranks", "run", "resource_pool", "close", "typed", "__len__"])
def test_method_that_hides_the_group(name: str) -> None:
    def method(self: Any) -> None: ...

    method.__name__ = name
    bad = type("Bad", (Worker,), {name: register(dispatch_mode=Dispatch.ONE_TO_ALL)(method)})
    with pytest.raises(MethodNameClashError, match=rf"Bad\.{name} is registered, but WorkerGroup\.{name}"):
        WorkerGroup([1], bad)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ([Probe], "roles are a table"),
        ({"class": Probe}, "'class' cannot be the name"),
        ({1: Probe}, "1 cannot be the name"),
        ({"all": create_colocated_worker_cls({"one": Probe})}, "'all' has roles itself"),
    ],
)
def test_roles_that_cannot_be(roles: Any, message: str) -> None:
    with pytest.raises(GroupUsageError, match=message):
        create_colocated_worker_cls(roles)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (("dp", 0.5), r"dp_rank=0\.5"),
        (("dp", "0"), "dp_rank='0'"),
        (("dp", -1), "dp_rank=-1"),
        ((3, 0), "mesh=3"),
        (("dp", 0, None), "collect=None"),
    ],
)
def test_mesh_ranks_that_cannot_be(said: tuple[Any, ...], message: str) -> None:
    with WorkerGroup([1], Meshed) as group, pytest.raises(MeshError, match=message):
        group.say(*said)


def test_after_the_end(group: WorkerGroup[Any]) -> None:
    part = group[0]
    group.close()
    for use in (group.who, part.who, group.recover, group.start_worker_aliveness_check, lambda: pickle.dumps(group)):
        with pytest.raises(GroupUsageError, match="is closed"):
            use()
    assert group.why_stuck().count("was closed") == 3


def test_part_recovers_its_own_ranks_as_it_counts_them(group: WorkerGroup[Any]) -> None:
    group.remember("kept")
    assert group[1:].recover([0]) == [1]
    assert group.recall() == ["kept", "plain", "kept"]
    with pytest.raises(GroupUsageError, match=r"ranks \[2\]"):
        group[1:].recover([2])


def test_what_only_has_a_result_is_gathered_too(group: WorkerGroup[Any]) -> None:
    assert gather(group.later(1), [Promise()], Promise(), timeout=60) == [[1, 2, 3], 7, 7]


@pytest.mark.parametrize("wrong", [{"kind": "slwo"}, {"kind": "slow", "seconds": -1.0}, {"kind": "dies", "after": -1}])
def test_faults_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(GroupUsageError, match="fault"):
        Fault(0, **wrong)


@pytest.mark.parametrize("rank", [-1, 2])
def test_rank_beyond_its_group(rank: int) -> None:
    with pytest.raises(RankEnvironmentError, match=f"rank {rank} is not one of the 2 ranks"):
        RankInfo(rank=rank, world_size=2)


def test_pool_options() -> None:
    with pytest.raises(UnknownOptionError, match="did you mean 'process_on_nodes'"):
        ResourcePool(proces_on_nodes=[1])  # type: ignore[call-arg]


def test_rows_that_do_not_fit_are_refused_with_their_numbers(group: WorkerGroup[Any]) -> None:
    with pytest.raises(ValueError, match=r"4.*3"):
        group.double.options(uneven="error")(Rows(range(4)))
