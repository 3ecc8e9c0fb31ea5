-- Take an entry that cannot be a message out of an inbox, and keep it with the reason.
--
-- KEYS  1 inbox (stream)  2 refused entries (stream)
-- ARGV  1 id of the entry
--       2 about how many refused entries to keep
--       3 '' if the entry's id can be a position. Otherwise the highest id that was ever moved: once the inbox
--         is empty, ids go on behind that one and the time of day. Redis itself gives higher ids only, so
--         that no later entry could ever be a message
--       4 why it is refused
--       5... field, value   of the entry, at most 2,000 pairs
--
-- Replies
--   {'refused'}
--   {'gone'}       it is not in the inbox any more

if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then
  return {'gone'}
end
-- XADD first: what Redis refuses for want of memory, or because it is too much, is refused before anything is lost.
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'refused-because', ARGV[4], 'refused-id', ARGV[1], unpack(ARGV, 5))
redis.call('XDEL', KEYS[1], ARGV[1])
if ARGV[3] ~= '' and redis.call('XLEN', KEYS[1]) == 0 then
  local ms = string.match(ARGV[3], '^(%d+)-')
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local from = ARGV[3]
  if now > tonumber(ms) then
    from = string.format('%.0f-0', now)
  end
  redis.call('DEL', KEYS[1])
  redis.call('XADD', KEYS[1], from, 'begins', 'behind')
  redis.call('XDEL', KEYS[1], from)
end
return {'refused'}
