"""Chat templates stay within time, memory, depth and output, and what is within renders as Jinja's own sandbox does."""

from __future__ import annotations

import time

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cutaway.errors import CheckpointError, CutawayError
from cutaway.inputs.text.chat_template import ChatTemplate
from cutaway.inputs.text.messages import read_messages

CONVERSATION = read_messages([{"role": "user", "content": "q"}])
GROW = "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = EXPRESSION %}{% endfor %}{{ n.x }}"
BEYOND = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "lorem ipsum": "{{ lipsum(n=10**7) }}",
    "long lorem ipsum": "{{ lipsum(n=1000, min=99999, max=999999) }}",
    "printf width": "{{ '%1000000000d' % 1 }}",
    "printf width as an argument": "{{ '%*d' % (1000000000, 1) }}",
    "printf filter": "{{ '%1000000000d'|format(1) }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "format width as an argument": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "repeated text": "{{ 'a'*6000000000 }}",
    "repeated text, set": "{% set x = 6000000000*'a' %}",
    "repeated list": "{{ ([1]*6000000000)|length }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursion by a block": "{% block a %}{{ self.a() }}{% endblock %}",
    "recursion by a loop": "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "exponential recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "nested ifs": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "nested loops in text": "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    "nested parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "nested lists": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "chained filters": "{{ 'a'" + "|trim" * 5000 + " }}",
    "chained sums": "{{ " + "+".join(["1"] * 5000) + " }}",
    "doubling by +": GROW.replace("EXPRESSION", "n.x + n.x"),
    "doubling by ~": GROW.replace("EXPRESSION", "n.x ~ n.x"),
    "doubling by join": GROW.replace("EXPRESSION", "[n.x, n.x]|join"),
    "doubling by str.join": GROW.replace("EXPRESSION", "''.join([n.x, n.x])"),
    "doubling by format": GROW.replace("EXPRESSION", "'{0}{0}'.format(n.x)"),
    "doubling by printf": GROW.replace("EXPRESSION", "'%s%s' % (n.x, n.x)"),
    "doubling by replace": GROW.replace("EXPRESSION", "n.x.replace('a', 'aa')"),
    "doubling by a filter": GROW.replace("EXPRESSION", "n.x|replace('a', 'aa')"),
    "shared lists": GROW.replace("EXPRESSION", "[n.x, n.x]"),
    "nested tuples": GROW.replace("EXPRESSION", "(n.x,)").replace("{{ n.x }}", "{{ {n.x: 1} }}"),
    "a namespace that holds itself": "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "powers": "{{ 9**(9**9) }}",
    "growing integers": "{% set n = namespace(x=9) %}{% for i in range(999) %}{% set n.x = n.x*n.x %}{% endfor %}",
    "center": "{{ 'a'|center(10000000000) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**10) }}",
    "to_bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "translate": "{{ ('a'*10000).translate({97: 'b'*100000}) }}",
    "split": "{{ ('a'*60000000).split('a')|length }}",
    "indent": "{{ 'a\nb'|indent(10**10) }}",
    "indent of JSON": "{{ [1]|tojson(indent=10**9) }}",
    "separators of JSON": "{{ range(9999)|list|tojson(separators=('a'*99999, ':')) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list|length }}",
    "slice": "{{ [1]|slice(10**9)|list|length }}",
    "wordwrap": "{{ ('a '*40000)|wordwrap(1, wrapstring='b'*100000) }}",
    "striptags": "{{ ('<'*10000000)|striptags }}",
    "urlize": "{{ ('http://a '*1000000)|urlize }}",
    "sum of lists": "{% set l = range(9999)|list %}{{ ([l]*9999)|sum(start=[])|length }}",
    "copied slices": "{% set x = 'a'*30000000 %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
    "long dates": "{{ strftime_now('%c'*10000000) }}",
    "output": "{% for i in range(99999) %}" + "x" * 100000 + "{% endfor %}",
    "output of constants": "{% for i in range(99999) %}{{ '" + "x" * 100000 + "' }}{% endfor %}",
    "output of macros": "{% macro m() %}"
    + "x" * 99999
    + "{% endmacro %}{% for i in range(9999) %}{{ m() }}{% endfor %}",
    "output into a variable": "{% set y %}{% for i in range(99999) %}" + "x" * 99999 + "{% endfor %}{% endset %}",
    "a long template": "a" * 300_000,
    "long integers": "{{ " + "9" * 5000 + " }}",
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_template_beyond_bounds_is_the_checkpoints_fault(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(CheckpointError, match=r"bounds of one|not valid Jinja"):
        ChatTemplate(BEYOND[name]).render(CONVERSATION)
    assert time.monotonic() - started < 20


SLOW = [
    "{% set x = 'a'*30000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
    "{% for i in range(9999) %}{% set y = range(99999)|sort %}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999)|map('string')|join|length }}{% endfor %}",
]


@pytest.mark.parametrize("text", SLOW)
def test_slow_steps_end_by_the_clock(text: str, monkeypatch) -> None:
    monkeypatch.setattr("cutaway.inputs.text.template_limits.SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(CheckpointError, match=r"takes too long|more text"):
        ChatTemplate(text).render(CONVERSATION)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    "text",
    ["{% include 'x' %}", "{{ x.y.z }}", "{{ raise_exception('a'*1000000) }}", "{{ 1 // 0 }}", "{{ 2.0**99999 }}"],
)
def test_any_other_complaint_is_short_and_ours(text: str) -> None:
    with pytest.raises(CutawayError) as caught:
        ChatTemplate(text).render(CONVERSATION)
    assert len(str(caught.value)) < 600


WITHIN = [
    "{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% for i in 'abc' if i != 'b' %}{{ loop.previtem is defined }}{{ i }}{% endfor %}",
    "{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}",
    "{% for i in x|map('upper')|list %}{{ i }}{% endfor %}{{ x[::-1] }}{{ x[1:] }}{{ 'abcdef'[1:5:2] }}{{ x[-1] }}",
    "{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ -3 }} {{ 'a' ~ 1 ~ none ~ [1, 'b'] }}",
    "{{ 'x' * 3 + 'y' }} {{ '%s-%5.2f' % ('a', 1.5) }} {{ '{0}{b:>4}'.format(1, b='z') }} {{ [1] + [2] }}",
    "{{ ' a,b '.strip().split(',') }} {{ '-'.join(['a', 'b']) }} {{ 'aXb'.replace('X', '--') }} {{ 'é'|upper }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(3) %}in{% endcall %}",
    "{% set n = namespace(a=0) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}{{ n }}",
    "{% set t %}a{{ 1 }}{% endset %}{{ t }}{% filter upper %}abc{% endfilter %}{{ undefined_name }}{{ none }}",
    "{{ [3, 1, 2]|sort|join(', ') }} {{ x|first }} {{ x|length }} {{ 'a b'|title }} {{ 3.7|round|int }}",
    "{{ [1, 2]|sum }} {{ [[1], [2]]|sum(start=[]) }} {{ 'abc'|center(9) }}|",
    "{{ 'a\nb'|indent(2) }} {{ [1, 2, 3]|batch(2)|list }}",
    "{{ 'a' in 'abc' }} {{ 1 is odd }} {{ x is string }} {{ x|map('length')|list }} {{ {'b': 1, 'a': 2}|dictsort }}",
    "{{ x|selectattr('0')|list }} {{ '<b>'|e }} {{ '<b>'|escape|length }} {{ 'abc'|reverse }} {{ 5|string + '!' }}",
]


@pytest.mark.parametrize("text", WITHIN)
def test_a_template_within_bounds_is_as_in_jinja(text: str) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    variables = {"x": ["a", "bc", "d"]}
    assert ChatTemplate(text).render(CONVERSATION, **variables) == plain.from_string(text).render(
        **variables, messages=CONVERSATION.messages, tools=None, add_generation_prompt=True, documents=None
    )
