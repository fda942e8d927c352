"""Capacity planning: how many tokens of KV fit beside which parts of a model, before any of it is bought or loaded.

`shape` says what a model consists of, `weights` and `peak` what that costs in bytes, `topology` which device
holds what. `checkpoint` reads a shape from a served model's config, `measured` finds out what really happens.
"""
