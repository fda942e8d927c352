"""The OpenAI API over HTTP, and the pages that operators read."""
