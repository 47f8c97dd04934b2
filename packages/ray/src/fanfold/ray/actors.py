"""The process of one rank: a stand-in for the user's class that builds it only when the rank's environment is set.

Ray builds an actor by unpickling its class, which imports the user's module; environment variables that the module
reads have to be there by then. `runtime_env` can do that, at the price of a process that is started for this actor
alone, twice the start-up. So what Ray sees is a class generated here: its methods have the names and signatures of the
user's, it mentions nothing of the user's module, and it builds the user's object when `fanfold_start` says who the rank
is. As that is a method and no constructor, an error of the user's constructor comes back as it is.

Ray runs all methods of an actor on one thread (the main thread, or its event loop's where any method is async), so the
user's methods run where the user's constructor ran.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import serving
from fanfold.ray.answers import RankAnswer, devices_of
from fanfold.ray.desk import Desk
from fanfold.ray.errors import GroupStartingError
from fanfold.ray.logs import oom_kills, own_logs
from fanfold.ray.orders import Order, opened_order
from fanfold.ray.parcels import Parcel, as_it_is, opened
from fanfold.ray.passing import Assembled
from fanfold.ray.profiling import Profiles, ProfileWindow
from fanfold.ray.rendezvous import HeldPort, in_collectives
from fanfold.ray.results import kept_result, returns_of
from fanfold.ray.sidedoor import SideDoor
from fanfold.ray.travelling import errors_travel
from fanfold.worker import ClassWithInitArgs, RankInfo
from fanfold.worker.executing import callable_of, finished, finished_in_loop
from fanfold.worker.rank import enter_rank
from fanfold.worker.watching import watched

import ray
from ray.util.placement_group import get_current_placement_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from fanfold.ray.refs import Ref

# A module of this name does not exist, so Ray ships the generated class itself instead of its name.
_GENERATED_MODULE = "fanfold.ray.generated"
_OWN_STATE = frozenset(
    {"_fanfold_instance", "_fanfold_port", "_fanfold_desk", "_fanfold_door", "_fanfold_generation", "_fanfold_profiles"}
)


@dataclasses.dataclass(frozen=True)
class Birth:
    """What a rank needs to become one.

    Attributes:
        info: Who it is; the meeting point is filled in by the rank itself.
        environment: What the user wants in `os.environ` before the class is imported.
        secret: What has to be known to ask the rank something from the side.
        generation: How often this rank has been started anew.
    """

    info: RankInfo
    environment: Mapping[str, str]
    secret: str
    generation: int = 0


class RankProcess:
    """What the processes of all ranks have in common; the user's methods are added by `rank_class`."""

    _fanfold_instance: Any = None
    _fanfold_port: HeldPort | None = None
    _fanfold_desk: Desk | None = None
    _fanfold_door: SideDoor | None = None
    _fanfold_generation: int = 0
    _fanfold_profiles: Profiles | None = None

    def __getattr__(self, name: str) -> Any:
        # For __ray_call__ and Ray's own questions: whoever looks at the actor sees the user's object.
        if self._fanfold_instance is None:
            raise AttributeError(name)
        return getattr(self._fanfold_instance, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN_STATE or self._fanfold_instance is None:
            object.__setattr__(self, name, value)
        else:
            setattr(self._fanfold_instance, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._fanfold_instance, name)

    def __repr__(self) -> str:
        # Ray asks before anything is built, for the prefix of this process's log lines, and again for each error.
        instance = self._fanfold_instance
        if instance is not None and vars(object)["__repr__"] is not type(instance).__repr__:
            return repr(instance)
        name = ray.get_runtime_context().get_actor_name() if ray.is_initialized() else None
        return name or type(self).__name__


class SyncRankProcess(RankProcess):
    """For classes without async methods."""

    def fanfold_hello(self) -> RankAnswer:
        """Say which process this is, as soon as there is one, and which rank, as soon as it is one."""
        return _answer(self)

    def fanfold_rendezvous(self, port_range: tuple[int, int] | None) -> tuple[str, int]:
        """Reserve the ranks' meeting point on this node: its address and a port that stays reserved."""
        return _reserve_meeting_point(self, port_range)

    def fanfold_start(self, birth: Birth, recipe: Parcel, master: tuple[str, int], *peers: RankAnswer) -> RankAnswer:
        """Become that rank, then import and build the user's class; `peers` share this node's devices with it."""
        with errors_travel():
            made = _recipe_on_rank(self, birth, recipe, master, peers)
            self._fanfold_instance = _with_values(made, ray.get(_references(made)))()
        return _answer(self)

    def fanfold_call(self, sent: Order | bytes, *values: Any) -> Any:
        """Run a method for a group's call."""
        order = opened_order(sent)
        with errors_travel(), _desk(self).serving(_task_id(), order.context.method) as wanted, serving(order.context):
            if not wanted:
                return _nothing(order)
            with _profiles(self).around(order.context.method):
                begin, check = _prepared(self, order, values)
                result = finished(begin())
                check()
        return _returned(self, order, result)

    def fanfold_profile(self, window: ProfileWindow) -> list[str]:
        """Profile calls to come."""
        with errors_travel():
            return _profiles(self).open(window)


class AsyncRankProcess(RankProcess):
    """For classes with an async method: everything runs on the event loop, the user's constructor too."""

    async def fanfold_hello(self) -> RankAnswer:
        """Say which process this is, as soon as there is one, and which rank, as soon as it is one."""
        return _answer(self)

    async def fanfold_rendezvous(self, port_range: tuple[int, int] | None) -> tuple[str, int]:
        """Reserve the ranks' meeting point on this node: its address and a port that stays reserved."""
        return _reserve_meeting_point(self, port_range)

    async def fanfold_start(
        self, birth: Birth, recipe: Parcel, master: tuple[str, int], *peers: RankAnswer
    ) -> RankAnswer:
        """Become that rank, then import and build the user's class; `peers` share this node's devices with it."""
        with errors_travel():
            made = _recipe_on_rank(self, birth, recipe, master, peers)
            values = [await reference for reference in _references(made)]
            self._fanfold_instance = _with_values(made, values)()
        return _answer(self)

    async def fanfold_call(self, sent: Order | bytes, *values: Any) -> Any:
        """Run a method for a group's call."""
        order = opened_order(sent)
        with errors_travel(), _desk(self).serving(_task_id(), order.context.method) as wanted, serving(order.context):
            if not wanted:
                return _nothing(order)
            with _profiles(self).around(order.context.method):
                begin, check = _prepared(self, order, values)
                result = await finished_in_loop(begin())
                check()
        return _returned(self, order, result)

    async def fanfold_profile(self, window: ProfileWindow) -> list[str]:
        """Profile calls to come."""
        with errors_travel():
            return _profiles(self).open(window)


def rank_class(cls: type) -> type:
    """Generate the class of a rank's process from the user's: the same methods, and no mention of the user's module."""
    methods = _methods_of(cls)
    is_async = any(
        inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method) for method in methods.values()
    )
    make, base = (_async_delegate, AsyncRankProcess) if is_async else (_sync_delegate, SyncRankProcess)
    body: dict[str, Any] = {name: _delegate(make, cls, name, method) for name, method in methods.items()}
    # Ray's timeline shows the name by which an actor is called, so a group's call has one for each method.
    body |= {call_name(cls.__qualname__, name): base.fanfold_call for name in methods if not name.startswith("_")}
    body |= {"__module__": _GENERATED_MODULE, "__qualname__": cls.__name__, "__doc__": cls.__doc__}
    return type(cls.__name__, (base,), body)


