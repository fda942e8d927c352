"""Lua for what Redis must do in one step. `@` stands for the prefix of all keys of the embedding store.

All of them share one hash tag, so that a byte budget can be kept: what is accounted together must lie in one slot. In a
cluster all embeddings are therefore on one node; entries that a script evicts are in the slot of its declared keys.

Every script begins with KEYS recency (sorted set: key -> microsecond of its last use), sizes (hash: key -> bytes, and
their `total`) and value, and ARGV key. `lives` (hash: key -> milliseconds) has for how long each was written.
"""

from __future__ import annotations

PREFIX = "triptych:{embeddings}:"
# These write a few bytes. A full server must still hear of them: heartbeats, leases, and what makes room.
ALLOW_OOM = "#!lua flags=allow-oom\n"

_COMMON = """
local recency, sizes, value, key = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
local function live(name, ttl_ms)
  if redis.call('PTTL', name) < tonumber(ttl_ms) then redis.call('PEXPIRE', name, ttl_ms) end
end
local function total() return tonumber(redis.call('HGET', sizes, 'total') or '0') end
local function forget(name)
  local size = redis.call('HGET', sizes, name)
  if size then redis.call('HINCRBY', sizes, 'total', -size) end
  redis.call('HDEL', sizes, name)
  redis.call('HDEL', '@lives', name)
  redis.call('ZREM', recency, name)
end
local function enter(name, size, ttl_ms)
  if tonumber(redis.call('HGET', sizes, name)) ~= size then
    forget(name)
    redis.call('HSET', sizes, name, size)
    redis.call('HINCRBY', sizes, 'total', size)
  end
  redis.call('ZADD', recency, now(), name)
  redis.call('HSET', '@lives', name, ttl_ms)
  for _, index in ipairs({recency, sizes, '@lives'}) do live(index, ttl_ms) end
end
local function lease(request, ttl_ms)
  if request == '' then return end
  local name = '@lease:' .. key
  redis.call('ZADD', name, now() + ttl_ms * 1000, request)
  live(name, ttl_ms)
end
local function leased(name)
  redis.call('ZREMRANGEBYSCORE', '@lease:' .. name, '-inf', now())
  return redis.call('EXISTS', '@lease:' .. name) == 1
end
-- Entries whose value has expired: all lives are renewed with the last use, so they are the oldest.
local function purge()
  local oldest = redis.call('ZRANGE', recency, 0, 0)[1]
  while oldest and redis.call('EXISTS', '@value:' .. oldest) == 0 do
    forget(oldest)
    oldest = redis.call('ZRANGE', recency, 0, 0)[1]
  end
end
-- A server that evicts by itself may take one of the two indexes: what is left is counted anew.
local function heal()
  if redis.call('ZCARD', recency) == math.max(redis.call('HLEN', sizes) - 1, 0) then return end
  for _, name in ipairs(redis.call('HKEYS', sizes)) do
    if name ~= 'total' then redis.call('ZADD', recency, 'NX', 0, name) end
  end
  local sum, ttl_ms = 0, math.max(redis.call('PTTL', recency), redis.call('PTTL', sizes))
  redis.call('DEL', sizes)
  for _, name in ipairs(redis.call('ZRANGE', recency, 0, -1)) do
    local size = redis.call('STRLEN', '@value:' .. name)
    if size == 0 then redis.call('ZREM', recency, name) else redis.call('HSET', sizes, name, size) end
    sum = sum + size
  end
  redis.call('HSET', sizes, 'total', sum)
  live(sizes, ttl_ms)
  live(recency, ttl_ms)
end
"""


def _script(body: str) -> str:
    return ALLOW_OOM + (_COMMON + body).replace("@", PREFIX)


# KEYS: owner; ARGV: owner, its life in ms, request, its lease in ms.
RESERVE = _script("""
if redis.call('EXISTS', value) == 1 then
  lease(ARGV[4], ARGV[5])
  return 'ready'
end
if redis.call('SET', KEYS[4], ARGV[2], 'NX', 'PX', ARGV[3]) then return 'reserved' end
if redis.call('GET', KEYS[4]) == ARGV[2] then
  redis.call('PEXPIRE', KEYS[4], ARGV[3])
  return 'reserved'
end
return 'busy'
""")
# KEYS: owner, staged; ARGV: owner, life in ms, budget, whether leased entries stay, request, its lease in ms, checksum
# (of a staged value that lacks it, else '').
# Nothing is evicted in vain: first the victims are found, and they go only if that makes enough room.
COMMIT = _script("""
local size, budget = redis.call('STRLEN', KEYS[5]), tonumber(ARGV[4])
if size == 0 then return redis.error_reply('NOVALUE nothing was staged') end
heal()
purge()
redis.call('DEL', value)
forget(key)
local victims, free, at = {}, budget - total(), 0
while free < size do
  local name = redis.call('ZRANGE', recency, at, at)[1]
  if not name then break end
  if ARGV[5] ~= '1' or not leased(name) then
    victims[#victims + 1] = name
    free = free + tonumber(redis.call('HGET', sizes, name))
  end
  at = at + 1
end
local stored, evicted = 0, 0
if free >= size then
  for _, name in ipairs(victims) do
    evicted = evicted + redis.call('DEL', '@value:' .. name)
    forget(name)
  end
  if ARGV[8] ~= '' then redis.call('SETRANGE', KEYS[5], 0, ARGV[8]) end
  redis.call('RENAME', KEYS[5], value)
  redis.call('PEXPIRE', value, ARGV[3])
  enter(key, size, ARGV[3])
  lease(ARGV[6], ARGV[7])
  stored = 1
else
  redis.call('DEL', KEYS[5])
end
if redis.call('GET', KEYS[4]) == ARGV[2] then redis.call('DEL', KEYS[4]) end
return {stored, evicted, total()}
""")
# ARGV: life in ms (0: that for which it was written), request whose lease ends (or ''). The bytes of the value, 0 when
# it is not there.
TOUCH = _script("""
local size, ttl_ms = redis.call('STRLEN', value), ARGV[2]
if ttl_ms == '0' then ttl_ms = redis.call('HGET', '@lives', key) or redis.call('PTTL', value) end
if ARGV[3] ~= '' then redis.call('ZREM', '@lease:' .. key, ARGV[3]) end
if size == 0 then
  forget(key)
  return 0
end
redis.call('PEXPIRE', value, ttl_ms)
enter(key, size, ttl_ms)
return size
""")
# ARGV: checksum. Only the value that was found bad: a good one may have replaced it meanwhile.
DISCARD = _script("""
if redis.call('GETRANGE', value, 0, 31) ~= ARGV[2] then return 0 end
forget(key)
return redis.call('DEL', value)
""")
# Entries and bytes.
ACCOUNT = _script("""
heal()
purge()
return {redis.call('ZCARD', recency), total()}
""")
# A reservation belongs to its owner and to nobody else. KEYS: owner; ARGV: owner, life in ms.
_IF_OWNER = ALLOW_OOM + "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end "
RENEW = _IF_OWNER + "return redis.call('PEXPIRE', KEYS[1], ARGV[2])"
RELEASE = _IF_OWNER + "return redis.call('DEL', KEYS[1])"
