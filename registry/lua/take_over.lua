-- Take leadership from a host that did not renew in time. The record must be unchanged since the candidate
-- watched it for a whole ttl of its own clock, and expired by the clock of Redis as well: renewed a ttl ago, or
-- a ttl in the future, from before that clock went back.
-- KEYS[1] leadership record
-- ARGV[1] host  ARGV[2] mailbox  ARGV[3] ttl in ms  ARGV[4] the new term must be above this one
-- ARGV[5] term that was watched  ARGV[6] renewed_at that was watched
-- ARGV[7] by how much the term rises if Redis may have lost terms that were issued (see registry/leadership.py)
-- Replies: {1, term, lineage} taken over; {0, term} the record changed or has not expired
-- include: streamlease.streams.redis/lineage
-- include: streamlease.registry/term
local held = redis.call('HMGET', KEYS[1], 'term', 'renewed_at', 'ttl', 'lineage')
local term = tonumber(held[1] or '0') or 0
if held[1] ~= ARGV[5] or held[2] ~= ARGV[6] then
  return {0, term}
end
local now = now_ms()
if math.abs(now - tonumber(held[2])) < tonumber(held[3]) then
  return {0, term}
end
local lineage = lineage_here()
return lead(term, lineage ~= (held[4] or ''), ARGV[7], now, lineage)
