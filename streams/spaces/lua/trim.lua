-- Remove the oldest entries that retention does not want any more and nobody needs, and store the floor.
--
-- An entry is surplus if it is older than the age, or lies wholly below the newest `messages`, or the stream
-- holds more than `bytes`. Entries go from the oldest on, whole, and only if they lie wholly below the limit.
-- One whose append time cannot be read (it is damaged) goes with the next one: times rise from entry to entry.
--
-- KEYS  1 meta (hash)  2 log (stream)  3 merged (stream): what is below the log
-- ARGV  1 limit      nothing at or above this offset is removed
--       2 age        in microseconds, by this server's clock; -1: any
--       3 bytes      -1: any
--       4 messages   -1: any
--       5 term       of the caller; a lower one than the last is refused
--       6 holder     who needs what is at the limit; shown while surplus entries are held back
--       7 most entries, 8 most bytes to look at in this call
--       9 1: nothing that is not in the archive is removed, as the meta says
--
-- Replies
--   {'trimmed', floor, bytes left, entries removed, messages removed, more, held}
--          more: 1 if the call ended because of 7 or 8; held: 1 if surplus entries stay because of the limit
--   {'fenced', term}      a caller with a higher term was here
--   {'unknown'}           there is no such stream

local meta = redis.call('HMGET', KEYS[1], 'next', 'floor', 'bytes', 'trimmed_at', 'trim_term', 'held_by',
  'last_append', 'merged', 'archived')
if not meta[1] then
  return {'unknown'}
end
local number = {}
for i, place in ipairs({1, 2, 3, 4, 5, 7, 8}) do
  number[i] = tonumber(ARGV[place])
  if not number[i] then
    return redis.error_reply('ERR trim: limit, age, bytes, messages, term and budgets must be numbers')
  end
end
local limit, age, most, keep, term, entries_left, bytes_left = unpack(number)
if term < (tonumber(meta[5]) or 0) then
  return {'fenced', tonumber(meta[5])}
end

if meta[9] or ARGV[9] == '1' then
  limit = math.min(limit, tonumber(meta[9]) or 0)
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local next = tonumber(meta[1])
local floor = tonumber(meta[2]) or 0
local size = tonumber(meta[3]) or 0
local trimmed_at = tonumber(meta[4]) or 0
local latest = tonumber(meta[7]) or 0
local entries, messages, more, held = 0, 0, 0, 0
local undated = {entries = 0, messages = 0, size = 0}

local function surplus(last, appended)
  return (age >= 0 and now - appended > age) or (keep >= 0 and last < next - keep) or (most >= 0 and size > most)
end

-- What was merged is older than the log.
local key, from, count, stop = meta[8] and KEYS[3] or KEYS[2], '-', 1, false
while true do
  local page = redis.call('XRANGE', key, from, '+', 'COUNT', count)
  local ended, seen = #page < count, 0
  for i = 1, #page do
    local last, many = string.match(page[i][1], '^(%d+)-(%d+)$')
    last, many = tonumber(last), tonumber(many)
    local fields, own, appended = page[i][2], 0, nil
    for f = 1, #fields, 2 do
      own = own + #fields[f] + #fields[f + 1]
      if fields[f] == 'a' then
        appended = tonumber(fields[f + 1])
      end
    end
    if appended and not (appended >= 0 and appended <= latest) then
      appended = nil
    end
    if surplus(last, appended or now) then
      if last >= limit then
        stop, held = true, 1
        break
      end
      entries, messages = entries + 1 + undated.entries, messages + many + undated.messages
      size = math.max(0, size - own - undated.size)
      floor = math.max(floor, last + 1)
      trimmed_at = math.max(trimmed_at, appended or 0)
      undated = {entries = 0, messages = 0, size = 0}
    elseif appended or age < 0 or last >= limit then
      stop = true
      break
    else
      undated = {entries = undated.entries + 1, messages = undated.messages + many, size = undated.size + own}
    end
    seen = seen + own
    from = '(' .. page[i][1]
  end
  if stop or (ended and key == KEYS[2]) then
    break
  end
  entries_left, bytes_left = entries_left - #page, bytes_left - seen
  if entries_left <= 0 or bytes_left <= 0 then
    more = 1
    break
  end
  if ended then
    key, from = KEYS[2], '-'
  end
  -- As many at once as make about 256 KiB, judged by the page before.
  count = math.max(1, math.min(256, entries_left, math.floor(262144 * #page / math.max(1, seen))))
end

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if entries > 0 then
  redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f-0', floor))
  if meta[8] then
    redis.call('XTRIM', KEYS[3], 'MINID', string.format('%.0f-0', floor))
  end
end
if entries > 0 or meta[5] ~= ARGV[5] then
  redis.call('HSET', KEYS[1], 'floor', string.format('%.0f', floor), 'bytes', string.format('%.0f', size),
    'trimmed_at', string.format('%.0f', trimmed_at), 'trim_term', ARGV[5])
end
if held == 1 then
  if meta[6] ~= ARGV[6] then
    redis.call('HSET', KEYS[1], 'held_by', ARGV[6], 'held_since', string.format('%.0f', now))
  end
elseif meta[6] and more == 0 then
  redis.call('HDEL', KEYS[1], 'held_by', 'held_since')
end
return {'trimmed', floor, size, entries, messages, more, held}
