"""A chat template with all that published ones use, in our words, and short ways to write messages."""

from __future__ import annotations

# with what published templates have: loops with break, numbering over the conversation, tools as JSON lines
PUBLISHED = """
{%- set ns = namespace(images=0, videos=0) -%}
{%- macro body(content) -%}
    {%- if content is string -%}{{ content }}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
                {%- set ns.images = ns.images + 1 -%}
                {%- if add_vision_id -%}Picture {{ ns.images }}: {% endif -%}
                <|vision_start|><|image_pad|><|vision_end|>
            {%- elif part.type == 'video' or 'video' in part -%}
                {%- set ns.videos = ns.videos + 1 -%}
                {%- if add_vision_id -%}Video {{ ns.videos }}: {% endif -%}
                <|vision_start|><|video_pad|><|vision_end|>
            {%- else -%}{{ part.text }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n<tools>' -}}
    {%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}
    {{- '\\n</tools><|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' and loop.first -%}{{ raise_exception('a tool cannot begin') }}{%- endif -%}
    {{- '<|im_start|>' + message.role + '\\n' + body(message.content) -}}
    {%- for call in message.tool_calls -%}
        {{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
    {%- if loop.index > 20 -%}{% break %}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}
{%- endif -%}
"""
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}
PAD = "<|vision_start|><|image_pad|><|vision_end|>"


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def user(*content) -> dict:
    return {"role": "user", "content": list(content)}
