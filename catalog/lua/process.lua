-- A process shows that it lives, and changes what stands in the catalog as made by it; what processes made whose
-- lease is over leaves with them.
-- KEYS[1] processes (zset: process -> until, ms)  KEYS[2] owned (zset)  KEYS[3] changes
-- KEYS[4...] rows (hashes) of the collections that ARGV[4] names, and behind them:
-- digests of the tokens of queries (hash)  refusals (stream)  written (hash: process -> mark)
-- ARGV[1] process  ARGV[2] for how many ms its lease holds; 0: it leaves with all that it made
-- ARGV[3] channel  ARGV[4] the collections, with spaces between
-- ARGV[5] the mark of what it wrote last; empty: it makes all of it anew
-- ARGV[6] the query that it is of  ARGV[7] the token of that; both empty: it is of none
-- ARGV[8] who it is, for refusals  ARGV[9] the mark of what it writes now
-- ARGV[10...] collection, key, row (empty: remove it), ...
-- Replies: 1 done; 0 its lease was over, or Redis lost what it wrote last: nothing was changed for it; 2 the token is not that of the query: nothing
-- was changed
-- include: streamlease.streams.catalog/tell
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ttl = tonumber(ARGV[2])
if not ttl or #ARGV % 3 ~= 0 or #ARGV < 9 then
  return redis.error_reply('ERR process: the lease must be a number, and changes come in threes')
end
local rows, place = {}, 4
for name in string.gmatch(ARGV[4], '%S+') do
  rows[name] = KEYS[place]
  place = place + 1
end
local written, adds = KEYS[place + 2], false
for i = 10, #ARGV, 3 do
  adds = adds or ARGV[i + 2] ~= ''
  if not rows[ARGV[i]] then
    return redis.error_reply('ERR process: no collection ' .. ARGV[i])
  end
end
if adds and ARGV[6] ~= '' and redis.call('HGET', KEYS[place], ARGV[6]) ~= redis.sha1hex(ARGV[7]) then
  redis.call('XADD', KEYS[place + 1], 'MAXLEN', '~', 1000, '*', 'q', ARGV[6], 'w', ARGV[8])
  return 2
end
redis.call('HDEL', KEYS[4], '')  -- needs no memory, see streams/redis/scripts.py

local function remove(process, name, key)
  local field = process .. '/' .. key
  local former = redis.call('HGET', rows[name], field)
  redis.call('ZREM', KEYS[2], process .. '/' .. name .. '/' .. key)
  if former then
    redis.call('HDEL', rows[name], field)
    tell(KEYS[3], ARGV[3], name, field, former, '')
  end
end

-- `most` rows of a process at once, or all.
local function forget(process, most)
  local range = {'ZRANGEBYLEX', KEYS[2], '[' .. process .. '/', '(' .. process .. '0'}
  if most then
    range[5], range[6], range[7] = 'LIMIT', 0, most
  end
  local owned = redis.call(unpack(range))
  for _, one in ipairs(owned) do
    local name, key = string.match(one, '^[^/]*/([^/]*)/(.*)$')
    if rows[name] then
      remove(process, name, key)
    else
      redis.call('ZREM', KEYS[2], one)
    end
  end
  if not most or #owned < most then
    redis.call('ZREM', KEYS[1], process)
    redis.call('HDEL', written, process)
  end
end

for _, process in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now), 'LIMIT', 0, 10)) do
  if process ~= ARGV[1] then
    forget(process, 1000)
  end
end
-- A listing does not show what stands on a lease that is over: so it leaves and comes anew.
if (tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '') or now) < now then
  forget(ARGV[1])
end
if ttl == 0 then
  forget(ARGV[1])
  return 1
end
if ARGV[5] == '' then
  forget(ARGV[1])
elseif not redis.call('ZSCORE', KEYS[1], ARGV[1]) or redis.call('HGET', written, ARGV[1]) ~= ARGV[5] then
  return 0
end
if ARGV[9] ~= ARGV[5] then
  redis.call('HSET', written, ARGV[1], ARGV[9])
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ttl), ARGV[1])
for i = 10, #ARGV, 3 do
  local name, key, row = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if row == '' then
    remove(ARGV[1], name, key)
  else
    local field = ARGV[1] .. '/' .. key
    local former = redis.call('HGET', rows[name], field) or ''
    redis.call('HSET', rows[name], field, row)
    redis.call('ZADD', KEYS[2], 0, ARGV[1] .. '/' .. name .. '/' .. key)
    tell(KEYS[3], ARGV[3], name, field, former, row)
  end
end
return 1
