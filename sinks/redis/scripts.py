"""Define the scripts that run inside Redis. Each script is an atomic step on keys in one hash slot. Repeated calls are safe.

All scripts use ``EVAL``, because Redis 6.2 has no functions. Redis does not roll back a failed script. So after its first
write, :data:`APPLY` never ends with an error. Instead, the script records the last row that it has applied.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple


class Script(NamedTuple):
    """A script.

    Attributes:
        text: the source text.
        sha: the SHA-1 that identifies the script in Redis's cache.
        uses_data: whether the script uses the user's keys, which it does not declare.
    """

    text: str
    sha: str
    uses_data: bool


def script(*parts: str, uses_data: bool = False) -> Script:
    """Join several parts into one script."""
    text = "\n".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), uses_data)


#: Opens a chunk from :mod:`twopc.sinks.redis.chunks`. Returns the chunk's command, its number of rows, and a function that
#: returns the next row.
READ_CHUNK: Final = """
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

#: KEYS applied, slice; ARGV base, uuid, chunk. The call that raises the fence also removes earlier decisions' markers.
#: Without the fence, a paused driver would apply its increments again after this removal.
APPLY: Final = script(
    READ_CHUNK,
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
    uses_data=True,
)

#: KEYS applied, slice; ARGV base, uuid, chunks, touch. Returns the name of a SliceState. ``touch`` makes the script write, so
#: that a later WAIT covers all earlier writes, from every connection.
LOOK: Final = script(
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

#: KEYS applied, slice; ARGV base, uuid. Prevents a paused driver from applying part of a partly lost slice later.
TOMBSTONE: Final = script(
    _READ_PROGRESS,
    """
if base < fence or done > 0 or row > 0 then return 'TORN' end
redis.call('UNLINK', KEYS[2])
return 'LOST'
""",
)

#: KEYS control; ARGV the value read ('' if absent) and the value to write. Returns 0 if another value is stored. After
#: a lost response, the new value may already be stored. In that case, the script writes the value again, so that a later
#: WAIT covers this write.
SWAP: Final = script(
    """
local held = redis.call('HGET', KEYS[1], 'record') or ''
if held ~= ARGV[1] and held ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'record', ARGV[2])
return 1
""",
)
