-- Stay the leader for another ttl.
-- KEYS[1] leadership record
-- ARGV[1] host  ARGV[2] term  ARGV[3] lineage of the data in which the term was issued; empty: not compared
-- ARGV[4] tag of the pulses that renew it from now on (registry/pulses.py); empty: none do
-- Replies: {1, renewed_at} renewed; {2, lineage} Redis goes on with another lineage, nothing was changed;
--          {0, term} another term or host stands there: stop
local held = redis.call('HMGET', KEYS[1], 'term', 'host')
if held[1] ~= ARGV[2] or held[2] ~= ARGV[1] then
  return {0, tonumber(held[1] or '0') or 0}
end
local info = ARGV[3] ~= '' and redis.pcall('INFO', 'replication')
if type(info) == 'string' then
  local lineage = string.match(info, 'master_replid:(%x+)') or ''
  if lineage ~= ARGV[3] then
    return {2, lineage}
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
redis.call('HSET', KEYS[1], 'renewed_at', string.format('%.0f', now), 'pulse', ARGV[4])
return {1, now}
