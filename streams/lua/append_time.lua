-- When the message at an offset, or the first one left after it, was appended. Only that field is sent: an
-- entry may hold a thousand messages.
-- KEYS[1] stream log
-- ARGV[1] entry id to begin with
-- Replies: the field "a" of the entry; false if there is no entry, or it has no such field
local entries = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', 1)
if #entries == 0 then
  return false
end
local fields = entries[1][2]
for place = 1, #fields, 2 do
  if fields[place] == 'a' then
    return fields[place + 1]
  end
end
return false
