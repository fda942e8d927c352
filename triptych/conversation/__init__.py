"""Conversations whose prompts stay cacheable: an append-only log, and policies that say what of it is sent."""

from triptych.conversation.aio import AsyncConversation, AsyncTurnStream
from triptych.conversation.blocking import Conversation, TurnStream
from triptych.conversation.log import Description, Log, Summary, first_change
from triptych.conversation.policy import AppendOnly, Need, Policy, PrefixWarning, Writer
from triptych.conversation.references import ImageReferences
from triptych.conversation.rollover import RollOver
from triptych.conversation.window import ImageWindow

POLICY_NAMES = tuple(policy.name for policy in (AppendOnly, ImageReferences, ImageWindow, RollOver))
"""What `GenerateRequest.context_policy` may say so that the metrics know it."""

__all__ = [
    "POLICY_NAMES",
    "AppendOnly",
    "AsyncConversation",
    "AsyncTurnStream",
    "Conversation",
    "Description",
    "ImageReferences",
    "ImageWindow",
    "Log",
    "Need",
    "Policy",
    "PrefixWarning",
    "RollOver",
    "Summary",
    "TurnStream",
    "Writer",
    "first_change",
]
