"""A stack for forwards, used again by the next run of the thread; and nothing is kept by one that waits."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import suppress
from contextvars import ContextVar, copy_context

import greenlet
import pytest
import torch

from cutaway.trace.stepper import ForwardGreenlet, StopForward, greenlet_for
from tests.trace.toy import Toy, opened

word = ContextVar("word", default="none")


class Thing:
    pass


@pytest.fixture
def toy() -> Toy:
    return Toy()


def used(run) -> ForwardGreenlet:
    worker = run._greenlet
    assert isinstance(worker, ForwardGreenlet)
    return worker


def forward_greenlets() -> int:
    gc.collect()
    return sum(issubclass(type(o), ForwardGreenlet) for o in gc.get_objects())


def test_runs_of_a_thread_share_a_stack_however_they_end(toy):
    with opened(toy) as run:
        toy.embeddings.save()
        first = used(run)
    with opened(toy) as run:
        toy.embeddings.save()
        assert used(run) is first
        run.finish()
        with opened(toy) as other:  # the first one's forward is over, so its stack is free
            toy.logits.save()
            assert used(other) is first
    with suppress(KeyError), opened(toy) as run:
        toy.embeddings.save()
        raise KeyError
    with opened(toy) as one, opened(toy) as two:
        one.embeddings.save()
        two.embeddings.save()
        assert used(one) is first
        assert used(two) is not first


def test_an_error_of_the_forward_ends_its_stack_alone(toy):
    handle = toy.head.register_forward_hook(lambda *_: 1 / 0)
    with opened(toy) as run:
        toy.embeddings.save()
        first = used(run)
        with pytest.raises(ZeroDivisionError):
            toy.logits.save()
        assert first.dead
    handle.remove()
    with opened(toy) as run:
        assert toy.logits.save().shape == (2, 4, 11)
        assert used(run) is not first


def test_one_that_waits_holds_on_to_nothing():
    def forward():
        thing = Thing()
        seen.append(weakref.ref(thing))
        greenlet.getcurrent().parent.switch()
        return thing

    for end in ("runs on", "is ended"):
        seen: list = []
        context = copy_context()
        context.run(word.set, "inside")
        own = greenlet_for(forward, context)
        own.parent = greenlet.getcurrent()
        own.switch()
        if end == "runs on":
            own.switch()
            assert isinstance(own.task.result, Thing)
        else:
            own.throw(StopForward)
            assert own.task.result is None
        assert own.task.over
        own.release()
        references = weakref.ref(own), weakref.ref(context)
        del context
        assert seen[0]() is None
        assert own.gr_context is None
        assert greenlet_for(lambda: None, None) is own
        del own
        assert references[0]() is None  # at once, without the collector: one that nobody has is no use


def test_it_does_not_keep_the_greenlet_it_was_used_from(toy):
    def inner():
        with opened(toy) as run:
            toy.embeddings.save()
            assert used(run).parent is greenlet.getcurrent()

    outer = greenlet.greenlet(inner)
    outer.switch()
    gone = weakref.ref(outer)
    del outer
    assert gone() is None


def test_threads_leave_none_behind(toy):
    def work():
        with opened(toy):
            shapes.append(toy.logits.save().shape)

    shapes: list[torch.Size] = []
    work()
    before = forward_greenlets()
    for _ in range(50):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(shapes) == 51
    assert forward_greenlets() <= before


def test_each_forward_has_the_context_of_its_own_run(toy):
    seen = []
    toy.head.register_forward_hook(lambda *_: seen.append(word.get()))
    for text in ("one", "two"):
        token = word.set(text)
        with opened(toy):
            toy.logits.save()
        word.reset(token)
    with opened(toy):
        toy.logits.save()
    assert seen == ["one", "two", "none"]


def deeper(levels: int, work):
    """`work`, called from so many calls of C and Python further down the stack."""
    return next(map(lambda _: deeper(levels - 1, work), [0])) if levels else work()  # noqa: C417 - a call from C


def test_a_stack_made_early_serves_from_deep_inside_torch(toy):
    """What the body's own stack holds there, torch's engine included, is as it was when the forward has run."""
    with opened(toy):
        want = toy.logits.save()
        first = toy.layers  # a stack is made here, at the top
    assert first is toy.layers
    seen = []

    def read():
        with opened(toy):
            _ = toy.layers[0].layer_output
            seen.append(toy.logits.save())
        return 1

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            read()
            return x * 2

        @staticmethod
        def backward(ctx, *grads):
            read()
            return grads[0] * 2

    weight = torch.ones(300, 300, requires_grad=True)
    middle = Double.apply(weight @ weight)
    middle.register_hook(lambda grad: deeper(40, read) and grad * 3)
    (middle @ weight).sum().backward()
    plain = torch.ones(300, 300, requires_grad=True)
    inner = (plain @ plain) * 2
    inner.register_hook(lambda grad: grad * 3)
    (inner @ plain).sum().backward()
    assert torch.equal(weight.grad, plain.grad)
    assert len(seen) == 3
    assert all(torch.equal(one, want) for one in seen)
