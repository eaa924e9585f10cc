"""Bodies of every form: functions, loops, generators, threads, tasks, other greenlets; and what users do to modules."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import io
import pdb
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import greenlet
import pytest
import torch

from cutaway.errors import NoRunError, NotReachedError, TraceError
from cutaway.trace.run import Run, run_values
from tests.trace.toy import IDS, ROWS, Toy, opened


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def want(toy) -> torch.Tensor:
    with torch.no_grad():
        return toy(IDS, ROWS)


def test_functions_loops_and_comprehensions(toy, want):
    def read(block):
        return block.layer_output.save()

    with opened(toy):
        outputs = list(map(read, toy.layers))
        total = sum(v.sum() for v in [toy.logits])
    assert len({v.data_ptr() for v in outputs}) == 3
    torch.testing.assert_close(total.save(), want.sum())


def test_a_generator_that_holds_a_run(toy, want):
    def outputs():
        with opened(toy):
            for block in toy.layers:
                yield block.layer_output.save()
            yield toy.logits.save()

    assert torch.equal(list(outputs())[-1], want)
    half = outputs()
    next(half)
    half.close()
    with pytest.raises(NoRunError):
        toy.logits.save()


def test_one_run_a_thread(toy):
    def work(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(0, 11, (2, 4), generator=torch.Generator().manual_seed(seed))
        with opened(toy, ids=ids):
            for block in toy.layers:
                block.layer_output.save()
            got = toy.logits.save()
        with torch.no_grad():
            return got, toy(ids, ROWS)

    with ThreadPoolExecutor(8) as pool:
        for got, want in pool.map(work, range(64)):
            assert torch.equal(got, want)


def test_a_run_belongs_to_its_thread(toy, want):
    errors = []

    def other(run: Run) -> None:
        for ask in (lambda: run.logits, lambda: run.close(), lambda: toy.logits):
            try:
                ask()
            except TraceError as error:
                errors.append(error)

    with opened(toy) as run:
        toy.layers[0].layer_output.save()
        thread = threading.Thread(target=other, args=(run,))
        thread.start()
        thread.join()
        copied = threading.Thread(target=contextvars.copy_context().run, args=(other, run))
        copied.start()
        copied.join()
        assert torch.equal(toy.logits, want)
    assert len(errors) == 6
    assert isinstance(errors[2], NoRunError)
    assert all("thread" in str(errors[i]) for i in (0, 1, 3, 4, 5))


def test_tasks(toy):
    async def work(seed: int) -> bool:
        ids = torch.randint(0, 11, (2, 4), generator=torch.Generator().manual_seed(seed))
        with opened(toy, ids=ids):
            for block in toy.layers:
                block.layer_output.save()
                await asyncio.sleep(0)
            got = toy.logits.save()
        with torch.no_grad():
            return torch.equal(got, toy(ids, ROWS))

    async def main() -> list[bool]:
        return await asyncio.gather(*(work(seed) for seed in range(16)))

    assert all(asyncio.run(main()))


def test_a_task_made_in_a_body_outlives_the_run(toy):
    async def late(gate: asyncio.Event) -> str:
        await gate.wait()
        try:
            toy.logits.save()
        except NoRunError as error:
            return str(error)
        return ""

    async def main() -> str:
        gate = asyncio.Event()
        with opened(toy):
            task = asyncio.create_task(late(gate))
            await asyncio.sleep(0)
        gate.set()
        return await task

    assert "This run is closed" in asyncio.run(main())


def test_a_body_that_moves_between_greenlets(toy, want):
    got = []
    with opened(toy) as run:
        for block in run.layers:
            greenlet.greenlet(lambda b=block: got.append(b.layer_output.save())).switch()
        inner = greenlet.greenlet(lambda: got.append(toy.head.input.save()))
        inner.gr_context = contextvars.copy_context()
        inner.switch()
        assert torch.equal(toy.logits, want)
    assert [tuple(v.shape) for v in got] == [(2, 4, 6)] * 4


def test_a_run_inside_a_forward(toy, want):
    inner = []

    def hook(module, args, output):
        with opened(other):
            inner.append(other.logits.save())
        with pytest.raises(NoRunError):
            toy.logits  # noqa: B018

    other = Toy(seed=1)
    toy.layers[1].register_forward_hook(hook)
    with opened(toy) as run:
        assert torch.equal(toy.logits, want)
        assert run.is_open
    with torch.no_grad():
        assert torch.equal(inner[0], other(IDS, ROWS))


def test_a_forward_cannot_ask_its_own_run(toy):
    toy.layers[1].register_forward_hook(lambda *a: run.logits)
    with opened(toy) as run, pytest.raises(TraceError, match="cannot read its own values"):
        toy.logits.save()


@pytest.fixture
def tracer():
    """Puts back what traces this thread: a debugger that lets go takes coverage's away."""
    before = sys.gettrace()
    yield
    sys.settrace(before)


