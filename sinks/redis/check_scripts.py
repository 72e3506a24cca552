"""Define the scripts that determine, before the decision, whether Redis will execute the staged commands.

The scripts do not hard-code which numbers a command accepts. Lua reads ``007``, ``0x10`` and 2^63 as numbers, but ``INCRBY``
does not. If Lua and the command may disagree about a number, a script tries the command itself on a scratch key.

The slice is the only declared key. While a hash slot moves to another node, Redis rejects a call that declares an
absent key. The client sends these scripts only to the slot's own node (:class:`SlotMovingError`).
"""

from __future__ import annotations

from typing import Final

from twopc.sinks.redis.scripts import READ_CHUNK, script

#: KEYS slice; ARGV chunk, scratch. Returns nothing if the chunk is missing. Otherwise, returns the chunk's SHA-1, and
#: then the key and reason of the first command that cannot be applied, or two empty strings. For counters, the script
#: also returns two numbers: the largest absolute value that a counter could reach with this chunk, and the largest change
#: that the chunk makes to a counter. Each number is a fraction of the range that is certainly safe. The first number is
#: ``inf`` if Lua and the commands might read a value differently.
#:
#: The script executes the first row on the scratch key. This fails if the user is not allowed to run the command, if the
#: server has renamed the command, or if the server is full or read-only. Since Redis 7, read and write permissions on a
#: key are separate. Unless the user may write all keys, the script therefore asks ``acl_check_cmd`` about each key.
CHECK: Final = script(
    READ_CHUNK,
    """
local chunk = redis.call('HGET', KEYS[1], ARGV[1])
if not chunk then return {} end
local sha = redis.sha1hex(chunk)
local command, count, next_row = open_chunk(chunk)
local types = {SET='string', INCRBY='string', INCRBYFLOAT='string', HSET='hash', HINCRBY='hash', SADD='set', ZADD='zset',
               RPUSH='list', XADD='stream'}
local wanted, is_counter = types[command], string.find(command, 'INCRBY') ~= nil
local is_float = command == 'INCRBYFLOAT'
local safe = is_float and 1e300 or 2^62
local may_run = redis.acl_check_cmd
if may_run and may_run(command, '\\255' .. sha) then may_run = nil end
local last_ms = '18446744073709551615'

local function refusal_of_type(key)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and wanted and found ~= wanted then
    return 'it contains a ' .. found .. ', but ' .. command .. ' needs a ' .. wanted
  end
  if found == wanted and wanted == 'stream' then
    local facts = redis.call('XINFO', 'STREAM', key)
    for at = 1, #facts, 2 do
      if facts[at] == 'last-generated-id' and string.match(facts[at + 1], '^%d+') == last_ms then
        return 'its last id is ' .. facts[at + 1] .. ', and Redis cannot create a later id'
      end
    end
  end
end

local function is_plain(number)
  if is_float then return #number <= 300 and string.find(number, '^-?%d+%.?%d*$') end
  return number == '0' or #number <= 20 and string.find(number, '^-?[1-9]%d*$')
end

local seen, moved, top, most = {}, {}, 0, 0
local function count_in(key, words)
  local field = #words > 2 and words[2]
  local name = field and (#key .. ':' .. key .. field) or key
  local sum = seen[name]
  if not sum then
    local held = field and redis.pcall('HGET', key, field) or not field and redis.pcall('GET', key) or '0'
    if type(held) == 'table' then return refusal_of_type(key) or held.err end
    sum = is_plain(held) and math.abs(tonumber(held)) or math.huge
    moved[name] = 0
  end
  local by = math.abs(tonumber(words[#words]))
  seen[name], moved[name] = sum + by, moved[name] + by
  top, most = math.max(top, seen[name]), math.max(most, moved[name])
end

local function look_at(key)
  if seen[key] then return end
  seen[key] = true
  return refusal_of_type(key)
end

for at = 1, count do
  local words = next_row()
  local key, reason = words[1], nil
  if at == 1 then
    local answer = redis.pcall(command, ARGV[2], unpack(words, 2))
    redis.call('UNLINK', ARGV[2])
    if type(answer) == 'table' then reason = answer.err end
  end
  if not reason and may_run and not may_run(command, unpack(words)) then
    reason = 'NOPERM: no permission to run ' .. command .. ' on it'
  end
  if not reason then
    if is_counter then reason = count_in(key, words) else reason = look_at(key) end
  end
  if reason then return {sha, key, reason} end
end
return {sha, '', '', string.format('%.17g', top / safe), string.format('%.17g', most / safe)}
""",
    uses_data=True,
)

#: KEYS slice; ARGV chunk, position, rehearsal, values, scratch. Executes a chunk's increments on copies. The hash
#: ``values`` keeps the copies from chunk to chunk, so that increments see the earlier chunks' results. ``rehearsal``
#: identifies the rehearsal that owns the hash. ``position`` is the chunk's number in the order of application. The
#: script may be called repeatedly. Returns nothing if the chunk is missing, ``LOST`` if the copies are missing,
#: ``FITS`` if Redis accepts all increments, and otherwise ``REFUSED`` with four more values: the key, the error from
#: Redis, the command with its increment, and the value that the increment would change.
REHEARSE: Final = script(
    READ_CHUNK,
    """
local at = tonumber(ARGV[2])
local chunk = redis.call('HGET', KEYS[1], ARGV[1])
if not chunk then return {} end
local owner, done = unpack(redis.call('HMGET', ARGV[4], 'rehearsal', 'done'))
if owner ~= ARGV[3] then
  if at > 0 then return {'LOST'} end
  redis.call('UNLINK', ARGV[4])
  done = 0
end
if tonumber(done) > at then return {'FITS'} end
if tonumber(done) < at then return {'LOST'} end
local command, count, next_row = open_chunk(chunk)
local copies = {}
for _ = 1, count do
  local words = next_row()
  local key, field = words[1], #words > 2 and words[2]
  local name = field and ('=' .. #key .. ':' .. key .. field) or ('=' .. key)
  local held = copies[name] or redis.call('HGET', ARGV[4], name)
  if not held then
    if field then held = redis.pcall('HGET', key, field) else held = redis.pcall('GET', key) end
    if type(held) == 'table' then return {'REFUSED', key, held.err, command, 'another type'} end
  end
  redis.call('UNLINK', ARGV[5])
  if held then
    if field then redis.call('HSET', ARGV[5], field, held) else redis.call('SET', ARGV[5], held) end
  end
  local answer = redis.pcall(command, ARGV[5], unpack(words, 2))
  if type(answer) == 'table' and answer.err then
    redis.call('UNLINK', ARGV[5])
    return {'REFUSED', key, answer.err, command .. ' ' .. words[#words], string.sub(held or '0', 1, 40)}
  end
  if field then copies[name] = redis.call('HGET', ARGV[5], field) else copies[name] = redis.call('GET', ARGV[5]) end
end
redis.call('UNLINK', ARGV[5])
for name, value in pairs(copies) do redis.call('HSET', ARGV[4], name, value) end
redis.call('HSET', ARGV[4], 'rehearsal', ARGV[3], 'done', at + 1)
return {'FITS'}
""",
    uses_data=True,
)
