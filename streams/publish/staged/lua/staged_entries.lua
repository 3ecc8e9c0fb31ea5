-- What tasks of a sink have staged: how append_staged.lua and stage_batch.lua read it and put it into a log. They
-- include this file behind log_end.lua.
--
-- KEYS  none: they are handed in
-- ARGV  none
--
-- Replies: the first function answers what the script has to reply, or nil if it may go on.

-- Put the entries of a staged key, which is number `place`, into `entries`; it must have so many, with so many messages.
local function read_staged(key, place, named, messages, entries)
  local staged = redis.call('XRANGE', key, '-', '+')
  local total = 0
  for j = 1, #staged do
    local index, count = string.match(staged[j][1], '^(%d+)%-(%d+)$')
    if tonumber(index) ~= j then
      return {'missing', place, j - 1}
    end
    total = total + tonumber(count)
    entries[#entries + 1] = {tonumber(count), staged[j][2]}
  end
  if #staged ~= tonumber(named) or total ~= tonumber(messages) then
    return {'missing', place, #staged}
  end
end

-- Append the entries at the end of a log, with the fields in `more` behind their own; the first offset, and the append
-- time of the last one as text. PUBLISH tells `news`.
local function append_entries(meta, meta_key, log_key, entries, more, news)
  local now = append_time(meta, redis.call('TIME'))
  local first = tonumber(meta[1])
  local next = first
  local size = tonumber(meta[4]) or 0
  local stamp = ''
  for i = 1, #entries do
    -- Each entry is strictly later than the one before: a time names one point of the stream.
    stamp = string.format('%.0f', now + i - 1)
    local count, fields = entries[i][1], entries[i][2]
    for j = 1, #more do
      fields[#fields + 1] = more[j]
    end
    redis.call('XADD', log_key, string.format('%.0f-%.0f', next + count - 1, count), 'a', stamp, unpack(fields))
    next = next + count
    size = size + 1 + #stamp
    for j = 1, #fields do
      size = size + #fields[j]
    end
  end
  local after = string.format('%.0f', next)
  redis.call('HSET', meta_key, 'next', after, 'last_append', stamp, 'bytes', string.format('%.0f', size))
  redis.call('PUBLISH', news, after)
  return first, stamp
end