@pytest.mark.usefixtures("tracer")
def test_a_debugger_stops_in_the_body(toy):
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p tuple(toy.layers[2].layer_output.shape)\nc\n"), stdout=out, nosigint=True)
    debugger.use_rawinput = False
    with opened(toy):
        toy.layers[0].layer_output.save()
        debugger.set_trace()
        logits = toy.logits.save()
    assert "(2, 4, 6)" in out.getvalue()
    assert logits.shape == (2, 4, 11)


def test_context_variables_of_the_caller_reach_the_forward(toy):
    name = contextvars.ContextVar("name", default="")
    got = []
    toy.layers[0].register_forward_hook(lambda *a: got.append(name.get()))
    name.set("outer")
    with opened(toy):
        name.set("body")
        toy.logits.save()
        assert name.get() == "body"
    assert got == ["outer"]


def test_hooks_and_state_dict_keep_working(toy, want):
    before = list(toy.state_dict())
    seen = []
    toy.layers[1].register_forward_hook(lambda m, a, out: seen.append(out))
    toy.layers[1].mlp.register_forward_pre_hook(lambda m, args: (args[0] * 1,))
    with opened(toy):
        out = toy.layers[1].output.save()
        assert torch.equal(toy.logits, want)
    assert torch.equal(seen[0], out)
    assert list(toy.state_dict()) == before


def test_a_part_compiled_in_place_runs_eagerly_when_traced(toy, want):
    compiled = []

    def backend(graph, example):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    for block in toy.decoder.blocks:
        block.compile(backend=backend, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(toy(IDS, ROWS), want)
    assert compiled
    with opened(toy):
        queries = toy.layers[1].attn.queries.save()
        assert torch.equal(toy.logits, want)
    assert queries.shape == (2, 4, 6)
    with torch.no_grad():
        torch.testing.assert_close(toy(IDS, ROWS), want)
    torch._dynamo.reset()


def test_a_wrapped_part_says_why_its_values_are_missing(toy, want):
    torch._dynamo.reset()
    toy.decoder.blocks[1] = torch.compile(toy.decoder.blocks[1], backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(toy(IDS, ROWS), want)
    with opened(toy):
        torch.testing.assert_close(toy.layers[2].layer_output.save().shape, (2, 4, 6))
    with opened(toy), pytest.raises(NotReachedError, match=r"torch\.compile"):
        toy.layers[1].layer_output.save()
    torch._dynamo.reset()


def living() -> tuple[int, int]:
    gc.collect()
    objects = gc.get_objects()
    return (
        sum(issubclass(type(o), torch.Tensor) for o in objects),
        sum(issubclass(type(o), greenlet.greenlet | Run) for o in objects),
    )


def test_nothing_leaks(toy):
    def trace(number: int) -> None:
        toy.requires_grad_(number % 5 > 0)
        try:
            with opened(toy, grad=number % 4 > 1):
                toy.layers[0].layer_output[:] *= 2
                toy.layers[1].layer_output = toy.layers[1].layer_output * 0
                if number % 3 == 0:
                    toy.layers[0].layer_output.save()
                if number % 2:
                    raise KeyError(number)
        except (KeyError, TraceError):
            pass
        with opened(toy, rows=None) as one, opened(toy) as two:
            one.layers[0].layer_output.save()
            two.logits.save()
        run_values(toy, lambda: toy(IDS, ROWS), read=["layers.0.layer_output"])

    for number in range(100):
        trace(number)
    before, memory = living(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(2000):
        trace(number)
    tensors, greenlets = living()
    assert tensors <= before[0]
    assert greenlets <= before[1]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 20_000  # kilobytes
