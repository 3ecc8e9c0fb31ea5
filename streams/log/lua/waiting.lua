-- Where a stream ends, the lowest offset that is left, and when the message at an offset, or the first one that is
-- left after it, was appended. Only that field of the entry is sent: an entry may hold a thousand messages.
-- KEYS[1] stream meta  KEYS[2] stream log
-- ARGV[1] offset  ARGV[2] entry id to begin with
-- Replies: {next, lowest offset, append time}, the time '' if nothing is at the offset or behind it, or its time
--          is not told; false if there is no such stream
local meta = redis.call('HMGET', KEYS[1], 'next', 'floor')
if not meta[1] then
  return false
end
local since = ''
if tonumber(ARGV[1]) < tonumber(meta[1]) then
  local entries = redis.call('XRANGE', KEYS[2], ARGV[2], '+', 'COUNT', 1)
  local fields = entries[1] and entries[1][2] or {}
  for place = 1, #fields, 2 do
    if fields[place] == 'a' then
      since = fields[place + 1]
      break
    end
  end
end
return {meta[1], meta[2] or '0', since}
