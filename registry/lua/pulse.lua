-- Show that a host is alive, for all leaderships that its pulse keeps (registry/pulses.py).
-- KEYS[1] pulses (hash: host -> time in ms)
-- ARGV[1] host  ARGV[2] after how many ms a host is forgotten; empty: none is looked for
-- Replies: {former, now, lineage}: the times of the pulse before, empty if there is none, and of this one
-- include: streamlease.streams.redis/lineage
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local former = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local lineage = lineage_here()
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if ARGV[2] ~= '' then
  local all = redis.call('HGETALL', KEYS[1])
  for place = 1, #all, 2 do
    if math.abs(now - (tonumber(all[place + 1]) or 0)) >= tonumber(ARGV[2]) then
      redis.call('HDEL', KEYS[1], all[place])
    end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now))
return {former, string.format('%.0f', now), lineage}
