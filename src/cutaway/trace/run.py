"""`Run`: one forward, stepped by the reads of a body.

The forward runs in a greenlet. A read switches to it until it passes the value; there it stands while the body goes on,
and the next read takes it further. It works on any tree of `Named` modules and any function that calls it. It does
not know what the model is, what it is given, or what comes of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any

from greenlet import getcurrent
from torch import nn

from cutaway.errors import InputError, NoRunError, TraceError
from cutaway.named import Value, names_of
from cutaway.observe import observer, reader
from cutaway.trace import bound as proxy
from cutaway.trace.address_index import contains, known
from cutaway.trace.addresses import find
from cutaway.trace.edits import Edits, EditSpec, serve
from cutaway.trace.handles import checked, hand
from cutaway.trace.lane import Ended, Lane, lane
from cutaway.trace.pause import Key, Name, Stand, failed, foreign, not_reached, out_of_order
from cutaway.trace.reads import Asked, Reduce, RunValues
from cutaway.trace.stepper import Cursor
from cutaway.trace.torch_state import TorchState


class Run:
    """An open forward: reads run it up to the value, assignments replace the value, leaving the block drops the rest.

    - `root`: the tree; its parts and values are attributes of the run too (``run.layers[3].layer_output``).
    - `forward`: the call to be stepped, without arguments.
    - `grad`: whether the forward records gradients.
    - `anytime`: values that come off the inputs, by address: a tensor, or a function that makes it when it is read.
    - `edits`: changes by address or pattern, made before the body sees the value.
    - `attributes`: what else the run is to carry, by name.

    `result` is what the forward returned, once it has run to its end.
    """

    def __init__(
        self,
        root: nn.Module,
        forward: Callable[[], Any],
        *,
        grad: bool = False,
        input_values: Mapping[str, Any] | None = None,
        edits: EditSpec | Edits | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.root, self.grad, self.result = root, grad, None
        self._forward: Callable[[], Any] | None = forward
        self._given, self._attributes = dict(input_values or {}), dict(attributes or {})
        self._anytime: dict[Key, Any] | None = None
        self._at = Cursor(edits if isinstance(edits, Edits) else Edits.of(root, edits))
        self._known: Container[int] = ()
        self._greenlet: Lane | None = None
        self._state: TorchState | None = None
        self._context: Context | None = None
        self._thread = 0
        self._status = "new"  # then open, ended, failed: …, closed

    # -- opening and leaving

    def __enter__(self) -> Run:
        self.open()
        return self

    def open(self, state: TorchState | None = None) -> None:
        """Opens the run: from here on it is the innermost of this context. The forward starts at the first read.

        The forward has the torch state of this moment, or `state` where one is given.
        """
        if self._status != "new":
            raise NoRunError("A run can be opened once; make another one for another forward.")
        self._status, self._thread, self._known = "open", get_ident(), known(self.root)
        self._state = state or TorchState().forward(grad=self.grad)
        self._context = copy_context()
        self._context.run(observer.set, self._at)
        self._context.run(reader.set, None)
        reader.set(_reader((*_open_runs(), self)))

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, RuntimeError) and not self.grad and "does not require grad" in str(error):
            error.add_note("This run records no gradients; open it with `grad=True`.")
        self.close()

    def close(self) -> None:
        """Drops the rest of the forward. What was read stays; `result` too."""
        if self._status in ("new", "closed"):
            self._status = "closed"
            return
        self._check_thread()
        self._status = "closed"
        reader.set(_reader(tuple(run for run in _open_runs() if run.is_open)))
        running, self._greenlet = self._greenlet, None
        self._at.close()  # before the forward is ended: one that catches its end must not stand at the place again
        try:
            if running and self._state is not None:
                running.parent = getcurrent()
                self._state.run(partial(running.throw, Ended))
                if running.work.over:
                    running.release()
        finally:
            self._forward = self._state = self._context = self._anytime = None
            self._known = ()
            self._given.clear()

    @property
    def is_open(self) -> bool:
        """Whether values can still be asked for."""
        return self._status not in ("new", "closed")

    def finish(self) -> Any:
        """Runs the forward to its end, and returns what it returned."""
        self._check_open()
        if self._status == "open":
            self._at.ask_for_the_end()
            self._resume()
        if self._status != "ended":
            raise failed(self._status)
        return self.result

    # -- what the body asks

    def read(self, module: nn.Module, value: Value) -> Any:
        """The value as it stands, the forward run up to it."""
        if self._status != "open" or get_ident() != self._thread:
            self._check_open()
        if value.from_inputs:
            key = (module, value.name)
            found = self._off_inputs()
            if key in found:
                if callable(found[key]):
                    found[key] = hand(found[key](), recording=False)
                return found[key]
        stand = self._reach(module, value)
        if stand.handed is None and self._state is not None:
            self._state.run(stand.hand)
        return stand.read(value)

    def collect(self, read: str | Sequence[str], *, reduce: Reduce | Mapping[str, Reduce] | None = None) -> RunValues:
        """The values at the addresses or patterns in `read`, in one go: the forward stops at the last of them alone.

        For many values that are only read it is much the cheaper way. What comes is as of `model.run`: by address, in
        any order, the forward's own tensors; of each only what `reduce` returns, a function or one by address or
        pattern. The body goes on with what is behind the last of them.

        Raises, before the forward moves, `UnknownValue`, `Unavailable`, and `OutOfOrderError` when a value has passed;
        `NotReachedError` when the forward ends without an address, or without anything of a pattern.
        """
        self._check_open()
        asked, at = Asked(self.root, read, reduce, self._given), self._at
        if not len(asked):
            raise InputError('`run.collect` takes an address or pattern, or several: `["layers.*.layer_output"]`.')
        if at.stand is not None and at.stand.key in asked.pending and self._state is not None:
            asked.take(at.stand.key, self._state.run(at.stand.settle))
        behind = at.behind(asked)
        if behind is None and asked.pending and self._status == "open":
            at.ask_for_all(asked)
            self._resume()
            behind = None if at.stand is None else at.behind(asked)  # one that its module was to make, and did not
        if behind is not None:
            raise out_of_order(self.root, (behind.module, behind.value), at.stand, at.notes)
        if asked.pending and self._status not in ("open", "ended"):
            raise failed(self._status)
        return asked.values()

    def write(self, module: nn.Module, value: Value, new: Any) -> None:
        """Puts `new` in the value's place for the rest of the forward; what was read there itself changes nothing."""
        self._check_open()
        value.check_writable()
        stand = self._reach(module, value)
        if stand.handed is not None and stand.read(value) is new:
            return
        place = Name(self.root, module, value.name)
        new = checked(place, serve(value, stand.raw), new, value.axes)
        if self._state is not None:
            self._state.run(partial(stand.assign, value, new))

    def has(self, module: nn.Module) -> bool:
        """Whether `module` is part of the tree that runs here."""
        return self.is_open and contains(self.root, module)

    def _off_inputs(self) -> dict[Key, Any]:
        """The anytime values by module and name; tensors are handed out at once, functions when they are asked."""
        if self._anytime is None:
            self._anytime = {}
            for address, given in self._given.items():
                for place in find(self.root, address):
                    self._anytime[place.module, place.value.name] = (
                        given if callable(given) else hand(given, recording=False)
                    )
        return self._anytime

    def _reach(self, module: nn.Module, value: Value) -> Stand:
        """The stand at a value, the forward run up to it; raises when it cannot get there."""
        at = self._at
        stand = at.stand
        if stand is not None and stand.module is module and stand.name == value.key:
            return stand
        if id(module) not in self._known:
            if not contains(self.root, module):
                raise foreign(module, value)
            self._known = known(self.root)
        if not at.ask(module, value):
            raise out_of_order(self.root, (module, value), stand, at.notes)
        if self._status != "open":
            raise not_reached(self.root, module, value) if self._status == "ended" else failed(self._status)
        self._resume()
        stand = at.stand
        if stand is None:
            raise not_reached(self.root, module, value)
        if stand.name != value.key:  # its module has run without it
            raise out_of_order(self.root, (module, value), stand, at.notes)
        return stand

    def _resume(self) -> None:
        """Lets the forward run to the wanted place, or to its end."""
        forward, state = self._greenlet, self._state
        assert state is not None
        current = getcurrent()
        if forward is None:
            assert self._forward is not None
            forward = self._greenlet = self._at.forward = lane(self._forward, self._context)
        elif forward is current:
            raise TraceError("The forward of a run cannot ask for its own values; ask from the body of the trace.")
        if forward.parent is not current:
            forward.parent = current
        started = self._at.stand
        try:
            state.run(forward.switch)
        except BaseException as error:
            self._fail(error, started)
            if isinstance(error, AttributeError):  # would be taken for a missing attribute of the module that was read
                raise TraceError(f"The forward ended with an error: {error!r}") from error
            raise
        if forward.work.over:
            self._status, self.result, self._at.stand, self._greenlet = "ended", forward.work.result, None, None
            forward.release()

    def _fail(self, error: BaseException, started: Stand | None) -> None:
        self._status, self._at.stand, self._greenlet = f"failed: {error!r}", None, None
        since = "its start" if started is None else str(Name(self.root, *started.key))
        asked = "the end" if self._at.aim is None else str(Name(self.root, *self._at.aim))
        error.add_note(f"Raised by the forward of a trace, on its way from {since} to {asked}.")

    # -- the tree as this run sees it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._attributes:
            return self._attributes[name]
        return proxy.get(self, self.root, name)

    def __setattr__(self, name: str, new: Any) -> None:
        if name.startswith("_") or name in self._OWN:
            object.__setattr__(self, name, new)
        else:
            proxy.put(self, self.root, name, new)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._attributes, *names_of(self.root)})

    _OWN = frozenset({"root", "grad", "result"})

    def __repr__(self) -> str:
        return f"<Run of {type(self.root).__name__}: {self._status}{self._where(', stands at ')}>"

    # -- errors

    def _where(self, before: str) -> str:
        return "" if self._at.stand is None else f"{before}{Name(self.root, *self._at.stand.key)}"

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise TraceError(
                "A run belongs to the thread that opened it, and another thread asked here. Open a run in each thread."
            )

    def _check_open(self) -> None:
        if self._status == "open" and get_ident() == self._thread:
            return
        if not self.is_open:
            raise NoRunError(
                f"This run is {'closed' if self._status == 'closed' else 'not open yet'}. Values are read inside its "
                f"`with` block; keep one with `.save()` or by its name, and trace again for another."
            )
        self._check_thread()


