-- Who serves what: hold a lease and what is served under it, leave, or look.
-- Every act forgets whose lease has passed, and publishes the names of services that have changed.
-- KEYS[1] hash of rows: "NAME ADDRESS" -> "DIGEST JSON"  KEYS[2] zset ADDRESS -> lease until (ms)
-- KEYS[3] hash of types: DIGEST -> JSON
-- ARGV[1] channel of news  ARGV[2] act
--   hold   ARGV[3] address  ARGV[4] lease in ms  ARGV[5] 1: only if the address has a lease
--          then for each service five: name, "DIGEST JSON", digest, types (JSON; empty: known),
--          the digests of others that agree, as ",DIGEST,DIGEST,"
--          What this address served before, and is not named, it serves no more.
--   leave  ARGV[3] address
--   look   ARGV[3...] names; none: all
-- Replies: hold   {'held', now} | {'gone', now}: it has no lease
--                 | {'types', now, digest}: they are not known, nothing was done
--                 | {'other', now, name, digest, types (JSON)}: somebody serves that otherwise, nothing was done
--          leave  {'left', now}
--          look   {'seen', now, {address, until, ...}, {row, value, ...}}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local changed = {}

local function word(text)  -- the first one; strangers may have written anything
  return string.match(text, '^%S+') or ''
end

local function drop(address, named)
  local tail = ' ' .. address
  for _, row in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(row, -#tail) == tail and not (named and named[row]) then
      redis.call('HDEL', KEYS[1], row)
      changed[string.sub(row, 1, #row - #tail)] = true
    end
  end
end

local function drop_types()
  local used = {}
  local rows = redis.call('HGETALL', KEYS[1])
  for place = 2, #rows, 2 do
    used[word(rows[place])] = true
  end
  for _, digest in ipairs(redis.call('HKEYS', KEYS[3])) do
    if not used[digest] then
      redis.call('HDEL', KEYS[3], digest)
    end
  end
end

local function publish()
  local any = false
  for name in pairs(changed) do
    redis.call('PUBLISH', ARGV[1], name)
    any = true
  end
  return any
end

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local function forget(first, last)
  for _, address in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], first, last)) do
    redis.call('ZREM', KEYS[2], address)
    drop(address)
  end
end
forget('-inf', string.format('%.0f', now))
forget(string.format('(%.0f', now + 600000), '+inf')  -- from before the clock went back
if next(changed) then
  drop_types()
end

local act = ARGV[2]
if act == 'look' then
  publish()
  local wanted = {}
  for place = 3, #ARGV do
    wanted[ARGV[place]] = true
  end
  local rows = {}
  local all = redis.call('HGETALL', KEYS[1])
  for place = 1, #all, 2 do
    if #ARGV < 3 or wanted[word(all[place])] then
      rows[#rows + 1] = all[place]
      rows[#rows + 1] = all[place + 1]
    end
  end
  return {'seen', now, redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '+inf', 'WITHSCORES'), rows}
end

local address = ARGV[3]
if act == 'leave' then
  redis.call('ZREM', KEYS[2], address)
  drop(address)
  drop_types()
  publish()
  return {'left', now}
end

local had = redis.call('ZSCORE', KEYS[2], address)
if ARGV[5] == '1' and not had then
  publish()
  return {'gone', now}
end
local named, stale = {}, false
for place = 6, #ARGV, 5 do
  local row = ARGV[place] .. ' ' .. address
  named[row] = true
  stale = stale or redis.call('HGET', KEYS[1], row) ~= ARGV[place + 1]
    or not redis.call('HGET', KEYS[3], ARGV[place + 2])
end
if stale or not had then
  local all = redis.call('HGETALL', KEYS[1])
  for place = 6, #ARGV, 5 do
    local digest, types, judged = ARGV[place + 2], ARGV[place + 3], ARGV[place + 4]
    if types == '' and not redis.call('HGET', KEYS[3], digest) then
      publish()
      return {'types', now, digest}
    end
    for other = 1, #all, 2 do
      local name = word(all[other])
      local theirs = word(all[other + 1])
      if name == ARGV[place] and theirs ~= digest and not named[all[other]]
          and not string.find(judged, ',' .. theirs .. ',', 1, true) then
        publish()
        return {'other', now, name, theirs, redis.call('HGET', KEYS[3], theirs) or ''}
      end
    end
  end
  for place = 6, #ARGV, 5 do
    local row = ARGV[place] .. ' ' .. address
    if ARGV[place + 3] ~= '' then
      redis.call('HSET', KEYS[3], ARGV[place + 2], ARGV[place + 3])
    end
    if redis.call('HGET', KEYS[1], row) ~= ARGV[place + 1] then
      redis.call('HSET', KEYS[1], row, ARGV[place + 1])
      changed[ARGV[place]] = true
    end
  end
end
if had then
  drop(address, named)
end
redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[4])), address)
publish()
return {'held', now}
