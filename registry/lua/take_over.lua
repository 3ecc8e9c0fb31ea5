-- Take leadership from a host that did not renew in time. The record must be unchanged since the candidate
-- watched it for a whole ttl of its own clock, and expired by the clock of Redis as well: renewed a ttl ago, or
-- a ttl in the future, from before that clock went back.
-- KEYS[1] leadership record
-- ARGV[1] host  ARGV[2] mailbox  ARGV[3] ttl in ms  ARGV[4] the new term must be above this one
-- ARGV[5] term that was watched  ARGV[6] renewed_at that was watched
-- ARGV[7] by how much the term rises if Redis may have lost terms that were issued (see registry/leadership.py)
-- Replies: {1, term, history} taken over; {0, term} the record changed or has not expired
local held = redis.call('HMGET', KEYS[1], 'term', 'renewed_at', 'ttl', 'history')
local term = tonumber(held[1] or '0') or 0
if held[1] ~= ARGV[5] or held[2] ~= ARGV[6] then
  return {0, term}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if math.abs(now - tonumber(held[2])) < tonumber(held[3]) then
  return {0, term}
end
local info = redis.pcall('INFO', 'replication')
local history = ''
if type(info) == 'string' then
  history = string.match(info, 'master_replid:(%x+)') or ''
end
local floor, step = tonumber(ARGV[4]), 1
if floor > term or history ~= (held[4] or '') then
  term, step = math.max(term, floor), tonumber(ARGV[7])
end
term = term + step
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/scripts.py
redis.call('HSET', KEYS[1], 'term', string.format('%.0f', term), 'host', ARGV[1], 'mailbox', ARGV[2],
  'renewed_at', string.format('%.0f', now), 'ttl', ARGV[3], 'history', history)
return {1, term, history}
