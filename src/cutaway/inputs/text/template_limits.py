"""What keeps a chat template within bounds: a budget of steps, text and time, and the operators that spend it.

A template comes with a checkpoint and may be anything. `ChatTemplate` runs every template in a `BoundedEnvironment`
under `limits`: loops, calls, operators, filters and output are charged to a `Budget` before they allocate, and what
goes over it raises `OverLimit`. A template within the bounds renders exactly as in Jinja's own sandbox.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import GeneratorType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace, generate_lorem_ipsum, pass_context
from jinja2.visitor import NodeTransformer

SOURCE_LIMIT = 2**18
"""Characters of a template's text; published ones have up to 20,000."""

STEPS, SIZE, SECONDS = 2_000_000, 2**26, 5
"""Steps, characters and seconds that a template may take for any messages; long messages add to each."""

DEPTH, WIDTH, BITS, SLOW_INPUT = 64, 10**6, 2**14, 10**5
"""Bounds of nested calls and containers, of widths and other whole numbers of a filter, of integers in bits, and of the
input of filters that take more than linear time."""

_SLOW = frozenset({
    "pprint", "striptags", "title", "urlize", "urlencode", "wordcount", "wordwrap", "xmlattr", "truncate", "dictsort",
    "filesizeformat",
})  # fmt: skip
_OF_ITEMS = frozenset({
    "length", "count", "first", "last", "list", "items", "map", "select", "reject", "selectattr", "rejectattr",
    "default", "d", "batch", "slice", "sort", "unique", "min", "max", "groupby", "reverse", "random", "attr", "abs",
    "int", "float", "round",
})  # fmt: skip
"""Filters that make no text of their value, so that its items alone are charged."""

_PRINTF = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+)?)?[hlL]?.", re.DOTALL)


class OverLimit(Exception):  # noqa: N818 - a bound, which callers turn into an error of the package
    """A template took more steps, text, depth or time than any chat template needs."""


class Budget:
    """What a template may still take while it runs: steps, characters (a list's entry counts eight), depth, time."""

    def __init__(self, entries: int = 0, characters: int = 0) -> None:
        """`entries` and `characters` are those of the messages; a template may go over them many times."""
        self.steps = STEPS + entries**2
        self.size = SIZE + characters * (64 + entries)
        self.depth = 0
        self.deadline = time.monotonic() + SECONDS + characters / 1e6 + entries / 1e4

    def spend(self, size: int = 0, steps: int = 1) -> None:
        """Charge steps and characters; raise `OverLimit` when either, or the time, is used up."""
        self.steps -= steps
        self.size -= size
        if self.steps < 0:
            raise OverLimit("it takes more steps than the messages can need")
        if self.size < 0:
            raise OverLimit("it makes more text than the messages can need")
        if time.monotonic() > self.deadline:
            raise OverLimit("it takes too long")


_BUDGET: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def limits(budget: Budget) -> Iterator[Budget]:
    """Charge everything that a `BoundedEnvironment` does inside to `budget`."""
    token = _BUDGET.set(budget)
    try:
        yield budget
    finally:
        _BUDGET.reset(token)


def measure(*values: Any, most: float = float("inf")) -> tuple[int, int]:
    """Return how many entries values have at any depth, and how many characters they have as text, about.

    Raises `OverLimit` for containers nested more than `DEPTH` deep, and beyond `most` characters.
    """
    entries = characters = 0
    level = list(values)
    for _ in range(DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, (str, bytes)):
                characters += len(value)
            elif isinstance(value, Mapping):
                inner += value.keys()
                inner += value.values()
            elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__.startswith("dict_"):
                inner += value
            elif isinstance(value, Namespace):
                inner.append(value._Namespace__attrs)
            else:
                characters += 8 if not isinstance(value, int) else 1 + value.bit_length() // 3
            if len(inner) > 10**6 or characters > most:
                raise OverLimit("it makes more text than the messages can need")
        entries += len(inner)
        characters += 8 * len(inner)
        if not inner:
            return entries, characters
        level = inner
    raise OverLimit(f"it nests containers more than {DEPTH} deep")


def _text_size(value: Any) -> int:
    """Return about how many characters a value has as text."""
    return len(value) if isinstance(value, str) else measure(value, most=_BUDGET.get().size)[1]


def _size(value: Any) -> int:
    """Return the characters of a string, eight times the entries of a container, or 0."""
    if isinstance(value, (str, bytes)):
        return len(value)
    return 8 * len(value) if isinstance(value, (list, tuple, dict, set, frozenset)) else 0


def _check_numbers(values: Iterable[Any], most: int = WIDTH) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > most:
            raise OverLimit(f"it asks for a width or count of {value.bit_length()} bits")


