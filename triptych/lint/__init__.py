"""Finds what in OpenAI requests would break a prefix cache: `lint` for requests in the order in which they are sent."""

from triptych.lint.finding import Finding
from triptych.lint.linter import count_tokens, lint, read_requests

__all__ = ["Finding", "count_tokens", "lint", "read_requests"]
