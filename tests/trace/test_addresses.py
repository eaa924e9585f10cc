"""Addresses: found, listed, printed; and the errors for those that are not there."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from cutaway.errors import EditError, Unavailable, UnknownValue
from cutaway.named import Alias, Named, Value, ValueAt
from cutaway.trace import addresses as names
from cutaway.trace.address_index import contains, index_of
from cutaway.trace.addresses import addresses, expression, find
from cutaway.trace.listing import support, table, tree
from tests.trace.toy import Toy, opened


@pytest.fixture
def toy() -> Toy:
    return Toy()


def result(toy: nn.Module, pattern: str) -> list[str]:
    return [ref.address for ref in find(toy, pattern)]


@pytest.mark.parametrize(
    ("pattern", "addresses"),
    [
        ("logits", ["logits"]),
        ("layers.0.layer_output", ["layers.0.layer_output"]),
        ("layers.-1.layer_output", ["layers.2.layer_output"]),
        ("layers[1].layer_output", ["layers.1.layer_output"]),
        ("decoder.blocks.1.attn.queries", ["layers.1.self_attn.queries"]),
        ("layers.1.attn.queries", ["layers.1.self_attn.queries"]),
        ("layers.*.self_attn.queries", [f"layers.{i}.self_attn.queries" for i in range(3)]),
        ("layers.1:.layer_output", ["layers.1.layer_output", "layers.2.layer_output"]),
        ("layers.:-1.layer_output", ["layers.0.layer_output", "layers.1.layer_output"]),
        ("layers.::2.layer_output", ["layers.0.layer_output", "layers.2.layer_output"]),
        ("layers.0:99.layer_output", [f"layers.{i}.layer_output" for i in range(3)]),
        ("tower.stream", ["stream"]),
        ("stream", ["stream"]),
        ("layers.*.*", ["layers.0.layer_output", "layers.0.extra", "layers.1.layer_output", "layers.2.layer_output"]),
        ("layers.*.extra", ["layers.0.extra"]),
        ("layers.1.input", ["layers.1.input"]),
        ("layers.*.*.attention_output", [f"layers.{i}.self_attn.attention_output" for i in range(3)]),
        ("head.output", ["head.output"]),
    ],
)
def test_patterns(toy, pattern, addresses):
    assert result(toy, pattern) == addresses


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("logit", "Nearest: `logits`"),
        ("layers.0.layer_ouput", "`Block` has no value or part `layer_ouput`. Nearest: `layer_output`"),
        ("layer.0.layer_output", "`Toy` has no value or part `layer`. Nearest: `layers`"),
        ("layers.0.self_atn.queries", "Nearest: `self_attn`"),
        ("layers.3.layer_output", "`layers` is a list of 3 layers; got `3`"),
        ("layers.x.layer_output", "a list of 3 layers; got `x`"),
        ("layers.layer_output", "has no value or part `layer_output`"),
        ("num_layers.logits", "has no value or part `num_layers`"),
        ("layers.7:9.layer_output", "a list of 3 layers; got `7:9`"),
        ("layers.2:1.layer_output", "a list of 3 layers; got `2:1`"),
        ("layers", "a part of the tree, not a value: add the name of one, as in `layers.*.output`"),
        ("layers.*", "a part of the tree, not a value: add the name of one, as in `layers.*.output`"),
        ("layers.0", "a part of the tree, not a value: add the name of one, as in `layers.0.output`"),
        ("layers.0.self_attn", "a part of the tree, not a value"),
        ("queries", "no value or part `queries` of its own; `layers.0.self_attn.queries` is one"),
        ("self_attn.queries", "`layers.0.self_attn.queries` is one"),
        ("LOGITS", "Nearest: `logits`"),
        ("decoder.norm.weight", "has no value or part `weight`"),
        ("", "has no value or part ``"),
    ],
)
def test_what_is_not_there(toy, pattern, message):
    with pytest.raises(UnknownValue) as error:
        find(toy, pattern)
    assert message in str(error.value)


def test_unavailable_names_the_reason(toy):
    with pytest.raises(Unavailable, match=r"`layers.1.extra` is unavailable: it is added after block 0 only"):
        find(toy, "layers.1:.extra")


def test_the_table(toy):
    listed = {row.address: row for row in table(toy)}
    assert list(listed)[:6] == ["ids", "size", "embeddings", "logits", "probs", "stream"]
    assert listed["ids"].dtype == "int64"
    assert not listed["ids"].writable
    assert listed["stream"].axes == "1 rows width"
    assert listed["layers.1.self_attn.queries"].host == "decoder.blocks.1.attn (Attention)"
    assert listed["layers.1.extra"].why_unavailable == "it is added after block 0 only."
    assert listed["logits"].dtype == "float32"
    assert support(toy) == {address: row.why_unavailable for address, row in listed.items()}
    assert addresses(toy)[toy.layers[2], "layer_output"] == "layers.2.layer_output"
    assert addresses(toy, universal=True)[toy.head, "output"] == "head.output"
    assert "ids" in repr(table(toy))
    assert "read-only" in repr(table(toy))
    assert table(toy.bfloat16())[3].dtype == "bfloat16"


def test_every_address_finds_its_value_and_nothing_else(toy):
    index = addresses(toy, universal=True)
    assert len(set(index.values())) == len(index)
    for (module, name), address in index.items():
        if name != "scores" and not (name == "extra" and address != "layers.0.extra"):
            (ref,) = find(toy, address)
            assert (ref.module, ref.value.name) == (module, name)


def test_the_printed_tree(toy):
    text = tree(toy)
    assert "layers.0: Block" in text
    assert "layers.1:3: Block" in text
    assert "layers.0:3.self_attn: Attention" in text
    assert "· patterns list of [query key]" in text
    assert "· extra [tokens width]  (unavailable)" in text
    assert text.count("layer_output") == 2


def test_python_for_an_address():
    assert expression("layers.3.self_attn.queries") == "model.layers[3].self_attn.queries"
    assert expression("logits") == "model.logits"
    assert expression("a.0.1.output") == "model.a[0][1].output"


def test_the_book_follows_the_tree_and_keeps_nothing_alive(toy):
    assert contains(toy, toy.layers[0])
    other = Toy(seed=1)
    assert not contains(toy, other.head)
    toy.head = other.head
    assert contains(toy, other.head)
    assert result(toy, "head.output") == ["head.output"]
    reference = weakref.ref(toy)
    del toy, other
    gc.collect()
    assert reference() is None or gc.get_referrers(reference())  # the fixture holds it; the book must not
    gone = Toy()
    find(gone, "logits")
    reference = weakref.ref(gone)
    del gone
    gc.collect()
    assert reference() is None


class Counter(Named):
    state_after = ValueAt("batch width", "the sum after each token")
    sums = Value("batch width", "the last sum")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            total = total + x[:, t]
            names = (f"state_after({t})", f"state_after({t - x.shape[1]})")
            for name in names:
                if self.wants(name):
                    total = self.value(name, total)
        return self.value("sums", total)


class Holder(Named):
    counter = Alias("count")
    after = Alias("count.state_after")

    def __init__(self) -> None:
        super().__init__()
        self.count = Counter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.count(x)


def test_a_value_with_a_place():
    holder, x = Holder(), torch.arange(6.0).view(1, 6, 1)
    (ref,) = find(holder, "count.state_after(2)")
    assert ref.address == "counter.state_after(2)"
    for unfinished in ("counter.state_after", "counter.state_after(t)"):
        with pytest.raises(UnknownValue, match=r"`state_after\(5\)`"):
            find(holder, unfinished)
    assert list(support(holder)) == ["counter.state_after(t)", "counter.sums"]
    assert result(holder, "counter.*") == ["counter.sums"]
    from cutaway.trace.run import Run, run_values

    with Run(holder, lambda: holder(x)) as run:
        assert run.counter.state_after(1).item() == 1
        holder.counter.state_after(2)[:] = 10
        run.counter.state_after.set(3, torch.full((1, 1), 20.0))
        with pytest.raises(EditError, match=r"state_after.set\(t, new\)"):
            run.counter.state_after = torch.zeros(1, 1)
        assert run.counter.state_after(-1).item() == 29
        assert holder.count.sums.item() == 29
    got = run_values(holder, lambda: holder(x), read=["counter.state_after(4)", "count.state_after(-1)"])
    assert [v.item() for v in got.values()] == [10, 15]


def test_reads_through_lists_keep_their_errors(toy):
    with opened(toy) as run, pytest.raises(AttributeError):
        run.layers.layer_output  # noqa: B018


def test_a_part_taken_out_of_the_tree_is_freed_and_one_put_in_is_found() -> None:
    toy = Toy()
    assert find(toy, "layers.0.layer_output")
    gone = weakref.ref(next(toy.layers[0].children()))
    toy.decoder.blocks[0] = Toy(seed=1).layers[0]
    gc.collect()
    assert gone() is None
    assert not contains(toy, Toy().head)
    assert find(toy, "layers.0.layer_output")[0].module is toy.layers[0]
    own = Toy(seed=2).head
    toy.embed.add_module("more", own)  # into a part that had none before
    assert contains(toy, own)
    assert result(toy, "embed.more.output") == ["embed.more.output"]


def test_a_pattern_looked_up_before_follows_the_tree() -> None:
    toy = Toy()

    def hosts(pattern: str = "layers.*.layer_output") -> list:
        return [ref.module for ref in find(toy, pattern)]

    def blocks() -> list:
        return list(toy.decoder.blocks)

    assert hosts() == hosts() == blocks()
    assert hosts("layers.-1.output") == blocks()[-1:]
    toy.decoder.blocks[1] = Toy(seed=1).decoder.blocks[1]
    assert hosts() == blocks()
    toy.decoder.blocks.append(Toy(seed=2).decoder.blocks[2])
    assert hosts() == blocks()
    assert len(hosts()) == 4
    assert hosts("layers.-1.output") == blocks()[-1:]
    gone = weakref.ref(toy.decoder.blocks[0])
    del toy.decoder.blocks[0]
    gc.collect()
    assert gone() is None  # what was looked up keeps nothing alive
    assert hosts() == blocks()
    assert hosts("layers.*.self_attn.queries") == [block.attn for block in blocks()]
    toy.decoder.blocks[0].attn.mark_unavailable("queries", "it was taken out.")
    assert hosts("layers.*.self_attn.queries") == [block.attn for block in blocks()[1:]]
    assert result(toy, "layers.-1.output") == ["layers.2.output"]
    last = toy.decoder.blocks[-1]
    toy.decoder.blocks.insert(0, Toy(seed=3).decoder.blocks[0])
    assert hosts("layers.-1.output") == [last]
    assert result(toy, "layers.-1.output") == ["layers.3.output"]  # the same part at another place
    before = toy.tower
    assert hosts("stream") == [before]
    toy.tower = Toy(seed=4).tower
    assert hosts("stream") == [toy.tower]  # an alias leads elsewhere, and the part that it led to is alive
    find(toy, "layers.2.layer_output")
    del toy.decoder.blocks[2:]
    with pytest.raises(UnknownValue, match="Use 0 to 1"):
        find(toy, "layers.2.layer_output")


def test_no_more_patterns_are_kept_than_a_few_thousand(monkeypatch) -> None:
    monkeypatch.setattr(names, "_CACHED_PATTERNS", 3)
    toy = Toy()
    for pattern in ("logits", "embeddings", "stream", "layers.0.layer_output", "layers.1.layer_output"):
        assert len(find(toy, pattern)) == 1
    assert len(index_of(toy).pattern_cache) == 3
