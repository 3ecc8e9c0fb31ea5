-- Append one group commit to the journal, if the term is still the leader's and the journal ends where it knows,
-- and mirror the progress that it makes.
-- KEYS[1] leadership record  KEYS[2] journal  KEYS[3] progress (hash: stream -> committed, and @fields)
-- ARGV[1] host  ARGV[2] term  ARGV[3] number of this commit in the term  ARGV[4] records (JSON array)
-- ARGV[5] id of the newest entry that the leader knows, 0-0 for none
-- ARGV[6] lineage of the data in which the term was issued; empty: not compared
-- ARGV[7] how many fields are to leave the progress hash  ARGV[8...] their names, then field, value, ... for it
-- Replies: {1, entry id} appended, now or by an attempt before; {0, term} another term or host: stop;
--          {2, entry id} the journal ends here, with an entry that the leader did not write last: its tail was lost;
--          {3, lineage} Redis goes on with another lineage: heal the journal and give up the term
local held = redis.call('HMGET', KEYS[1], 'term', 'host')
if held[1] ~= ARGV[2] or held[2] ~= ARGV[1] then
  return {0, held[1] or '0'}
end
local info = ARGV[6] ~= '' and redis.pcall('INFO', 'replication')
if type(info) == 'string' then
  local lineage = string.match(info, 'master_replid:(%x+)') or ''
  if lineage ~= ARGV[6] then
    return {3, lineage}
  end
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local last = newest and newest[1] or '0-0'
if last ~= ARGV[5] then
  local fields = newest and newest[2] or {}
  if fields[1] == 't' and fields[2] == ARGV[2] and fields[3] == 'n' and fields[4] == ARGV[3] then
    -- A write, so that WAIT or WAITAOF behind a repetition covers the attempt before.
    redis.call('HSET', KEYS[1], 'term', ARGV[2])
    return {1, last}
  end
  return {2, last}
end
local id = redis.call('XADD', KEYS[2], '*', 't', ARGV[2], 'n', ARGV[3], 'r', ARGV[4])
-- Lua unpacks some thousand values at once at most.
local first = 8 + tonumber(ARGV[7])
for i = 8, first - 1, 2000 do
  redis.call('HDEL', KEYS[3], unpack(ARGV, i, math.min(i + 1999, first - 1)))
end
for i = first, #ARGV, 2000 do
  redis.call('HSET', KEYS[3], unpack(ARGV, i, math.min(i + 1999, #ARGV)))
end
local time = redis.call('TIME')
redis.call('HSET', KEYS[3], '@active', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return {1, id}
