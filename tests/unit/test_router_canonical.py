"""Prompts say the same in every request: no date of today, whatever the template asks for."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from services.router.prompts.tokenizer import Tokenizer
from tests.unit.router_tokenizers import DEMO, DEMO_IMAGE

DATED = "\nToday Date: {{ strftime_now('%d %b %Y') }}. {% for message in messages %}{{ message.role }}{% endfor %}"


def test_a_template_is_never_told_the_date_of_today() -> None:
    pretrained = AutoTokenizer.from_pretrained(Path(DEMO))
    pretrained.chat_template = DATED
    text = Tokenizer(pretrained, DEMO_IMAGE).render([{"role": "user", "content": []}])
    assert text == "\nToday Date: 26 Jul 2024. user"