class OpenRuns:
    """Several runs that are open in a context, outermost first: a value is asked of the innermost with its module."""

    def __init__(self, runs: tuple[Run, ...]) -> None:
        self.runs = runs

    def read(self, module: nn.Module, value: Value) -> Any:
        """The value as it stands in that run."""
        return self._of(module).read(module, value)

    def write(self, module: nn.Module, value: Value, new: Any) -> None:
        """Assigns the value in that run."""
        self._of(module).write(module, value, new)

    def has(self, module: nn.Module) -> bool:
        """Whether `module` is part of a tree that runs here."""
        return any(run.has(module) for run in self.runs)

    def _of(self, module: nn.Module) -> Run:
        alive = [run for run in reversed(self.runs) if run.is_open] or [self.runs[-1]]  # which says that it is closed
        if len({id(run.root) for run in alive}) == 1:
            return alive[0]
        return next((run for run in alive if contains(run.root, module)), alive[0])


def _reader(runs: tuple[Run, ...]) -> Run | OpenRuns | None:
    """What answers reads in a context with these runs."""
    return None if not runs else runs[0] if len(runs) == 1 else OpenRuns(runs)


def _open_runs() -> tuple[Run, ...]:
    """The runs that were opened in this context and not left, outermost first."""
    found = reader.get()
    return found.runs if isinstance(found, OpenRuns) else (found,) if isinstance(found, Run) else ()
