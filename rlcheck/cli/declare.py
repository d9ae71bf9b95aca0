"""A command from the dataclass of its request: each option is declared once, as a field of it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin

import typer


def command(request: type[Any], module: str) -> Callable[..., None]:
    """Return the function that typer makes a command of.

    Its help is the docstring of REQUEST, its parameters are the fields that are annotated with `typer.Option` or
    `typer.Argument`, in their order. A field that is a dataclass has its fields in its place; any other field is no
    option and keeps its default. The command calls `run` of MODULE, which is imported then and not before.
    """

    def call(**values: Any) -> None:
        asked = filled(request, values)  # what the request itself refuses is refused at once
        raise typer.Exit(importlib.import_module(module).run(asked))

    call.__doc__ = request.__doc__
    call.__signature__ = inspect.Signature([_parameter(field) for field in declared(request)])  # pyright: ignore[reportFunctionMemberAccess]
    return call


def declared(request: type[Any]) -> Iterator[Field[Any]]:
    """Yield the fields that are options or arguments, in their order, or that of the names in `ORDER` of REQUEST."""
    found = list(_flat(request))
    order: tuple[str, ...] = getattr(request, "ORDER", ())
    yield from sorted(found, key=lambda field: order.index(field.name)) if order else found


def filled(request: type[Any], values: dict[str, Any]) -> Any:
    """Return REQUEST with VALUES by the names of its fields, or of those of a dataclass in it."""
    own: dict[str, Any] = {}
    for field in fields(request):
        if is_dataclass(field.type):
            own[field.name] = filled(field.type, values)  # pyright: ignore[reportArgumentType]
        elif field.name in values:
            value = values[field.name]
            own[field.name] = tuple(value or ()) if _is_tuple(field) else value
    return request(**own)


def _flat(request: type[Any]) -> Iterator[Field[Any]]:
    for field in fields(request):
        if isinstance(field.type, str):
            raise TypeError(f"{request.__module__}: write requests without `from __future__ import annotations`")
        if is_dataclass(field.type):
            yield from _flat(field.type)  # pyright: ignore[reportArgumentType]
        elif get_origin(field.type) is Annotated:
            yield field


def _is_tuple(field: Field[Any]) -> bool:
    return get_origin(get_args(field.type)[0]) is tuple


def _parameter(field: Field[Any]) -> inspect.Parameter:
    """What typer reads; it takes words that may be repeated as a list, None where there are none."""
    kind, option = get_args(field.type)
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    if _is_tuple(field):
        listed = list[get_args(kind)[0]]  # pyright: ignore[reportInvalidTypeArguments]
        kind, default = (listed, default) if default is inspect.Parameter.empty else (listed | None, None)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
