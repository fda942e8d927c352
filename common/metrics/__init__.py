"""What a worker process shows at `/metrics`: the owners of numbers keep them, and are asked when somebody looks.

    metrics.add(lambda: [gauge("kv_blocks_free", "KV blocks that nobody uses", pool.num_free)])

Labels have values that we choose, never names that callers choose.
"""
