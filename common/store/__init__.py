"""What the services share through Redis or Valkey: uploaded pictures, embeddings and the registry of workers.

Only `embeddings` imports torch. All of it is a cache: losing it costs time, never correctness.
"""
