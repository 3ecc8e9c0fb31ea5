-- Write records of queries, if nobody else did meanwhile; all of them, or none.
-- KEYS[1] queries that have not ended (hash: QUERY -> "REVISION RECORD")  KEYS[2] those that have (hash)
-- KEYS[3] when they ended (zset)  KEYS[4] rows of queries in the catalog (hash)  KEYS[5] changes of the catalog
-- KEYS[6] digests of tokens (hash)  KEYS[7] permits (hash)  KEYS[8] how often workers were placed (counter)
-- KEYS[9] lives of executors (zset)  KEYS[10] refusals (stream)
-- ARGV[1] channel of the catalog  ARGV[2] most ended queries that are kept  ARGV[3] the same in ms
-- ARGV[4] how often workers were placed, as far as is known, if some are placed now; empty: none are
-- ARGV[5] lives that must hold, with spaces between  ARGV[6] who does it, for refusals
-- ARGV[7] channel of those who see to queries
-- ARGV[8...] for each query eight: id, revision that it has (0: it is not there), record (JSON), row (JSON),
--   0 | 1: it has ended | 2: it has, and is followed by another, which may need its permit; digest of its token (empty: as it is), token that must be its own (empty: none),
--   its permit (empty: as it is)
-- Replies: {'done', now} | {'other', now, id}: it has another revision | {'placed', now}: others were placed
--   | {'gone', now, life} | {'refused', now, id}: the token is not that of the query; where not done, nothing was
-- include: streamlease.streams.catalog/tell
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if #ARGV < 8 or (#ARGV - 7) % 8 ~= 0 then
  return redis.error_reply('ERR change: a record is eight words')
end

local function revision(id)
  local value = redis.call('HGET', KEYS[1], id) or redis.call('HGET', KEYS[2], id)
  return value and string.match(value, '^%d+') or '0'
end

for place = 8, #ARGV, 8 do
  local id, token = ARGV[place], ARGV[place + 6]
  if token ~= '' and redis.sha1hex(token) ~= redis.call('HGET', KEYS[6], id) then
    redis.call('XADD', KEYS[10], 'MAXLEN', '~', 1000, '*', 'q', id, 'w', ARGV[6])
    return {'refused', now, id}
  end
  if revision(id) ~= ARGV[place + 1] then
    return {'other', now, id}
  end
end
if ARGV[4] ~= '' and (redis.call('GET', KEYS[8]) or '0') ~= ARGV[4] then
  return {'placed', now}
end
for life in string.gmatch(ARGV[5], '%S+') do
  local till = redis.call('ZSCORE', KEYS[9], life)
  if not till or tonumber(till) < now then
    return {'gone', now, life}
  end
end

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if ARGV[4] ~= '' then
  redis.call('INCR', KEYS[8])
end
for place = 8, #ARGV, 8 do
  local id, row = ARGV[place], ARGV[place + 3]
  local value = string.format('%.0f ', tonumber(ARGV[place + 1]) + 1) .. ARGV[place + 2]
  local former = redis.call('HGET', KEYS[4], 'queries/' .. id) or ''
  if ARGV[place + 4] ~= '0' then
    redis.call('HSET', KEYS[2], id, value)
    redis.call('HDEL', KEYS[1], id)
    redis.call('ZADD', KEYS[3], now, id)
    redis.call('HDEL', KEYS[6], id)
    if ARGV[place + 4] == '1' then
      redis.call('HDEL', KEYS[7], id)
    end
  else
    redis.call('HSET', KEYS[1], id, value)
  end
  if ARGV[place + 5] ~= '' then
    redis.call('HSET', KEYS[6], id, ARGV[place + 5])
  end
  if ARGV[place + 7] ~= '' then
    redis.call('HSET', KEYS[7], id, ARGV[place + 7])
  end
  redis.call('HSET', KEYS[4], 'queries/' .. id, row)
  tell(KEYS[5], ARGV[1], 'queries', 'queries/' .. id, former, row)
end

redis.call('PUBLISH', ARGV[7], 'changed')

local function forget(id)
  redis.call('HDEL', KEYS[7], id)
  redis.call('ZREM', KEYS[3], id)
  redis.call('HDEL', KEYS[2], id)
  local former = redis.call('HGET', KEYS[4], 'queries/' .. id)
  if former then
    redis.call('HDEL', KEYS[4], 'queries/' .. id)
    tell(KEYS[5], ARGV[1], 'queries', 'queries/' .. id, former, '')
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now - ARGV[3]), 'LIMIT', 0, 100)) do
  forget(id)
end
while redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[2]) do
  forget(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '+inf', 'LIMIT', 0, 1)[1])
end
return {'done', now}
