-- Where a stream ends, the lowest offset that exists, and when the message at an offset, or the first one that
-- exists after it, was appended. Only that field of the entry is sent: an entry may hold a thousand messages.
-- KEYS[1] stream meta  KEYS[2] stream log
-- ARGV[1] offset  ARGV[2] entry id to begin with
-- Replies: {next, lowest offset, append time}, the time '' if nothing is at the offset or behind it, or the message
--          is not in memory, or its time is not told; false if there is no such stream
local meta = redis.call('HMGET', KEYS[1], 'next', 'floor', 'exists')
if not meta[1] then
  return false
end
local offset, memory, exists = tonumber(ARGV[1]), meta[2] or '0', meta[3] or meta[2] or '0'
local since = ''
local elsewhere = meta[3] and math.max(offset, tonumber(exists)) < tonumber(memory)
if offset < tonumber(meta[1]) and not elsewhere then
  local entries = redis.call('XRANGE', KEYS[2], ARGV[2], '+', 'COUNT', 1)
  local fields = entries[1] and entries[1][2] or {}
  for place = 1, #fields, 2 do
    if fields[place] == 'a' then
      since = fields[place + 1]
      break
    end
  end
end
return {meta[1], exists, since}