def call_name(class_name: str, method: str) -> str:
    """Return the name of a group's call for people: that of the class and that of the method."""
    return f"{class_name}.{method}" if class_name else method


def _methods_of(cls: type) -> dict[str, Callable[..., Any]]:
    found = {name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith(("__", "fanfold_"))}
    plain = {name: getattr(attribute, "__func__", attribute) for name, attribute in found.items()}
    return {name: function for name, function in plain.items() if inspect.isfunction(function)}


def _delegate(make: Callable[..., Any], cls: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    delegate = make(name, inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method))
    delegate.__name__, delegate.__qualname__ = name, f"{cls.__name__}.{name}"
    delegate.__signature__ = _bare_signature(method, isinstance(inspect.getattr_static(cls, name), staticmethod))
    for key, value in vars(method).items():
        if key.startswith("__ray_"):  # what @ray.method(...) says about it
            setattr(delegate, key, value)
    return delegate  # type: ignore[no-any-return]


def _bare_signature(method: Callable[..., Any], is_static: bool) -> inspect.Signature:
    # Annotations and defaults may be of the user's classes, which must not be imported with the generated class.
    parameters = [_bare(parameter) for parameter in inspect.signature(method).parameters.values()]
    if is_static or not parameters or parameters[0].kind is Parameter.VAR_POSITIONAL:
        parameters.insert(0, Parameter("_fanfold_process", Parameter.POSITIONAL_ONLY))
    return inspect.Signature(parameters)


def _bare(parameter: Parameter) -> Parameter:
    default = parameter.empty if parameter.default is parameter.empty else None
    return parameter.replace(annotation=parameter.empty, default=default)


