"""Write down, for type checkers and editors, what a group of a worker class can do.

    python -m fanfold.worker.stubs my.trainers

writes `my/trainers_group.py` with a class `TrainerGroup` for each worker class `Trainer` of the module: each method has
the signature and the result that it has on the driver. Annotate with it and say `group.typed(TrainerGroup)`, which
checks while the program runs that the class was written for the methods that there are.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib
import inspect
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fanfold.dispatch import MethodSpec, PerRank, Replicate, Shard, specs_of
from fanfold.worker.calls import Call
from fanfold.worker.errors import GroupUsageError
from fanfold.worker.result_types import result_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

T = TypeVar("T")

# What a driver may give where the method takes a T.
Given: TypeAlias = T | Call | PerRank | Replicate | Shard

_HEAD = '''"""The groups of {module}'s workers, as drivers see them.

Written by `python -m fanfold.worker.stubs {module}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.worker import BoundMethod, Call, WorkerGroup

if TYPE_CHECKING:
{imports}
'''

_GROUP = '''

class {cls}Group(WorkerGroup["{cls}"]):
    """A group of `{cls}`."""

    registered_methods = {names}

    if TYPE_CHECKING:
{methods}
'''

_METHOD = """
        class _{name}(BoundMethod):
            def __call__(self{parameters}) -> {result}:{doc}
                ...

            def explain(self{parameters}) -> str: ...

        {name}: _{name}
"""


@dataclass
class Imports:
    """What a generated module has to import so that the annotations in it mean what they meant."""

    lines: set[str] = field(default_factory=set)

    def take(self, annotation: ast.expr | None, module: ModuleType) -> str:
        """Return the annotation as text; Any where a name in it cannot be found."""
        if annotation is None:
            return "Any"
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} - set(dir(builtins))
        known = {name: _import_line(name, module) for name in names}
        if any(line is None for line in known.values()):
            return "Any"
        self.lines |= {line for line in known.values() if line is not None}
        return ast.unparse(annotation)


def group_module(module: ModuleType) -> str:
    """Return the text of the module that describes the groups of a module's worker classes.

    Raises:
        GroupUsageError: The module defines no worker class.
    """
    classes = [cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__]
    workers = [cls for cls in classes if specs_of(cls)]
    if not workers:
        raise GroupUsageError(f"module {module.__name__} defines no class with methods that are marked with @register")
    imports = Imports()
    groups = [_group(cls, imports) for cls in sorted(workers, key=_line_of)]
    imports.lines |= {f"from {module.__name__} import {cls.__name__}" for cls in workers}
    imports.lines |= {"from fanfold.worker.stubs import Given"} if "Given[" in "".join(groups) else set()
    head = _HEAD.format(module=module.__name__, imports=textwrap.indent("\n".join(sorted(imports.lines)), "    "))
    return head + "".join(groups)


def _group(cls: type, imports: Imports) -> str:
    specs = specs_of(cls)
    methods = "".join(_method(inspect.getattr_static(cls, name), spec, imports) for name, spec in specs.items())
    names = "(" + ", ".join(f'"{name}"' for name in specs) + ",)"
    return _GROUP.format(cls=cls.__name__, names=names, methods=methods.strip("\n")).rstrip() + "\n"


def _method(function: Callable[..., Any], spec: MethodSpec, imports: Imports) -> str:
    module = sys.modules[function.__module__]
    node = _definition(function)
    returns = imports.take(node.returns, module)
    doc = inspect.getdoc(function)
    first = "" if not doc else f'\n                """{doc.splitlines()[0]}"""'
    return _METHOD.format(
        name=node.name,
        parameters=_parameters(node.args, module, imports),
        result=result_type(spec, returns, function),
        doc=first,
    )


def _parameters(arguments: ast.arguments, module: ModuleType, imports: Imports) -> str:
    def written(argument: ast.arg, default: object, mark: str = "") -> str:
        kind = imports.take(argument.annotation, module)
        given = kind if kind == "Any" or mark else f"Given[{kind}]"
        return f"{mark}{argument.arg}: {given}" + (" = ..." if default is not None else "")

    positional = [*arguments.posonlyargs, *arguments.args][1:]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults[-len(positional) :])
    parts = [written(one, default) for one, default in zip(positional, defaults, strict=False)]
    if arguments.posonlyargs[1:]:
        parts.insert(len(arguments.posonlyargs) - 1, "/")
    if arguments.vararg is not None:
        parts.append(written(arguments.vararg, None, "*"))
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [written(one, default) for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    parts += [written(arguments.kwarg, None, "**")] if arguments.kwarg is not None else []
    return "".join(f", {part}" for part in parts)


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef))  # the source of a function
    return definition


def _line_of(cls: type) -> int:
    return inspect.getsourcelines(cls)[1]


def _import_line(name: str, module: ModuleType) -> str | None:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if (alias.asname or alias.name.split(".")[0]) == name:
                    return _import_of(node, alias)
    return f"from {module.__name__} import {name}" if hasattr(module, name) else None


def _import_of(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    renamed = f" as {alias.asname}" if alias.asname else ""
    if isinstance(node, ast.ImportFrom):
        return f"from {node.module} import {alias.name}{renamed}"
    return f"import {alias.name}{renamed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the module beside the one it describes; the command line's entry."""
    parser = argparse.ArgumentParser(prog="python -m fanfold.worker.stubs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", help="the module with the worker classes, as it is imported")
    chosen = parser.parse_args(arguments)
    try:
        module = importlib.import_module(chosen.module)
        text = group_module(module)
    except (ImportError, GroupUsageError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    source = Path(module.__file__ or "")
    target = source.with_name(f"{source.stem}_group.py")
    target.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, "")
    sys.exit(main())
