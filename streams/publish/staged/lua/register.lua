-- Note that keys are staged for a sink, before they are written, so that whoever commits can remove them.
--
-- KEYS  1 all that is staged for the sink (set)
-- ARGV  1 expiry of the set, in seconds
--       2 <batch> <stream> <token>
--
-- Replies
--   {'noted'}

redis.call('SADD', KEYS[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {'noted'}
