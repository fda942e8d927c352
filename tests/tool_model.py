"""A checkpoint directory for routers whose chat template knows functions, in the form of Hermes and Qwen."""

from __future__ import annotations

import shutil
from pathlib import Path

TEMPLATE = """\
{%- macro render(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- else -%}
    {%- for part in content or [] -%}
      {%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
      {%- else -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
  {{- '<|im_start|>system\\nFunctions:\\n<tools>\\n' -}}
  {%- for tool in tools -%}{{- tool | tojson ~ '\\n' -}}{%- endfor -%}
  {{- '</tools><|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {{- '<|im_start|>' ~ message.role ~ '\\n' ~ render(message.content) -}}
  {%- for call in message.tool_calls or [] -%}
    {{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
    {{- call.function.arguments | tojson ~ '}\\n</tool_call>' -}}
  {%- endfor -%}
  {%- if message.tool_call_id -%}{{- '(' ~ message.tool_call_id ~ ')' -}}{%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def tool_model(checkpoint: Path, directory: Path, weights: bool = False) -> Path:
    """A copy of `checkpoint` with such a template; weights only where workers need them."""
    ignored = shutil.ignore_patterns() if weights else shutil.ignore_patterns("*.safetensors")
    shutil.copytree(checkpoint, directory, ignore=ignored)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory
