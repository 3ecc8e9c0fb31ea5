-- Append one group commit to the journal, if the term is still the leader's and the journal ends where it knows,
-- and say in the same act who may commit which stream, and how far it is.
-- KEYS[1] leadership record  KEYS[2] journal  KEYS[3] progress (hash: stream -> committed, and @fields)
-- KEYS[4] leases (hash: stream -> who may commit it, see registry/lua/commit.lua)
-- ARGV[1] host  ARGV[2] term  ARGV[3] number of this commit in the term  ARGV[4] records (JSON array)
-- ARGV[5] id of the newest entry that the leader knows, 0-0 for none
-- ARGV[6] lineage of the data in which the term was issued; empty: not compared
-- ARGV[7] how durable commits must be: names as of a space's durability, with spaces between; empty: in memory
-- ARGV[8] how many fields are to leave both hashes  ARGV[9...] their names;
-- then how many fields with their values are to be in the progress as they are, and these;
-- then of how many of the streams that follow, the first ones, is to be told if more is committed; then three
-- for each stream: its name, what is committed, and its lease as it is to stand in the hash. Between two resets
-- what is committed never goes back, whatever the leader knows.
-- Replies: {1, entry id, stream, committed, ...} appended, now or by an attempt before, and of which streams
--          more is committed than the leader knows; {0, term} another term or host: stop;
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

-- Lua unpacks some thousand values at once at most.
local MOST, MOST_STREAMS = 2000, 3 * 1000
-- Where the parts of ARGV begin.
local plain = 10 + tonumber(ARGV[8])
local streams = plain + 2 * tonumber(ARGV[plain - 1]) + 1
local told = streams + 3 * tonumber(ARGV[streams - 1])

-- The lease epoch of the newest reset that a lease in the hash names.
local function reset_of(lease)
  return tonumber(string.match(lease or '', '/(%d+)$') or 0)
end

-- What the hashes are to hold of the streams from ARGV[first] to ARGV[last]; adds to `further` what is told.
local function compared(first, last, further)
  local names, progress, leases = {}, {}, {}
  for i = first, last, 3 do
    names[#names + 1] = ARGV[i]
  end
  local known = redis.call('HMGET', KEYS[3], unpack(names))
  local granted = redis.call('HMGET', KEYS[4], unpack(names))
  -- At the beginning of a term all of it is compared, and mostly stands there already.
  for n, name in ipairs(names) do
    local i = first + 3 * (n - 1)
    local at, lease, there = ARGV[i + 1], ARGV[i + 2], known[n]
    if there ~= at then
      local further_on = (tonumber(there or '') or -1) > tonumber(at)
      if further_on and reset_of(lease) <= reset_of(granted[n]) then
        if i < told then
          further[#further + 1] = name
          further[#further + 1] = there
        end
      else
        progress[#progress + 1] = name
        progress[#progress + 1] = at
      end
    end
    if granted[n] ~= lease then
      leases[#leases + 1] = name
      leases[#leases + 1] = lease
    end
  end
  return progress, leases
end

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local id = newest and newest[1] or '0-0'
local written = false
if id ~= ARGV[5] then
  local fields = newest and newest[2] or {}
  if not (fields[1] == 't' and fields[2] == ARGV[2] and fields[3] == 'n' and fields[4] == ARGV[3]) then
    return {2, id}
  end
  -- A write, so that WAIT or WAITAOF behind a repetition covers the attempt before.
  redis.call('HSET', KEYS[1], 'term', ARGV[2])
  written = true
else
  id = redis.call('XADD', KEYS[2], '*', 't', ARGV[2], 'n', ARGV[3], 'r', ARGV[4])
  redis.call('PUBLISH', (string.gsub(KEYS[1], ':leader$', ':news')), 'leases')
  for i = 9, plain - 2, MOST do
    local last = math.min(i + MOST - 1, plain - 2)
    redis.call('HDEL', KEYS[3], unpack(ARGV, i, last))
    redis.call('HDEL', KEYS[4], unpack(ARGV, i, last))
  end
  for i = plain, streams - 2, MOST do
    redis.call('HSET', KEYS[3], unpack(ARGV, i, math.min(i + MOST - 1, streams - 2)))
  end
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[3], '@active', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
  if (redis.call('HGET', KEYS[4], '@durable') or '') ~= ARGV[7] then
    redis.call('HSET', KEYS[4], '@durable', ARGV[7])
  end
end
local reply = {1, id}
for i = streams, #ARGV, MOST_STREAMS do
  local progress, leases = compared(i, math.min(i + MOST_STREAMS - 1, #ARGV), reply)
  if not written then
    if #progress > 0 then
      redis.call('HSET', KEYS[3], unpack(progress))
    end
    if #leases > 0 then
      redis.call('HSET', KEYS[4], unpack(leases))
    end
  end
end
return reply
