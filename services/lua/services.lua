-- Who serves what: hold a lease and what is served under it, leave, or look.
-- Every act forgets whose lease has passed, and publishes the names of services that have changed. The rows are
-- those of the collection `services` of the catalog, which follows the changes that are told here.
-- KEYS[1] hash of rows: "ADDRESS/NAME" -> JSON with "digest"  KEYS[2] zset ADDRESS -> lease until (ms)
-- KEYS[3] hash of types: DIGEST -> JSON  KEYS[4] changes of the catalog
-- KEYS[5] processes of the catalog (zset) and KEYS[6] what they have made (zset): so the catalog, too, knows whose
-- lease has passed, if nobody serves or calls any more
-- ARGV[1] channel of news  ARGV[2] channel of the catalog  ARGV[3] act
--   hold   ARGV[4] address  ARGV[5] lease in ms  ARGV[6] 1: only if the address has a lease
--          then for each service five: name, row (JSON), digest, types (JSON; empty: known),
--          the digests of others that agree, as ",DIGEST,DIGEST,"
--          What this address served before, and is not named, it serves no more.
--   leave  ARGV[4] address
--   look   ARGV[4...] names; none: all
-- Replies: hold   {'held', now} | {'gone', now}: it has no lease
--                 | {'types', now, digest}: they are not known, nothing was done
--                 | {'other', now, name, digest, types (JSON)}: somebody serves that otherwise, nothing was done
--          leave  {'left', now}
--          look   {'seen', now, {address, until, ...}, {row, value, ...}}
-- include: streamlease.streams.catalog/tell
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local changed = {}

-- Strangers may have written anything.
local function name_of(field)
  return string.match(field, '^[^/]*/(.*)$') or ''
end

local function digest_of(row)
  return string.match(row, '"digest":"(%w*)"') or ''
end

local function set(field, former, row)
  local address, name = string.match(field, '^([^/]*)/(.*)$')
  local owned = (address or '') .. '/services/' .. (name or '')
  if row == '' then
    redis.call('HDEL', KEYS[1], field)
    redis.call('ZREM', KEYS[6], owned)
  else
    redis.call('HSET', KEYS[1], field, row)
    redis.call('ZADD', KEYS[6], 0, owned)
  end
  tell(KEYS[4], ARGV[2], 'services', field, former, row)
  changed[name_of(field)] = true
end

-- Thousands may serve and renew: only what is the address's own is looked at.
local function drop(address, named)
  local prefix = address .. '/services/'
  local behind = address .. '/services0'  -- 0 comes next to /
  for _, owned in ipairs(redis.call('ZRANGEBYLEX', KEYS[6], '[' .. prefix, '(' .. behind)) do
    local field = address .. '/' .. string.sub(owned, #prefix + 1)
    if not (named and named[field]) then
      set(field, redis.call('HGET', KEYS[1], field) or '', '')
    end
  end
end

local function drop_types()
  local used = {}
  local rows = redis.call('HGETALL', KEYS[1])
  for place = 2, #rows, 2 do
    used[digest_of(rows[place])] = true
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
    redis.call('ZREM', KEYS[5], address)
    drop(address)
  end
end
forget('-inf', string.format('%.0f', now))
forget(string.format('(%.0f', now + 600000), '+inf')  -- from before the clock went back
if next(changed) then
  drop_types()
end

local act = ARGV[3]
if act == 'look' then
  publish()
  local wanted = {}
  for place = 4, #ARGV do
    wanted[ARGV[place]] = true
  end
  local rows = {}
  local all = redis.call('HGETALL', KEYS[1])
  for place = 1, #all, 2 do
    if #ARGV < 4 or wanted[name_of(all[place])] then
      rows[#rows + 1] = all[place]
      rows[#rows + 1] = all[place + 1]
    end
  end
  return {'seen', now, redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '+inf', 'WITHSCORES'), rows}
end

local address = ARGV[4]
if act == 'leave' then
  redis.call('ZREM', KEYS[2], address)
  redis.call('ZREM', KEYS[5], address)
  drop(address)
  drop_types()
  publish()
  return {'left', now}
end

local had = redis.call('ZSCORE', KEYS[2], address)
if ARGV[6] == '1' and not had then
  publish()
  return {'gone', now}
end
local named, stale = {}, false
for place = 7, #ARGV, 5 do
  local field = address .. '/' .. ARGV[place]
  named[field] = true
  stale = stale or redis.call('HGET', KEYS[1], field) ~= ARGV[place + 1]
    or not redis.call('HGET', KEYS[3], ARGV[place + 2])
end
if stale or not had then
  local all = redis.call('HGETALL', KEYS[1])
  for place = 7, #ARGV, 5 do
    local digest, types, judged = ARGV[place + 2], ARGV[place + 3], ARGV[place + 4]
    if types == '' and not redis.call('HGET', KEYS[3], digest) then
      publish()
      return {'types', now, digest}
    end
    for other = 1, #all, 2 do
      local name = name_of(all[other])
      local theirs = digest_of(all[other + 1])
      if name == ARGV[place] and theirs ~= digest and not named[all[other]]
          and not string.find(judged, ',' .. theirs .. ',', 1, true) then
        publish()
        return {'other', now, name, theirs, redis.call('HGET', KEYS[3], theirs) or ''}
      end
    end
  end
  for place = 7, #ARGV, 5 do
    local field = address .. '/' .. ARGV[place]
    if ARGV[place + 3] ~= '' then
      redis.call('HSET', KEYS[3], ARGV[place + 2], ARGV[place + 3])
    end
    local former = redis.call('HGET', KEYS[1], field) or ''
    if former ~= ARGV[place + 1] then
      set(field, former, ARGV[place + 1])
    end
  end
end
if had then
  drop(address, named)
end
local till = string.format('%.0f', now + tonumber(ARGV[5]))
redis.call('ZADD', KEYS[2], till, address)
redis.call('ZADD', KEYS[5], till, address)
publish()
return {'held', now}
