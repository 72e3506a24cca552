"""What runs inside Redis: each script is one atomic step over keys of one hash slot, and may be repeated.

``EVAL`` scripts and not functions, so that Redis 6.2 will do. A script that fails is not rolled back; therefore
:data:`APPLY` never leaves by an error once it has written, but writes down the row it has come to.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script and the name under which Redis keeps it."""

    text: str
    sha: str


def _script(*parts: str) -> Script:
    text = "\n".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_READ_CHUNK: Final = """
local function open_chunk(chunk)
  local head, command, words, count = string.match(chunk, '^((%u+) (%d+) (%d+)\\n)')
  words, count = tonumber(words), tonumber(count)
  local at, data = #head + 1, #head + 1 + 4 * words * count
  local function next_row()
    local row = {}
    for word = 1, words do
      local length
      length, at = struct.unpack('>I4', chunk, at)
      row[word] = string.sub(chunk, data, data + length - 1)
      data = data + length
    end
    return row
  end
  return command, count, next_row
end
"""

_READ_PROGRESS: Final = """
local base, uuid = tonumber(ARGV[1]), ARGV[2]
local fence = tonumber(redis.call('HGET', KEYS[1], 'base') or 0)
local done, row = 0, 0
if base == fence then
  local progress = redis.call('HGET', KEYS[1], uuid)
  if progress then
    done, row = string.match(progress, '^(%d+):(%d+)$')
    done, row = tonumber(done), tonumber(row)
  end
end
"""

#: KEYS applied, slice; ARGV base, uuid, chunk. The markers of earlier decisions go in the very step that raises the
#: fence above them: a marker that went earlier would let a paused driver apply its increments once more.
APPLY: Final = _script(
    _READ_CHUNK,
    _READ_PROGRESS,
    """
local wanted = tonumber(ARGV[3])
if base < fence then return {'STALE'} end
if done > wanted then return {'DONE'} end
if done < wanted then return {'EARLIER'} end
local chunk = redis.call('HGET', KEYS[2], wanted)
if not chunk then return {'GONE'} end
if base > fence then
  redis.call('HSET', KEYS[1], 'base', ARGV[1])
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if field ~= 'base' then redis.call('HDEL', KEYS[1], field) end
  end
end
local command, count, next_row = open_chunk(chunk)
for at = 1, count do
  local words = next_row()
  if at > row then
    local answer = redis.pcall(command, unpack(words))
    if type(answer) == 'table' and answer.err then
      if at > row + 1 then redis.call('HSET', KEYS[1], uuid, wanted .. ':' .. (at - 1)) end
      return {'FAILED', words[1], answer.err}
    end
  end
end
redis.call('HSET', KEYS[1], uuid, (wanted + 1) .. ':0')
redis.call('HDEL', KEYS[2], wanted)
return {'DONE'}
""",
)

#: KEYS applied, slice; ARGV base, uuid, chunks, touch. ``touch`` makes it write, so that a WAIT behind it covers
#: everything before it, on whatever connection that was written.
LOOK: Final = _script(
    _READ_PROGRESS,
    """
local chunks = tonumber(ARGV[3])
if base < fence then return 'STALE' end
if done == chunks then
  if ARGV[4] == '1' then redis.call('HSET', KEYS[1], 'base', ARGV[1]) end
  return 'COMMITTED'
end
local untouched = done == 0 and row == 0
if redis.call('HLEN', KEYS[2]) == chunks - done then
  return untouched and 'PREPARED' or 'APPLYING'
end
return untouched and 'LOST' or 'TORN'
""",
)

#: KEYS applied, slice; ARGV base, uuid. What is lost in part must not be applied in part by somebody who wakes up later.
BURY: Final = _script(
    _READ_PROGRESS,
    """
if base < fence or done > 0 or row > 0 then return 'TORN' end
redis.call('UNLINK', KEYS[2])
return 'LOST'
""",
)

#: KEYS slice; ARGV chunk. Its SHA-1, and the first key that the chunk's command cannot be applied to, with the reason.
CHECK: Final = _script(
    _READ_CHUNK,
    """
local chunk = redis.call('HGET', KEYS[1], ARGV[1])
if not chunk then return {} end
local command, count, next_row = open_chunk(chunk)
local types = {SET='string', INCRBY='string', INCRBYFLOAT='string', HSET='hash', HINCRBY='hash', HINCRBYFLOAT='hash',
               SADD='set', ZADD='zset', RPUSH='list', XADD='stream'}
local wanted, sums = types[command], {}
local is_counter, is_float = string.find(command, 'INCRBY') ~= nil, string.find(command, 'FLOAT') ~= nil
local function held(key, field)
  if field then return redis.pcall('HGET', key, field) end
  return redis.pcall('GET', key)
end
local function refusal_of_type(key)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= wanted then
    return 'it holds a ' .. found .. ', ' .. command .. ' needs a ' .. wanted
  end
end
local function refusal(words)
  local key, field = words[1], words[3] and words[2]
  if not is_counter then return refusal_of_type(key) end
  local name = field and (#key .. ':' .. key .. field) or key
  local sum = sums[name]
  if not sum then
    local old = held(key, field) or '0'
    if type(old) == 'table' then return refusal_of_type(key) or old.err end
    if is_float then
      if not tonumber(old) then return 'its value is no number' end
    elseif not string.match(old, '^-?%d+$') then
      return 'its value is no integer'
    end
    sum = tonumber(old)
  end
  sum = sum + tonumber(words[#words])
  if not is_float and math.abs(sum) > 9223372036854775807 then return 'the sum would be over 64 bits' end
  sums[name] = sum
end
if wanted then
  for _ = 1, count do
    local words = next_row()
    local reason = refusal(words)
    if reason then return {redis.sha1hex(chunk), words[1], reason} end
  end
end
return {redis.sha1hex(chunk)}
""",
)

#: KEYS control; ARGV run, the incarnation seen before, lineage, a fresh id. 0: somebody else was faster.
ACQUIRE: Final = _script(
    """
local incarnation = redis.call('HGET', KEYS[1], 'incarnation') or '0'
if redis.call('HGET', KEYS[1], 'run') == ARGV[1] then return tonumber(incarnation) end
if incarnation ~= ARGV[2] then return 0 end
redis.call('HSETNX', KEYS[1], 'id', ARGV[4])
if redis.call('HGET', KEYS[1], 'lineage') ~= ARGV[3] then redis.call('HDEL', KEYS[1], 'decided') end
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'lineage', ARGV[3])
return redis.call('HINCRBY', KEYS[1], 'incarnation', 1)
""",
)

#: KEYS control; ARGV run, base. Notes the newest decision of the query that drives, before any of it is applied; 0: fenced.
NOTE: Final = _script(
    """
if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then return 0 end
if tonumber(redis.call('HGET', KEYS[1], 'decided') or 0) < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], 'decided', ARGV[2])
end
return 1
""",
)

#: KEYS control; ARGV run, the time in ms, the last decision's version. A version above all three; 0: fenced.
RESERVE: Final = _script(
    """
if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then return 0 end
local last = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
local version = string.format('%.0f', math.max(tonumber(ARGV[2]), last + 1, tonumber(ARGV[3]) + 1))
redis.call('HSET', KEYS[1], 'version', version)
return tonumber(version)
""",
)
