"""The engine core that prefill and decode workers share: KV blocks, packed batches, paged attention and sampling."""
