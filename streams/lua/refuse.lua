-- Take an entry that cannot be a message out of an inbox, and keep it with the reason.
--
-- KEYS  1 inbox (stream)  2 refused entries (stream)
-- ARGV  1 id of the entry
--       2 about how many refused entries to keep
--       3 why it is refused
--       4... field, value   of the entry
--
-- Replies
--   {'refused'}
--   {'gone'}       it is not in the inbox any more

if redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then
  return {'gone'}
end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'refused-because', ARGV[3], 'refused-id', ARGV[1], unpack(ARGV, 4))
return {'refused'}
