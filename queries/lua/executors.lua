-- Which executors are alive: hold a life, leave, end the lives of those that are silent, or look.
-- KEYS[1] lives (zset: LIFE -> until, ms)  KEYS[2] rows of executors in the catalog (hash: LIFE/NAME -> JSON)
-- KEYS[3] changes of the catalog  KEYS[4] processes of the catalog (zset)  KEYS[5] what they have made (zset)
-- KEYS[6] queries that have not ended (hash)  KEYS[7] how often workers were placed (counter)
-- ARGV[1] channel of the catalog  ARGV[2] act
--   hold   ARGV[3] life  ARGV[4] name  ARGV[5] lease in ms  ARGV[6] row (JSON)  ARGV[7] 1: begin it; 0: only renew it
--   leave  ARGV[3] life
--   reap   ARGV[3...] lives that are over, if their lease is
--   look
-- Replies: hold   {'held', now} | {'gone', now}: the life is over | {'taken', now, row}: a living executor has that name
--          leave  {'left', now}
--          reap   {'reaped', now, life, ...}: those that are over now
--          look   {'seen', now, {life, until, ...}, {LIFE/NAME, row, ...}, {query, record, ...}, placements}
-- include: streamlease.streams.catalog/tell
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local act = ARGV[2]

local function is_over(life)
  local till = redis.call('ZSCORE', KEYS[1], life)
  return till and tonumber(till) < now
end

local function set(field, former, row)
  local life, name = string.match(field, '^([^/]*)/(.*)$')
  local owned = (life or '') .. '/executors/' .. (name or '')
  if row == '' then
    redis.call('HDEL', KEYS[2], field)
    redis.call('ZREM', KEYS[5], owned)
  else
    redis.call('HSET', KEYS[2], field, row)
    redis.call('ZADD', KEYS[5], 0, owned)
  end
  tell(KEYS[3], ARGV[1], 'executors', field, former, row)
end

local function drop(life)
  redis.call('ZREM', KEYS[1], life)
  redis.call('ZREM', KEYS[4], life)
  local all = redis.call('HGETALL', KEYS[2])
  for place = 1, #all, 2 do
    if string.sub(all[place], 1, #life + 1) == life .. '/' then
      set(all[place], all[place + 1], '')
    end
  end
end

if act == 'look' then
  return {'seen', now, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'WITHSCORES'),
    redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[6]), redis.call('GET', KEYS[7]) or '0'}
end
redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
if act == 'leave' then
  drop(ARGV[3])
  return {'left', now}
end
if act == 'reap' then
  local reply = {'reaped', now}
  for place = 3, #ARGV do
    if is_over(ARGV[place]) then
      drop(ARGV[place])
      reply[#reply + 1] = ARGV[place]
    end
  end
  return reply
end

local life, name = ARGV[3], ARGV[4]
if ARGV[7] == '1' then
  local all = redis.call('HGETALL', KEYS[2])
  for place = 1, #all, 2 do
    local other, theirs = string.match(all[place], '^([^/]*)/(.*)$')
    if theirs == name and other ~= life then
      if redis.call('ZSCORE', KEYS[1], other) and not is_over(other) then
        return {'taken', now, all[place + 1]}
      end
      drop(other)
    end
  end
elseif not redis.call('ZSCORE', KEYS[1], life) then
  return {'gone', now}
end
local till = string.format('%.0f', now + tonumber(ARGV[5]))
redis.call('ZADD', KEYS[1], till, life)
redis.call('ZADD', KEYS[4], till, life)
local field = life .. '/' .. name
local former = redis.call('HGET', KEYS[2], field) or ''
if former ~= ARGV[6] then
  set(field, former, ARGV[6])
end
return {'held', now}
