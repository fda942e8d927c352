"""The front door: requests in, tokens out; holds no weights."""
