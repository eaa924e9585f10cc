"""Tools as JSON schemas: what `tools=` may hold, and the schema of a Python function.

A function's parameters come from its type hints, descriptions from its docstring in Google's style (`Args:`,
`Returns:`); a description that ends in ``(choices: ["a", "b"])`` lists the values. The schema is the one that
transformers' `get_json_schema` makes. Functions are read, never called.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from PIL import Image

from cutaway.errors import InputError

_SCALARS: dict[type, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_TYPES: dict[Any, dict[str, str]] = {
    **{kind: {"type": name} for kind, name in _SCALARS.items()},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
    Image.Image: {"type": "image"},
    torch.Tensor: {"type": "audio"},
}
_END = r"[\n\s]*(Returns:|Raises:|\Z)"
_DESCRIPTION = re.compile(r"^(.*?)[\n\s]*(Args:|Returns:|Raises:|\Z)", re.DOTALL)
_ARGS = re.compile(r"\n\s*Args:\n(.*?)" + _END, re.DOTALL)
_RETURNS = re.compile(r"\n\s*Returns:\n\s*(.*?)[\n\s]*(Raises:|\Z)", re.DOTALL)
_ARGUMENT = re.compile(
    r"(?:^|\n)([ \t]*)(\w+)(?:[ \t]*\([^()\n]*\))?:\s*(.*?)\s*"
    r"(?=\n(?!\1[ \t])[ \t]*\w+(?:[ \t]*\([^()\n]*\))?:|\Z)",
    re.DOTALL,
)
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


def read_tools(tools: Any) -> list[Any] | None:
    """Return `tools=` as a list of schemas: mappings as they are, functions as `function_schema` makes them.

    Raises `InputError` that names the entry for anything else.
    """
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise InputError(f"`tools` is a list of JSON schemas and functions; got a {type(tools).__name__}.")
    schemas = []
    for index, tool in enumerate(tools):
        if inspect.isfunction(tool) or inspect.ismethod(tool):
            schemas.append(function_schema(tool, f"tools[{index}]"))
        elif isinstance(tool, Mapping):
            schemas.append(tool)
        else:
            raise InputError(
                f"A tool is a JSON schema (a dict) or a function with type hints and a docstring; got a "
                f"{type(tool).__name__} as tools[{index}]."
            )
    return schemas


def function_schema(function: Callable[..., Any], name: str = "the function") -> dict[str, Any]:
    """Return the JSON schema of a function. Raises `InputError` where hints or docstring do not tell it."""
    title = f"{name} ({getattr(function, '__name__', 'operation')})"
    document = (inspect.getdoc(function) or "").strip()
    if not document:
        raise InputError(f"A function as a tool is described by its docstring; {title} has none. Write one.")
    about, described = _DESCRIPTION.search(document), _described(document)
    schema = _parameters(function, title)
    returned = schema["properties"].pop("return", None)
    returns = _RETURNS.search(document)
    if returned is not None and returns is not None:
        returned["description"] = returns[1]
    for parameter, entry in schema["properties"].items():
        if parameter not in described:
            raise InputError(
                f"The docstring of {title} describes every parameter under `Args:`; {parameter!r} is missing there."
            )
        _describe(entry, described[parameter], f"{title}, {parameter!r}")
    output = {
        "name": getattr(function, "__name__", "operation"),
        "description": about[1].strip() if about else None,
        "parameters": schema,
    }
    if returned is not None:
        output["return"] = returned
    return {"type": "function", "function": output}


def _described(document: str) -> dict[str, str]:
    """Return the descriptions under `Args:`, by parameter."""
    section = _ARGS.search(document)
    if section is None:
        return {}
    lines = "\n".join(line for line in section[1].split("\n") if line.strip())
    return {match[1]: re.sub(r"\s*\n+\s*", " ", match[2].strip()) for match in _ARGUMENT.findall(lines)}


def _describe(entry: dict[str, Any], text: str, where: str) -> None:
    """Put a description into a parameter's schema, the choices at its end as `enum`."""
    choices = _CHOICES.search(text)
    if choices is not None:
        try:
            values = json.loads(choices[1])
        except ValueError as error:
            raise InputError(f"The choices of {where} are a JSON list; got {choices[1]!r} ({error}).") from error
        entry["enum"] = [value.strip() if isinstance(value, str) else value for value in values]
        text = text[: choices.start()].strip()
    entry["description"] = text


def _parameters(function: Callable[..., Any], title: str) -> dict[str, Any]:
    """Return the schema of a function's parameters, and under `return` that of its result where it has one."""
    try:
        hints = get_type_hints(function)
    except Exception as error:  # a hint in quotes can raise anything
        raise InputError(f"The type hints of {title} cannot be read: {error}.") from error
    parameters = inspect.signature(function).parameters
    first = next(iter(parameters), None)
    receiver = first if first in ("self", "cls") and parameters[first].annotation is inspect.Parameter.empty else None
    names = [name for name in parameters if name != receiver]
    for name in names:
        if parameters[name].annotation is inspect.Parameter.empty:
            raise InputError(f"Every parameter of {title} needs a type hint; {name!r} has none.")
    properties = {}
    for name, hint in hints.items():
        if name == "return":
            try:
                properties[name] = _schema(hint, title)
            except InputError:  # a model never writes the result, so it is left out
                continue
        elif name != receiver:
            properties[name] = _schema(hint, f"{title}, {name!r}")
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [name for name in names if parameters[name].default is inspect.Parameter.empty]
    return schema | ({"required": required} if required else {})


def _schema(hint: Any, where: str) -> dict[str, Any]:
    """Return the JSON schema of a type hint."""
    origin: Any = get_origin(hint)
    args: tuple[Any, ...] = get_args(hint)
    if origin is None and isinstance(hint, type) and issubclass(hint, Enum):
        return _values([member.value for member in hint], where)
    if origin is None and hint in _TYPES:
        return dict(_TYPES[hint])
    if origin is Union or origin is types.UnionType:
        return _union([_schema(part, where) for part in args if part is not type(None)], type(None) in args)
    if origin is Literal:
        return _values(list(args), where)
    if origin in (list, tuple, dict) and not args:  # typing's List, Tuple and Dict
        return dict(_TYPES[origin])
    if origin is list:
        return {"type": "array", "items": _schema(args[0], where)}
    if origin is tuple and len(args) > 1 and ... not in args:
        return {"type": "array", "prefixItems": [_schema(part, where) for part in args]}
    if origin is dict:
        value_hint = list(args)[-1]
        return {"type": "object", "additionalProperties": _schema(value_hint, where)}
    raise InputError(
        f"A tool's type hints are int, float, str, bool, Enum classes, Literal, and list, tuple, dict and unions of "
        f"those; got {hint!r} in {where}. Use list[…] for a tuple of one or of any length, or give the JSON schema."
    )


def _union(parts: list[dict[str, Any]], nullable: bool) -> dict[str, Any]:
    if len(parts) == 1:
        schema = parts[0]
    elif all(part.keys() == {"type"} and isinstance(part["type"], str) for part in parts):
        names = sorted({part["type"] for part in parts})
        schema = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = {"anyOf": parts}
    return schema | ({"nullable": True} if nullable else {})


def _values(values: list[Any], where: str) -> dict[str, Any]:
    """Return the schema of a value out of a list."""
    if not values or any(type(value) not in _SCALARS for value in values):
        raise InputError(f"Choices are text, numbers, True, False or None, at least one; got {values!r} in {where}.")
    names = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": values}
