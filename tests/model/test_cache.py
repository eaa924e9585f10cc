"""The cache alone: where tokens are written, what an edit reaches, growth, cropping, rows, gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import InputError
from cutaway.model.cache import Cache, SharedPast

HEADS, DIM = 2, 4


def tokens(count, batch=3, seed=0):
    made = torch.Generator().manual_seed(seed)
    shape = (batch, HEADS, count, DIM)
    return torch.randn(shape, generator=made), torch.randn(shape, generator=made)


def filled(parts, layers=2, capacity=4, batch=3):
    """A cache that has read these numbers of tokens, and what it should hold per layer."""
    cache, resident = Cache(layers, capacity), [[] for _ in range(layers)]
    with torch.no_grad():
        for step, count in enumerate(parts):
            for layer in range(layers):
                keys, values = tokens(count, batch, seed=100 * step + layer)
                cache.update(layer, keys, values)
                resident[layer].append((keys, values))
            cache.advance(count)
    return cache, [tuple(torch.cat(kind, 2) for kind in zip(*layer, strict=True)) for layer in resident]


def stored(cache, layer):
    """What a layer holds, seen by an update with no new tokens."""
    with torch.no_grad():
        none = torch.empty(cache.batch, HEADS, 0, DIM)
        return cache.update(layer, none, none)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_any_split_and_any_capacity_hold_the_same_tokens(parts, capacity):
    cache, resident = filled(parts, capacity=capacity)
    assert cache.length == sum(parts)
    assert cache.capacity >= cache.length
    for layer, (keys, values) in enumerate(resident):
        got_keys, got_values = stored(cache, layer)
        assert torch.equal(got_keys, keys)
        assert torch.equal(got_values, values)


def test_an_edit_in_place_of_what_update_returns_stays():
    cache = Cache(1, 8)
    with torch.no_grad():
        keys, values = cache.update(0, *tokens(3))
        keys[:, :, 1] = 7.0
        values[0] = -1.0
        cache.advance(3)
        later_keys, later_values = cache.update(0, *tokens(1, seed=5))
    assert (later_keys[:, :, 1] == 7.0).all()
    assert (later_values[0, :, :3] == -1.0).all()
    assert later_keys.shape[2] == 4


@pytest.mark.parametrize("gradients", [False, True])
def test_replace_puts_other_keys_in_place_for_good(gradients):
    cache = Cache(1, 8)
    with torch.set_grad_enabled(gradients):
        keys, values = cache.update(0, *tokens(3))
        cache.replace(0, keys * 2, values)
        cache.advance(3)
        later_keys, later_values = cache.update(0, *tokens(1, seed=5))
        cache.replace(0, later_keys, later_values)
    assert torch.equal(later_keys[:, :, :3], 2 * tokens(3)[0])
    assert torch.equal(later_values[:, :, :3], tokens(3)[1])


def test_update_does_not_grow_within_capacity():
    cache = Cache(1, 8)
    with torch.no_grad():
        first, _ = cache.update(0, *tokens(3))
        cache.advance(3)
        second, _ = cache.update(0, *tokens(5))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert cache.capacity == 8


def test_tensors_are_copied_in():
    cache = Cache(1, 8)
    keys, values = tokens(3)
    with torch.no_grad():
        cache.update(0, keys, values)
        cache.advance(3)
        before = stored(cache, 0)[0].clone()
        keys.zero_()
    assert torch.equal(stored(cache, 0)[0], before)


def test_a_dropped_forward_leaves_the_cache_as_it_was():
    cache, resident = filled([3])
    cache.set_state(1, (torch.ones(3),))
    with torch.no_grad():
        cache.update(0, *tokens(4, seed=9))  # never advanced
    assert cache.state(1) is None
    assert cache.length == 3
    assert torch.equal(stored(cache, 0)[0], resident[0][0])


def test_crop_drops_a_tail_and_goes_on():
    cache, resident = filled([5])
    cache.crop(2)
    with torch.no_grad():
        keys, _ = cache.update(0, *tokens(1, seed=3))
    assert torch.equal(keys[:, :, :2], resident[0][0][:, :, :2])
    assert keys.shape[2] == 3


@pytest.mark.parametrize("length", [-1, 6])
def test_crop_beyond_the_cache_is_refused(length):
    cache, _ = filled([5])
    with pytest.raises(InputError, match=r"0\.\.5"):
        cache.crop(length)


def test_states_are_kept_per_layer_and_cannot_be_cropped():
    cache = Cache(3, 4)
    state = (torch.ones(2, 3), torch.zeros(2, 5))
    cache.set_state(1, state)
    cache.advance(4)
    assert cache.state(1) is state
    assert cache.state(0) is None
    assert cache.recurrent
    with pytest.raises(InputError, match="cannot be taken back from 4 to 3"):
        cache.crop(3)
    cache.crop(4)
    cache.crop(0)
    assert cache.state(1) is None
    assert not cache.recurrent


def test_clone_shares_nothing():
    cache, resident = filled([3])
    cache.set_state(1, (torch.ones(3, 2),))
    cache.advance(0)
    copy = cache.clone()
    stored(cache, 0)[0].zero_()
    cache.state(1)[0].zero_()
    cache.crop(0)
    assert copy.length == 3
    assert torch.equal(stored(copy, 0)[0], resident[0][0])
    assert (copy.state(1)[0] == 1).all()


@pytest.mark.parametrize("rows", [[2, 0], [1, 1, 1], torch.tensor([2, 0]), torch.tensor([True, False, True])])
def test_select_takes_rows(rows):
    cache, resident = filled([3, 2])
    cache.set_state(1, (torch.arange(3.0),))
    cache.advance(0)
    part = cache.select(rows)
    assert torch.equal(stored(part, 0)[0], resident[0][0][rows])
    assert torch.equal(part.state(1)[0], torch.arange(3.0)[rows])
    assert part.length == 5


def test_select_refuses_rows_that_are_not_there():
    cache, _ = filled([3])
    with pytest.raises(InputError, match=r"within 0\.\.2"):
        cache.select([0, 3])


def test_memory_counts_all_that_is_allocated():
    cache, _ = filled([3], layers=2, capacity=8)
    assert cache.memory() == 2 * 2 * 3 * HEADS * 8 * DIM * 4
    assert Cache(2, 8).memory() == 0


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        (torch.zeros(2, HEADS, 1, DIM), "batch"),
        (torch.zeros(3, HEADS + 1, 1, DIM), "kv_heads"),
        (torch.zeros(3, HEADS, 1, DIM, dtype=torch.bfloat16), "bfloat16"),
    ],
)
def test_another_batch_is_refused(keys, word):
    cache, _ = filled([3])
    with torch.no_grad(), pytest.raises(InputError, match=word):
        cache.update(0, keys, keys)


def test_a_layer_that_missed_tokens_is_refused():
    cache = Cache(2, 8)
    with torch.no_grad():
        cache.update(0, *tokens(3))
        cache.advance(3)
        with pytest.raises(InputError, match="no keys for the 3 tokens"):
            cache.update(1, *tokens(1))


@pytest.mark.parametrize("layers", [(0, 4), (2, 0)])
def test_empty_sizes_are_refused(layers):
    with pytest.raises(InputError, match="at least one layer"):
        Cache(*layers)


def test_gradients_flow_through_several_updates():
    parts = [tokens(2, seed=1), tokens(1, seed=2), tokens(3, seed=3)]
    leaves = [keys.requires_grad_() for keys, _ in parts]
    cache, seen = Cache(1, 16), []
    for keys, values in parts:
        all_keys, all_values = cache.update(0, keys, values)
        cache.advance(keys.shape[2])
        seen.append((all_keys.square() * all_values).sum())
    torch.stack(seen).sum().backward()
    times_seen = [3, 2, 1]
    for leaf, (_, values), count in zip(leaves, parts, times_seen, strict=True):
        torch.testing.assert_close(leaf.grad, 2 * count * leaf.detach() * values)


def test_a_past_without_gradients_goes_on_with_them_and_back():
    cache, resident = filled([3], layers=1)
    keys, values = tokens(2, seed=7)
    keys.requires_grad_()
    all_keys, _ = cache.update(0, keys, values)
    cache.advance(2)
    all_keys.square().sum().backward()
    torch.testing.assert_close(keys.grad, 2 * keys.detach())
    with torch.no_grad():
        after, _ = cache.update(0, *tokens(1, seed=8))
    assert not after.requires_grad
    assert torch.equal(after[:, :, :3], resident[0][0])
    assert torch.equal(after[:, :, 3:5], keys.detach())


def test_inference_mode_and_out_of_it():
    cache = Cache(1, 8)
    with torch.inference_mode():
        first, _ = cache.update(0, *tokens(3))
        cache.advance(3)
        expected = first.clone()
    with torch.no_grad():
        keys, _ = cache.update(0, *tokens(1, seed=2))
        cache.advance(1)
    assert torch.equal(keys[:, :, :3], expected)
    new = tokens(1, seed=4)[0].requires_grad_()
    joined, _ = cache.update(0, new, new)
    joined.square().sum().backward()
    torch.testing.assert_close(new.grad, 2 * new.detach())


def test_a_shared_past_is_one_row_for_many_and_keeps_nothing():
    source, resident = filled([5], batch=1)
    for rows, length in ((3, 5), (2, 2), (4, 0)):
        shared = SharedPast(source, rows, length)
        for _ in range(2):  # the second forward follows the same past
            with torch.no_grad():
                new = tokens(2, batch=rows, seed=9)
                keys, values = shared.update(1, *new)
                shared.replace(1, keys * 0, values)
                shared.advance(2)
            assert shared.length == length
            assert torch.equal(keys, torch.cat((resident[1][0][:, :, :length].expand(rows, -1, -1, -1), new[0]), 2))
            assert torch.equal(values, torch.cat((resident[1][1][:, :, :length].expand(rows, -1, -1, -1), new[1]), 2))
    assert all(torch.equal(stored(source, n)[0], resident[n][0]) for n in range(2))


def test_a_shared_past_has_the_recurrent_state_of_its_moment():
    source = Cache(2, 8)
    source.set_state(0, (torch.ones(1, 2, 3),))
    source.advance(3)
    then = SharedPast(source, 1)
    source.set_state(0, (torch.zeros(1, 2, 3),))
    source.advance(2)
    again = SharedPast(then, 4)
    assert again.length == 3
    assert again.state(1) is None
    (state,) = again.state(0) or ()
    assert torch.equal(state, torch.ones(4, 2, 3))
    again.set_state(0, (state * 5,))
    again.advance(1)
    assert torch.equal((again.state(0) or ())[0], torch.ones(4, 2, 3))
    with pytest.raises(InputError, match="no longer there"):
        SharedPast(source, 2, 3)


def test_a_past_of_several_rows_cannot_be_shared():
    source, _ = filled([4], batch=2)
    with pytest.raises(InputError, match="that of one row"):
        SharedPast(source, 3)
    one, _ = filled([4], batch=1)
    with pytest.raises(InputError, match=r"0\.\.4 tokens"):
        SharedPast(one, 3, 5)
    with pytest.raises(InputError, match="goes on with the batch"), torch.no_grad():
        SharedPast(one, 3).update(0, *tokens(1, batch=2))
