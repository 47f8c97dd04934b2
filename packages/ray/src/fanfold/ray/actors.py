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
import inspect
import os
from inspect import Parameter
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import CallContext, serving
from fanfold.ray.errors import GroupStartingError
from fanfold.ray.portable import errors_travel, unpack_recipe
from fanfold.ray.rendezvous import HeldPort
from fanfold.worker import RankInfo
from fanfold.worker.rank import enter_rank

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

# A module of this name does not exist, so Ray ships the generated class itself instead of its name.
_GENERATED_MODULE = "fanfold.ray.generated"
_OWN_STATE = frozenset({"_fanfold_instance", "_fanfold_port"})


@dataclasses.dataclass(frozen=True)
class RankAnswer:
    """What a rank says of itself; `info` is None until it has been told who it is."""

    name: str
    pid: int
    node_id: str
    address: str
    gpu_ids: tuple[str, ...]
    info: RankInfo | None
    placement_group: PlacementGroup | None


@dataclasses.dataclass(frozen=True)
class Birth:
    """What a rank needs to become one.

    Attributes:
        info: Who it is; the meeting point is filled in by the rank itself.
        environment: What the user wants in `os.environ` before the class is imported.
        references: Ray's references inside the pickled recipe, in the order in which it mentions them.
    """

    info: RankInfo
    environment: Mapping[str, str]
    references: Sequence[Any]


class RankProcess:
    """What the processes of all ranks have in common; the user's methods are added by `rank_class`."""

    _fanfold_instance: Any = None
    _fanfold_port: HeldPort | None = None

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
        return str(ray.get_runtime_context().get_actor_name() or type(self).__name__)


class SyncRankProcess(RankProcess):
    """For classes without async methods."""

    def fanfold_hello(self) -> RankAnswer:
        """Say which process this is, as soon as there is one, and which rank, as soon as it is one."""
        return _answer()

    def fanfold_rendezvous(self, port_range: tuple[int, int] | None) -> tuple[str, int]:
        """Reserve the ranks' meeting point on this node: its address and a port that stays reserved."""
        return _reserve_meeting_point(self, port_range)

    def fanfold_start(self, birth: Birth, recipe: bytes, master: tuple[str, int]) -> None:
        """Become that rank, then import and build the user's class."""
        with errors_travel():
            cls, args, kwargs = _recipe_on_rank(birth, recipe, master)
            args = [ray.get(value) if isinstance(value, ray.ObjectRef) else value for value in args]
            kwargs = {
                key: ray.get(value) if isinstance(value, ray.ObjectRef) else value for key, value in kwargs.items()
            }
            self._fanfold_instance = cls(*args, **kwargs)

    def fanfold_call(
        self, context: CallContext, wanted: bool, method: str | Callable[..., Any], names: Sequence[str], *values: Any
    ) -> Any:
        """Run a method for a group's call; the last values are keyword arguments with these names."""
        args, kwargs = _arguments(names, values)
        with errors_travel(), serving(context):
            result = _target(self, method)(*args, **kwargs)
            result = list(result) if inspect.isgenerator(result) else result
        return result if wanted else None


class AsyncRankProcess(RankProcess):
    """For classes with an async method: everything runs on the event loop, the user's constructor too."""

    async def fanfold_hello(self) -> RankAnswer:
        """Say which process this is, as soon as there is one, and which rank, as soon as it is one."""
        return _answer()

    async def fanfold_rendezvous(self, port_range: tuple[int, int] | None) -> tuple[str, int]:
        """Reserve the ranks' meeting point on this node: its address and a port that stays reserved."""
        return _reserve_meeting_point(self, port_range)

    async def fanfold_start(self, birth: Birth, recipe: bytes, master: tuple[str, int]) -> None:
        """Become that rank, then import and build the user's class."""
        with errors_travel():
            cls, args, kwargs = _recipe_on_rank(birth, recipe, master)
            args = [await value if isinstance(value, ray.ObjectRef) else value for value in args]
            kwargs = {key: await value if isinstance(value, ray.ObjectRef) else value for key, value in kwargs.items()}
            self._fanfold_instance = cls(*args, **kwargs)

    async def fanfold_call(
        self, context: CallContext, wanted: bool, method: str | Callable[..., Any], names: Sequence[str], *values: Any
    ) -> Any:
        """Run a method for a group's call; the last values are keyword arguments with these names."""
        args, kwargs = _arguments(names, values)
        with errors_travel(), serving(context):
            result = await _finished(_target(self, method)(*args, **kwargs))
        return result if wanted else None


def rank_class(cls: type) -> type:
    """Generate the class of a rank's process from the user's: the same methods, and no mention of the user's module."""
    methods = _methods_of(cls)
    is_async = any(
        inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method) for method in methods.values()
    )
    make = _async_delegate if is_async else _sync_delegate
    body: dict[str, Any] = {name: _delegate(make, cls, name, method) for name, method in methods.items()}
    body |= {"__module__": _GENERATED_MODULE, "__qualname__": cls.__name__, "__doc__": cls.__doc__}
    return type(cls.__name__, (AsyncRankProcess if is_async else SyncRankProcess,), body)


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
            for value in _target(self, name)(*args, **kwargs):
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


def _reserve_meeting_point(process: RankProcess, port_range: tuple[int, int] | None) -> tuple[str, int]:
    held = HeldPort(port_range)
    process._fanfold_port = held  # noqa: SLF001  # this module's own class
    return ray.util.get_node_ip_address(), held.port


def _recipe_on_rank(birth: Birth, recipe: bytes, master: tuple[str, int]) -> tuple[Any, Any, Any]:
    enter_rank(dataclasses.replace(birth.info, master_addr=master[0], master_port=master[1]), birth.environment)
    cls, args, kwargs = unpack_recipe(recipe, birth.references)
    return cls, args, kwargs


def _answer() -> RankAnswer:
    context = ray.get_runtime_context()
    gpus = tuple(str(number) for number in context.get_accelerator_ids().get("GPU", ()))
    return RankAnswer(
        name=context.get_actor_name() or "",
        pid=os.getpid(),
        node_id=context.get_node_id(),
        address=ray.util.get_node_ip_address(),
        gpu_ids=gpus,
        info=RankInfo.from_environment() if os.environ.get("WG_BACKEND") else None,
        placement_group=get_current_placement_group(),
    )


def _target(process: RankProcess, method: str | Callable[..., Any]) -> Callable[..., Any]:
    instance = process._fanfold_instance  # noqa: SLF001  # this module's own class
    if instance is None:
        raise GroupStartingError(f"{process!r} has not built its worker; it cannot run {method}")
    if isinstance(method, str):
        return getattr(instance, method)  # type: ignore[no-any-return]
    return lambda *args, **kwargs: method(instance, *args, **kwargs)


def _arguments(names: Sequence[str], values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    cut = len(values) - len(names)
    return values[:cut], dict(zip(names, values[cut:], strict=True))


async def _finished(result: Any) -> Any:
    if inspect.isawaitable(result):
        return await result
    if inspect.isasyncgen(result):
        return [value async for value in result]
    return list(result) if inspect.isgenerator(result) else result
