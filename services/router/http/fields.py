"""What HTTP's clients call the fields of our own requests."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from services.router.fields import Renaming, fields_renamed

_RENAMINGS: tuple[Renaming, ...] = (
    (r"^sampling\.grammar\.json_schema", "response_format.json_schema.schema"),
    (r"^sampling\.grammar\.(regex|lark)", "response_format.definition"),
    (r"^sampling\.grammar", "response_format"),
    (r"^(tools\[\d+\])\.", r"\1.function."),
    (r"(\.tool_calls\[\d+\])\.", r"\1.function."),
    (r"\.image\.digest$", ".image_url.url"),
    (r"\.image\.", ".image_url."),
    (r"^prompt\.(text|token_ids)", "prompt"),
    (r"^token_ids", "tokens"),
    (r"^page_size$", "limit"),
    (r"^page_token$", "after"),
)


def as_asked(first: Iterable[Renaming] = ()) -> AbstractContextManager[None]:
    """Errors of the block name fields of this interface; `first` are the renamings that one request needs besides."""
    return fields_renamed((*first, *_RENAMINGS))
