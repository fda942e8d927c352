"""What the linter reports."""

from __future__ import annotations

from dataclasses import dataclass

HINTS = {
    "timestamp": "Move the time behind the history, to the end of the last message, or leave it out.",
    "date": "A date in the instructions changes every day: move it to the last message, or leave it out.",
    "random_id": "Keep ids for tracing out of the prompt; `session_id`, `user` and `metadata` never enter it.",
    "counter": "Keep counters out of the instructions: the model does not need them, and every turn changes them.",
    "unsorted_tools": "List tools by name, so that every process lists them alike.",
    "tools_changed": "Keep the tools of a conversation as they are: they stand in front of everything else.",
    "unstable_json": "Write JSON with sorted keys and fixed separators; here only the spelling differs.",
    "whitespace": "Only white space differs: send earlier messages byte for byte as before.",
    "system_changed": "Keep the instructions fixed, and put what changes at the end of the last message.",
    "text_changed": "Send earlier messages as they were, and say what is new in the last one.",
    "message_removed": "Do not cut history turn by turn: fold a whole segment into a summary now and then (RollOver).",
    "message_inserted": "Append new messages at the end only.",
    "image_replaced": "Keep the earlier picture in its place, and add the new one to the last message.",
    "image_removed": "Keep earlier pictures, or refer to them in words (ImageReferences).",
    "image_added": "Add pictures to the last message, not to earlier ones.",
    "image_reencoded": "Send the file of the first time again, or `triptych:` and its digest: the pixels are the same.",
    "detail_changed": "Keep `detail` of earlier pictures as it was.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that breaks the prefix, or will when it changes.

    `request` and `message` count from 0; `message` is None for the tools. `excerpt` is the text at fault, cut short.
    The loss is what stands behind the first difference from the request before, so what could have been read from a
    cache: in characters of text and in pictures. It is 0 for what is only suspicious, and for later findings of the
    same request, as everything behind the first is lost already. `lost_tokens` is filled in where tokens were counted.
    """

    request: int
    message: int | None
    kind: str
    excerpt: str = ""
    lost_characters: int = 0
    lost_images: int = 0
    lost_tokens: int | None = None

    @property
    def hint(self) -> str:
        """What to do about it, in one sentence."""
        return HINTS[self.kind]
