"""`Run`: one forward, stepped by the reads of a trace body; and `run_values`, the same forward read by address.

The forward runs in a greenlet. A read switches to it until it has computed the value; there it is paused while the body
goes on, and the next read takes it further. A run works on any tree of `Named` modules and any function that calls it.
It does not know what the model is, what its inputs are, or what becomes of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any

from greenlet import getcurrent
from torch import Tensor, nn

from cutaway.errors import InputError, NoRunError, TraceError
from cutaway.named import Value, names_of
from cutaway.observe import observer, reader
from cutaway.trace import bound
from cutaway.trace.address_index import contains, known_modules
from cutaway.trace.addresses import find
from cutaway.trace.edits import Edits, EditSpec, served_value
from cutaway.trace.handles import tensors_in, validate_replacement, wrap
from cutaway.trace.late_edits import LateEdits, late_edit
from cutaway.trace.open_runs import reader_of, runs_of
from cutaway.trace.pause import Key, LazyAddress, PausePoint, not_in_this_run, not_reached, out_of_order, run_failed
from cutaway.trace.reads import ReadRequest, Reduce, RunValues
from cutaway.trace.stepper import ForwardGreenlet, Stepper, StopForward, greenlet_for, strip_cushion
from cutaway.trace.torch_state import TorchState


class Run:
    """An open forward: a read runs it up to the value, an assignment replaces the value, leaving it drops the rest.

    - `root`: the tree; its parts and values are attributes of the run too (``run.layers[3].layer_output``).
    - `forward`: the call to be stepped, without arguments.
    - `grad`: whether the forward records gradients.
    - `input_values`: values that come from the inputs, by address: a tensor, or a function that makes it on request.
    - `edits`: changes by address or pattern, made before the body sees the value.
    - `attributes`: further attributes of the run, by name.

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
        self._input_values, self._attributes = dict(input_values or {}), dict(attributes or {})
        self._input_handles: dict[Key, Any] | None = None
        self._edits = edits if isinstance(edits, Edits) else Edits.of(root, edits)
        self._late_edits = LateEdits()
        self._stepper = Stepper(self._edits, self._late_edits)
        self._known: Container[int] = ()
        self._greenlet: ForwardGreenlet | None = None
        self._state: TorchState | None = None
        self._context: Context | None = None
        self._thread = 0
        self._status = "new"  # then open, ended, failed: …, closed

    # -- opening and leaving

    def __enter__(self) -> Run:
        self.open()
        return self

    def open(self, state: TorchState | None = None) -> None:
        """Open the run: from here on it is the innermost of this context. The forward starts at the first read.

        The forward has the torch state of this moment, or `state` where one is passed.
        """
        if self._status != "new":
            raise NoRunError("A run can be opened once. Make another one for another forward.")
        self._status, self._thread, self._known = "open", get_ident(), known_modules(self.root)
        self._state = state or TorchState().for_forward(grad=self.grad)
        self._context = copy_context()
        self._context.run(observer.set, self._stepper)
        self._context.run(reader.set, None)
        reader.set(reader_of((*runs_of(reader.get()), self)))

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, RuntimeError) and not self.grad and "does not require grad" in str(error):
            error.add_note("This run records no gradients; open it with `grad=True`.")
        if self.is_open and get_ident() != self._thread:  # its forward cannot be ended here, but no read may reach it
            self._status = "closed"
            self._drop()
            self._check_thread()
        self.close(leaves_by_error=error is not None)

    def close(self, *, leaves_by_error: bool = False) -> None:
        """Drop the rest of the forward. What was read stays; `result` too.

        Raises `EditError` for a late in-place edit, unless an error is on its way already.
        """
        if self._status in ("new", "closed"):
            self._status = "closed"
            return
        self._check_thread()
        was, moment = self._status, self._moment()
        self._status = "closed"
        entry = None if was.startswith("failed") else self._late_edits.first(self._editable_now())
        reader.set(reader_of(tuple(run for run in runs_of(reader.get()) if run.is_open)))
        worker, self._greenlet = self._greenlet, None
        self._stepper.close()  # before the forward is ended: one that catches StopForward must not pause again
        try:
            if worker and self._state is not None:
                worker.parent = getcurrent()
                self._state.run(partial(worker.throw, StopForward))
                if worker.task.over:
                    worker.release()
        finally:
            self._drop()
        if entry is not None and not leaves_by_error:
            raise late_edit(entry, str(LazyAddress(self.root, entry.module, entry.name)), moment)

    def _drop(self) -> None:
        """Let go of the forward and of all that it was made of."""
        self._forward = self._greenlet = self._state = self._context = self._input_handles = None
        self._known = ()
        self._input_values.clear()
        self._late_edits.clear()

    @property
    def is_open(self) -> bool:
        """Whether values can still be read."""
        return self._status not in ("new", "closed")

    def finish(self) -> Any:
        """Run the forward to its end, and return what it returned."""
        self._check_open()
        if self._status == "open":
            self._stepper.aim_at_end()
            self._resume()
        if self._status != "ended":
            raise run_failed(self._status)
        return self.result

    # -- reads and assignments

    def read(self, module: nn.Module, value: Value) -> Any:
        """Run the forward up to the value, and return it."""
        if self._status != "open" or get_ident() != self._thread:
            self._check_open()
        if value.from_inputs:
            key = (module, value.name)
            handles = self._handles_of_inputs()
            if key in handles:
                if callable(handles[key]):
                    handles[key] = wrap(handles[key](), recording=False)
                self._late_edits.add(module, value, tensors_in(handles[key]))
                return handles[key]
        pause = self._reach(module, value)
        if pause.handle is None and self._state is not None:
            self._state.run(pause.make_handle)
        return pause.read(value)

    def collect(self, read: str | Sequence[str], *, reduce: Reduce | Mapping[str, Reduce] | None = None) -> RunValues:
        """The values at the addresses or patterns in `read`, in one go: the forward pauses only at the last of them.

        Where many values are only read, this is much cheaper than a read each. The result is that of `model.run`: by
        address, in any order, the forward's own tensors; of each only what `reduce` returns, a function or one by
        address or pattern. The body goes on with what comes after the last of them.

        Raises, before the forward moves, `UnknownValue`, `Unavailable`, and `OutOfOrderError` when a value has passed;
        `NotReachedError` when the forward ends without an address, or without anything of a pattern.
        """
        request = ReadRequest(self.root, read, reduce, self._input_values, stays_open=True)
        if not len(request):
            raise InputError('`run.collect` takes an address or pattern, or several: `["layers.*.layer_output"]`.')
        self._collect(request)
        pause = self._stepper.pause
        for ref, tensors, recording in request.recorded:
            if pause is not None and ref.key == pause.key and ref.value.writable:
                pause.editable += tensors
            else:
                self._late_edits.add(ref.module, ref.value, tensors, recording=recording)
        return request.values()

    def _collect(self, request: ReadRequest) -> None:
        """Run the forward until it has recorded every value of the request, or has ended."""
        self._check_open()
        stepper = self._stepper
        if stepper.pause is not None and stepper.pause.key in request.pending and self._state is not None:
            request.record(stepper.pause.key, self._state.run(stepper.pause.resolve))
        passed = stepper.first_passed(request)
        if passed is None and request.pending and self._status == "open":
            stepper.aim_at_all(request)
            self._resume()
            if stepper.pause is not None:  # at the last one, or where a module ran without a computed value
                passed = stepper.first_passed(request)
        if passed is not None:
            raise out_of_order(self.root, (passed.module, passed.value), stepper.pause, stepper.history)
        if request.pending and self._status not in ("open", "ended"):
            raise run_failed(self._status)

    def write(self, module: nn.Module, value: Value, new: Any) -> None:
        """Replace the value for the rest of the forward. Assigning what was just read changes nothing."""
        self._check_open()
        value.check_writable()
        pause = self._reach(module, value)
        if pause.handle is not None and pause.read(value) is new:
            return
        address = LazyAddress(self.root, module, value.name)
        new = validate_replacement(address, served_value(value, pause.raw), new, value.axes)
        if self._state is not None:
            kept = [id(tensor) for tensor in tensors_in(new)]  # of the other tensors here, edits now come too late
            replaced = [tensor for tensor in self._editable_now() if id(tensor) not in kept]
            self._late_edits.add(pause.module, pause.value, replaced, recording=self._state.grad)
            self._state.run(partial(pause.assign, value, new))

    def _editable_now(self) -> list[Tensor]:
        pause = self._stepper.pause
        return [] if pause is None else pause.editable_tensors()

    def _check_late_edits(self) -> None:
        """Raise for an edit that came too late. The numbers are not to be trusted then: the run fails."""
        entry = self._late_edits.first(self._editable_now(), everything=False)
        if entry is not None:
            error = late_edit(entry, str(LazyAddress(self.root, entry.module, entry.name)), self._moment())
            self._status = f"failed: {error!r}"
            raise error

    def _moment(self) -> str:
        if self._status == "ended":
            return "The forward had ended."
        if self._stepper.pause is None:
            return "The forward had not begun."
        return f"The forward stood at {LazyAddress(self.root, *self._stepper.pause.key)}."

    def contains(self, module: nn.Module) -> bool:
        """Whether `module` is part of the tree that runs here."""
        return self.is_open and contains(self.root, module)

    def _handles_of_inputs(self) -> dict[Key, Any]:
        """What the body holds of the values from the inputs; a function stays one until it is read."""
        if self._input_handles is None:
            self._input_handles = {}
            for address, value in self._input_values.items():
                for ref in find(self.root, address):
                    self._input_handles[ref.module, ref.value.name] = (
                        value if callable(value) else wrap(value, recording=False)
                    )
        return self._input_handles

    def _reach(self, module: nn.Module, value: Value) -> PausePoint:
        """Run the forward up to a value; return the pause there. Raises when it cannot get there."""
        stepper = self._stepper
        pause = stepper.pause
        if pause is not None and pause.module is module and pause.name == value.key:
            return pause
        if id(module) not in self._known:
            if not contains(self.root, module):
                raise not_in_this_run(module, value)
            self._known = known_modules(self.root)
        if not stepper.aim_at(module, value):
            raise out_of_order(self.root, (module, value), pause, stepper.history)
        if self._status != "open":
            raise not_reached(self.root, module, value) if self._status == "ended" else run_failed(self._status)
        try:
            self._resume()
        except AttributeError as error:  # Python would take it for a missing attribute of the module that is read
            raise TraceError(f"The forward ended with an error: {error!r}") from error
        pause = stepper.pause
        if pause is None:
            raise not_reached(self.root, module, value)
        if pause.name != value.key:  # its module has run without computing it
            raise out_of_order(self.root, (module, value), pause, stepper.history)
        return pause

    def _resume(self) -> None:
        """Let the forward run to the value that is read, or to its end."""
        worker, state = self._greenlet, self._state
        assert state is not None
        current = getcurrent()
        if worker is None:
            assert self._forward is not None
            worker = self._greenlet = self._stepper.forward = greenlet_for(self._forward, self._context)
        elif worker is current:
            raise TraceError("A forward cannot read its own values. Read them in the body of the trace.")
        if worker.parent is not current:
            worker.parent = current
        self._check_late_edits()
        start = self._stepper.pause
        if start is not None:
            self._late_edits.add(start.module, start.value, self._editable_now(), recording=state.grad)
        try:
            state.run(worker.switch)
        except BaseException as error:
            strip_cushion(error)
            self._fail(error, start)
            raise
        self._late_edits.forward_has_run()
        pause = self._stepper.pause
        if pause is not None and not pause.value.writable:
            self._late_edits.add(pause.module, pause.value, tensors_in(pause.handle), recording=state.grad)
        if worker.task.over:
            self._status, self.result, self._stepper.pause, self._greenlet = "ended", worker.task.result, None, None
            worker.release()

    def _fail(self, error: BaseException, start: PausePoint | None) -> None:
        self._status, self._stepper.pause, self._greenlet = f"failed: {error!r}", None, None
        since = "its start" if start is None else str(LazyAddress(self.root, *start.key))
        aim = self._stepper.aim
        until = "the end" if aim is None else str(LazyAddress(self.root, *aim))
        error.add_note(f"Raised by the forward of a trace, on its way from {since} to {until}.")

    # -- the tree as this run sees it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._attributes:
            return self._attributes[name]
        return bound.get(self, self.root, name)

    def __setattr__(self, name: str, new: Any) -> None:
        if name.startswith("_") or name in self._OWN:
            object.__setattr__(self, name, new)
        else:
            bound.put_back(self, self.root, name, new)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._attributes, *names_of(self.root)})

    _OWN = frozenset({"root", "grad", "result"})

    def __repr__(self) -> str:
        return f"<Run of {type(self.root).__name__}: {self._status}{self._position(', stands at ')}>"

    # -- errors

    def _position(self, before: str) -> str:
        pause = self._stepper.pause
        return "" if pause is None else f"{before}{LazyAddress(self.root, *pause.key)}"

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            raise TraceError(
                "A run belongs to the thread that opened it; got a read from another thread. Open a run in each thread."
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


def run_values(
    root: nn.Module,
    forward: Callable[[], Any],
    *,
    read: str | Sequence[str] = (),
    edit: EditSpec | None = None,
    reduce: Reduce | Mapping[str, Reduce] | None = None,
    input_values: Mapping[str, Any] | None = None,
    grad: bool = False,
    to_end: bool = False,
) -> RunValues:
    """Run a forward once and return the values at the addresses or patterns in `read`, in any order.

    - `edit`: by address or pattern, a function of the value (which returns the replacement, or None if it changed its
      argument in place) or a tensor. An edit is made before the same value is read. One whose value the forward never
      computes raises `NotReachedError`, as a read does.
    - `reduce`: a function of the value, or one by address or pattern: only what it returns is kept, so that many large
      values fit in memory.
    - `input_values`: values that come from the inputs, by address: a tensor or a function that makes it.
    - `grad`: whether the forward records gradients.
    - `to_end`: run the forward to its end, for its `result`; otherwise it stops after the last value, and it runs to
      its end when nothing is read.

    Raises `UnknownValue` and `Unavailable` before compute, and `NotReachedError` if the forward ends without a value
    that was named, or without every value that a pattern names.
    """
    request = ReadRequest(root, read, reduce, input_values)
    run = Run(root, forward, grad=grad, edits=edit)
    if request.pending or to_end or not len(request):
        with run:
            run._collect(request)
            if to_end or not len(request) or run._edits.first_unapplied() is not None:
                run.finish()
            if (unapplied := run._edits.first_unapplied()) is not None:
                raise not_reached(root, unapplied.module, unapplied.value)
    return request.values(run.result)
