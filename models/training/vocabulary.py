"""The demo model's tokenizer: a byte-level BPE learned from the questions it is asked and some plain English."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from models.training.dialogues import SYSTEM_PROMPTS, random_dialogue, small_talk

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
VOCABULARY_SIZE = 1024
PLAIN_ENGLISH = """
the of and to in a is that it for was on are as with his they be at one have this from or had by not but some what
there we can out other were all your when up use word how said an each she which do their time if will way about many
then them would write like so these her long make thing see him two has look more day could go come did my sound no
most number who over know water than call first people may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under name very through just
form much great think say help low line before turn cause same mean differ move right boy old too does tell sentence
set three want air well also play small end put home read hand port large spell add even land here must big high such
follow act why ask men change went light kind off need house picture try us again animal point mother world near build
self earth father head stand own page should country found answer school grow study still learn plant cover food sun
four thought let keep eye never last door between city tree cross since hard start might story saw far sea draw left
late run while press close night real life few stop open seem together next white children begin got walk example ease
paper often always music those both mark book letter until mile river car feet care second group carry took rain eat
room friend began idea fish mountain north once base hear horse cut sure watch color face wood main enough plain girl
usual young ready above ever red list though feel talk bird soon body dog family direct pose leave song measure state
product black short numeral class wind question happen complete ship area half rock order fire south problem piece
told knew pass farm top whole king size heard best hour better true during hundred am remember step early hold west
ground interest reach fast five sing listen six table travel less morning ten simple several vowel toward war lay
against pattern slow center love person money serve appear road map science rule govern pull cold notice voice fall
power town fine certain fly unit lead cry dark machine note wait plan figure star box noun field rest correct able
pound done beauty drive stood contain front teach week final gave green oh quick develop sleep warm free minute strong
special mind behind clear tail produce fact street inch lot nothing course stay wheel full force blue object decide
surface deep moon island foot yet busy test record boat common gold possible plane age dry wonder laugh thousand ago
ran check game shape yes hot miss brought heat snow bed bring sit perhaps fill east weight language among
"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that can spell any UTF-8 text, with Qwen2-VL's special tokens and our chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in ("<|im_end|>", "<|endoftext|>")],
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def _corpus() -> Iterator[str]:
    rng = random.Random("vocabulary")
    for _ in range(2000):
        for question in random_dialogue(rng, turns=4).questions + small_talk(rng, turns=1).questions:
            yield question.text
            yield question.answer
    for text in (
        "system",
        "user",
        "assistant",
        "tool",
        "First picture: Second picture: Third picture: Fourth picture:",
    ):
        yield from [text] * 200
    yield from SYSTEM_PROMPTS * 200
    yield from [" " + PLAIN_ENGLISH.replace("\n", " ")] * 20