def _sync_delegate(name: str, generates: bool) -> Callable[..., Any]:
    def call(self: RankProcess, *args: Any, **kwargs: Any) -> Any:
        with errors_travel():
            return _target(self, name)(*args, **kwargs)

    def generate(self: RankProcess, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with errors_travel():
            # No `yield from`: Ray sends values into generators, which the user's need not understand.
            for value in _target(self, name)(*args, **kwargs):  # noqa: UP028
                yield value

    return generate if generates else call


def _async_delegate(name: str, generates: bool) -> Callable[..., Any]:
    async def call(self: RankProcess, *args: Any, **kwargs: Any) -> Any:
        with errors_travel():
            result = _target(self, name)(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

    async def generate(self: RankProcess, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with errors_travel():
            values = _target(self, name)(*args, **kwargs)
            if inspect.isgenerator(values):
                for value in values:
                    yield value
            else:
                async for value in values:
                    yield value

    return generate if generates else call


def _is_async(method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _reserve_meeting_point(process: RankProcess, port_range: tuple[int, int] | None) -> tuple[str, int]:
    held = HeldPort(port_range)
    process._fanfold_port = held  # noqa: SLF001  # this module's own class
    return ray.util.get_node_ip_address(), held.port


def _recipe_on_rank(
    process: RankProcess, birth: Birth, recipe: Parcel, master: tuple[str, int], peers: Sequence[RankAnswer]
) -> ClassWithInitArgs:
    if peers:
        os.environ.update(devices_of(peers))
    enter_rank(dataclasses.replace(birth.info, master_addr=master[0], master_port=master[1]), birth.environment)
    desk = Desk(birth.info.rank)
    answers: dict[str, Callable[[Any], Any]] = {"status": lambda _: desk.status(), "cancel": desk.cancel}
    answers |= {"collectives": in_collectives, "spans": desk.spans}
    process._fanfold_desk = desk  # noqa: SLF001  # as above
    process._fanfold_generation = birth.generation  # noqa: SLF001  # as above
    process._fanfold_profiles = Profiles(birth.info.rank)  # noqa: SLF001  # as above
    host, actor_id = ray.util.get_node_ip_address(), str(ray.get_runtime_context().get_actor_id())
    process._fanfold_door = SideDoor(host, birth.secret, actor_id, answers)  # noqa: SLF001  # as above
    return recipe.open()  # type: ignore[no-any-return]


def _references(recipe: ClassWithInitArgs) -> list[Ref]:
    return [value for value in (*recipe.args, *recipe.kwargs.values()) if isinstance(value, ray.ObjectRef)]


def _with_values(recipe: ClassWithInitArgs, values: Sequence[Any]) -> ClassWithInitArgs:
    # As Ray does it for an actor's own constructor: a reference among the arguments arrives as its value.
    left = iter(values)
    args = [next(left) if isinstance(value, ray.ObjectRef) else value for value in recipe.args]
    named = {key: next(left) if isinstance(value, ray.ObjectRef) else value for key, value in recipe.kwargs.items()}
    return recipe.with_arguments(args, named)


def _answer(process: RankProcess) -> RankAnswer:
    context, door = ray.get_runtime_context(), process._fanfold_door  # noqa: SLF001  # as above
    return RankAnswer(
        name=context.get_actor_name() or "",
        pid=os.getpid(),
        node_id=context.get_node_id(),
        address=ray.util.get_node_ip_address(),
        gpu_ids=tuple(str(number) for number in context.get_accelerator_ids().get("GPU", ())),
        info=RankInfo.from_environment() if door is not None else None,
        placement_group=get_current_placement_group(),
        bell=None if door is None else door.bell,
        logs=own_logs(),
        oom_kills=oom_kills(),
        generation=process._fanfold_generation,  # noqa: SLF001  # as above
    )


def _instance(process: RankProcess, method: Any) -> Any:
    instance = process._fanfold_instance  # noqa: SLF001  # as above
    if instance is None:
        raise GroupStartingError(f"{process!r} has not built its worker; it cannot run {method}")
    return instance


def _target(process: RankProcess, method: str) -> Callable[..., Any]:
    return callable_of(_instance(process, method), method)


def _desk(process: RankProcess) -> Desk:
    return process._fanfold_desk or Desk(0)  # noqa: SLF001  # as above


def _profiles(process: RankProcess) -> Profiles:
    return process._fanfold_profiles or Profiles(0)  # noqa: SLF001  # as above


def _task_id() -> str:
    return str(_runtime_context().get_task_id())


@functools.cache
def _runtime_context() -> Any:
    return ray.get_runtime_context()  # the same for all calls of a process, and making it costs more than asking it


def _returned(process: RankProcess, order: Order, result: Any) -> Any:
    if not order.stays:
        return as_it_is(result) if order.wanted else None
    method = f"{type(_instance(process, order.method)).__qualname__}.{order.context.method}"
    return kept_result(result, method, order.apart)


def _nothing(order: Order) -> Any:
    return (None,) * returns_of(order.apart) if order.stays else None


def _prepared(
    process: RankProcess, order: Order, values: Sequence[Any]
) -> tuple[Callable[[], Any], Callable[[], None]]:
    """Return the call, and what to do after it."""
    readonly = order.readonly and not order.checked
    whole, parts = values[: len(values) - order.parts], values[len(values) - order.parts :]
    own = [value.open(parts, readonly=readonly) if isinstance(value, Assembled) else value for value in whole]
    method, *arguments = opened([order.method, *own], readonly=readonly)
    cut = len(arguments) - len(order.names)
    named = dict(zip(order.names, arguments[cut:], strict=True))
    begin = partial(callable_of(_instance(process, method), method), *arguments[:cut], **named)
    if not (order.readonly and order.checked):
        return begin, _no_check
    numbered = [(str(position), value) for position, value in enumerate(arguments[:cut])]
    return begin, watched(order.context.method, [*numbered, *named.items()])


def _no_check() -> None:
    """Nothing was promised, or the memory itself sees to it."""