def _printf_size(form: str, values: Any) -> int:
    """Return about how long ``form % values`` gets; raise `OverLimit` for absurd widths."""
    fields = list(_PRINTF.finditer(form))
    widths = [part for field in fields for part in field.groups() if part]
    _check_numbers(int(part[:9]) for part in widths if part != "*")
    entries = list(values.values()) if isinstance(values, Mapping) else values
    entries = entries if isinstance(entries, (tuple, list)) else [entries]
    if "*" in widths:
        _check_numbers(entries)
    longest = max(map(_text_size, entries), default=0)
    return len(form) + len(fields) * max(longest, *(int(part) if part != "*" else WIDTH for part in widths), 0)


class _Formatter(SandboxedFormatter):
    """``str.format`` in the sandbox, with bounded widths and charged fields."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        _check_numbers(int(digits[:9]) for digits in re.findall(r"\d+", format_spec))
        _BUDGET.get().spend(_text_size(value) if not isinstance(value, (int, float)) else 0)
        text = super().format_field(value, format_spec)
        _BUDGET.get().spend(len(text))
        return text


def _check_method(text: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Charge what a method of a string makes, before it is called; return its arguments, an iterator as a list."""
    budget = _BUDGET.get()
    options = (*args, *kwargs.values())
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"):
        _check_numbers(options)
        budget.spend(len(text) if isinstance(text, (str, bytes)) else 0)
        if name == "expandtabs" and isinstance(text, (str, bytes)):
            budget.spend(len(text) * max((value for value in options if isinstance(value, int)), default=8))
    elif not isinstance(text, (str, bytes)):
        return args
    elif (
        name == "replace"
        and len(options) >= 2
        and all(
            isinstance(part, (str, bytes)) and isinstance(part, str) == isinstance(text, str) for part in options[:2]
        )
    ):
        occurrences: Any = text.count
        budget.spend(len(text) + occurrences(options[0]) * len(options[1]))
    elif name == "join" and args and not isinstance(args[0], (str, bytes)):
        parts = list(args[0])
        budget.spend(sum(map(_size, parts)) + len(text) * len(parts), len(parts))
        return (parts, *args[1:])
    elif name == "join" and args:
        budget.spend((len(text) + 1) * len(args[0]))
    elif name == "translate" and args and isinstance(args[0], Mapping):
        budget.spend(len(text) * max(map(_size, args[0].values()), default=1))
    elif name in ("split", "rsplit", "splitlines"):
        mark: Any = args[0] if name != "splitlines" and args and isinstance(args[0], (str, bytes)) else None
        budget.spend(8 * (text.count(mark) if mark else len(text) // 2) + len(text))
    else:
        budget.spend(len(text))
    return args


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, in which everything that can grow is charged to the budget of `limits`."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    macro_sizes: Mapping[str | None, int]
    """Characters that one call of each macro writes by itself, by the macro's name."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of `jinja2.Environment`."""
        self.macro_sizes = {}
        super().__init__(finalize=_charge_output, **options)
        for name, function in FILTERS.items():
            self.filters[name] = bounded_filter(name, function)
        self.filters |= {"count iterations": _count_iterations, "join parts": _join_parts, "take slice": _take_slice}
        self.globals["lipsum"] = _lipsum

    def bounded(self, text: str) -> Any:
        """Return the compiled template. Raises `OverLimit` for what is too long or too deep to be one."""
        if len(text) > SOURCE_LIMIT:
            raise OverLimit(f"it has {len(text):,} characters")
        try:
            with limits(Budget()):
                tree = _Charges().visit(self.parse(text))
                self.macro_sizes = {
                    getattr(node, "name", "caller"): _literal_size(node)
                    for node in tree.find_all((nodes.Macro, nodes.CallBlock))
                }
                return self.from_string(tree)
        except (RecursionError, MemoryError, OverflowError) as error:
            raise OverLimit("it is nested too deep") from error
        except SyntaxError as error:  # Python's own, of the code that Jinja generates
            raise OverLimit(f"it is nested too deep ({error.msg})") from error

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, charged by the operands."""
        budget = _BUDGET.get()
        if operator == "+":
            budget.spend(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            budget.spend(_printf_size(left, right))
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    budget.spend(_size(value) * max(times, 0))
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > BITS:
                raise OverLimit(f"it computes an integer of {bits.bit_length()} bits or more")
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a bounded ``str.format`` for one, None for any other value."""
        if super().wrap_str_format(value) is None:
            return None
        form, by_map = value.__self__, value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            args, kwargs = ((), args[0]) if by_map else (args, kwargs)
            return type(form)(_Formatter(self).vformat(form, args, kwargs))

        return formatted

    def call(__self, __context: Any, __callable: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function, method or macro, charged by what it makes."""
        budget = _BUDGET.get()
        budget.spend()
        owner = getattr(__callable, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            args = _check_method(owner, __callable.__name__, args, kwargs)
        elif isinstance(__callable, Macro):
            budget.spend(__self.macro_sizes.get(__callable.name, 0))
        budget.depth += 1
        if budget.depth > DEPTH:
            raise OverLimit(f"its calls are nested more than {DEPTH} deep")
        try:
            result = super().call(__context, __callable, *args, **kwargs)
        finally:
            budget.depth -= 1
        budget.spend(_size(result), 0)
        return result


class TemplateNamespace(Namespace):
    """Jinja's `namespace`, whose values are bounded in depth and whose names begin with no underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        Namespace.__init__(self, {})
        for name, value in values.items():
            self[name] = value

    def __setitem__(self, name: Any, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace of a chat template has no names that begin with an underscore: {name!r}")
        if not isinstance(value, (str, int, float, type(None))):
            measure(value)
        super().__setitem__(name, value)


class _Charges(NodeTransformer):
    """Puts charges into a parsed template: before loops, joined parts and slices, which Jinja runs as plain Python."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        size = _literal_size(node)
        self.generic_visit(node)
        node.iter = _filter(node.iter, "count iterations", nodes.Const(size))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), "join parts")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        parts = (node.arg.start, node.arg.stop, node.arg.step)
        return _filter(node.node, "take slice", *(part or nodes.Const(None) for part in parts))


def _filter(value: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    node = nodes.Filter(value, name, list(args), [], None, None)
    node.set_lineno(value.lineno or 1)
    return node


def _literal_size(node: nodes.Node) -> int:
    """Return the characters that stand in a part of a template."""
    return sum(
        len(part.data if isinstance(part, nodes.TemplateData) else str(part.value))
        for part in node.find_all((nodes.TemplateData, nodes.Const))
    )


class _CountedItems:
    """What a loop goes over, each step of it charged."""

    def __init__(self, items: Any, size: int) -> None:
        self._items, self._size = items, size

    def __iter__(self) -> Iterator[Any]:
        spend = _BUDGET.get().spend
        for item in self._items:
            spend(self._size)
            yield item

    def __len__(self) -> int:
        return len(self._items)


@pass_context  # a filter that takes the context is never run while compiling
def _count_iterations(_: Any, items: Any, size: int) -> _CountedItems:
    return _CountedItems(items, size)


@pass_context
def _join_parts(_: Any, parts: list[Any]) -> str:
    _BUDGET.get().spend(sum(map(_text_size, parts)))
    return "".join(map(str, parts))


@pass_context
def _take_slice(_: Any, value: Any, start: Any, stop: Any, step: Any) -> Any:
    part = value[start:stop:step]
    _BUDGET.get().spend(_size(part))
    return part


def _charge_output(value: Any) -> Any:
    """Charge a value that is written out."""
    if isinstance(value, str):
        _BUDGET.get().spend(len(value))
    elif not isinstance(value, (int, float, Undefined)) and value is not None:
        _BUDGET.get().spend(_text_size(value))
    return value


def _lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    """Jinja's `lipsum`, charged by the words asked for."""
    _check_numbers((n, min, max))
    _BUDGET.get().spend(n * max * 16)
    return generate_lorem_ipsum(n, html, min, max)


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that charges its value and its result, and refuses arguments beyond bounds."""
    first = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = _BUDGET.get()
        value = args[first]
        if isinstance(value, GeneratorType) and name in ("join", "sum"):
            value = list(value)
            args = (*args[:first], value, *args[first + 1 :])
        _charge_filter(name, value, (*args[first + 1 :], *kwargs.values()), budget)
        result = function(*args, **kwargs)
        budget.spend(_size(result), 0)
        return result

    return bounded


def _charge_filter(name: str, value: Any, options: tuple[Any, ...], budget: Budget) -> None:
    """Charge what a filter makes of a value, before it runs."""
    size = _size(value) if name in _OF_ITEMS else _text_size(value)
    if name in _SLOW and size > SLOW_INPUT:
        raise OverLimit(f"its filter {name} gets {size:,} characters")
    _check_numbers(options, 64 if name == "tojson" else WIDTH)
    added = max((_text_size(option) for option in options if isinstance(option, (str, list, tuple))), default=0)
    numbers = max((option for option in options if isinstance(option, int)), default=0)
    if name == "replace" and options and isinstance(value, str) and isinstance(options[0], str):
        budget.spend(size + value.count(options[0]) * added)
    elif name == "format":
        budget.spend(_printf_size(str(value), options if len(options) != 1 else options[0]))
    elif name == "sum":
        budget.spend(size * (len(value) if isinstance(value, (list, tuple)) and size > 32 * len(value) else 1))
    elif name == "indent":
        budget.spend(size + (str(value).count("\n") + 1) * max(added, numbers))
    elif name in ("join", "wordwrap", "tojson", "urlize"):
        budget.spend(size * (1 + added))
    elif name in ("center", "batch", "slice"):
        budget.spend(size + 8 * numbers)
    else:
        budget.spend(size)
