-- A process takes no more requests: what it has not read, and the end of the stream, in one act.
-- KEYS[1] stream of requests
-- ARGV[1] the last id that was read
-- Replies: {{id, {field, value, ...}}, ...}, what came behind that
local left = redis.call('XRANGE', KEYS[1], ARGV[1], '+')
redis.call('DEL', KEYS[1])
if left[1] and left[1][1] == ARGV[1] then
  table.remove(left, 1)
end
return left
