"""Lua for what Redis must do in one step: a reservation belongs to its owner and to nobody else."""

from __future__ import annotations

RESERVE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 'ready' end
if redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) then return 'reserved' end
if redis.call('GET', KEYS[2]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return 'reserved'
end
return 'busy'
"""
RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
# Only the value that was found bad: a good one may have replaced it meanwhile.
DISCARD = "if redis.call('GETRANGE', KEYS[1], 0, 31) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
