-- The end of a log: what one_append.lua and append_staged.lua check and write alike. They include this file.
--
-- KEYS  none: the log is handed in
-- ARGV  none
--
-- Replies: the first three functions answer what the script has to reply, or nil if it may go on.
--
-- `meta` holds the fields next, state, last_append, bytes and schema of the meta.

local function takes_nothing(meta)
  if meta[2] == 'open' then
    return
  end
  -- 'epochs': only a keeper moves messages into it.
  return {(meta[2] == 'pending' or meta[2] == 'epochs') and meta[2] or 'sealed'}
end

-- In a space with a schema the first field of an entry is 's', the fingerprint of the schema.
local function other_schema(meta, field, value)
  local schema = meta[5] or ''
  if schema ~= (field == 's' and value or '') then
    return {'schema', schema}
  end
end

-- What others put into the log lies where the next entries belong, and would be read as one of them.
local function foreign(meta, log_key)
  -- From the end backwards: from `next` on, Redis would read the last node of the log up to there.
  local next = meta[1] .. '-0'
  if redis.call('XREVRANGE', log_key, '+', next, 'COUNT', 1)[1] then
    return {'foreign', redis.call('XRANGE', log_key, next, '+', 'COUNT', 1)[1][1]}
  end
end

-- The append time, in microseconds, given the answer of TIME, as a number and as text; strictly later than that of the entry before: a time
-- then names one point of the stream, whatever the clock does.
local function append_time(meta, time)
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local least = (tonumber(meta[3]) or 0) + 1
  if now < least then
    return least, string.format('%.0f', least)
  end
  return now, time[1] .. string.sub('00000' .. time[2], -6)
end
