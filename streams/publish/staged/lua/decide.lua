-- Decide once what a batch of a sink consists of.
--
-- KEYS  1 state of the sink (hash): batch, version, plan
-- ARGV  1 batch    number of the batch
--       2 version  '' if nothing is known to be decided; else the decision that is to be replaced
--       3 plan     what the batch consists of, as text
--
-- Replies
--   {'decided', version, plan}   what holds for this batch: this plan, or the one that was there first
--   {'past', newest batch}       a later batch was decided
--   {'damaged'}                  what was decided cannot be read, and stays as it is

local there = redis.call('HMGET', KEYS[1], 'batch', 'version', 'plan')
local batch = tonumber(ARGV[1])
local newest = tonumber(there[1] or -1)
if not newest or (newest == batch and not tonumber(there[2])) then
  return {'damaged'}
end
if newest > batch then
  return {'past', newest}
end
if newest == batch then
  if there[2] ~= ARGV[2] then
    redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
    -- A write, so that WAIT or WAITAOF behind a repetition covers the first decision.
    redis.call('HSET', KEYS[1], 'version', there[2])
    return {'decided', there[2], there[3]}
  end
elseif ARGV[2] ~= '' then
  return redis.error_reply('ERR decide: there is no such decision to replace')
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local version = string.format('%.0f', newest == batch and tonumber(there[2]) + 1 or 0)
redis.call('HSET', KEYS[1], 'batch', ARGV[1], 'version', version, 'plan', ARGV[3])
return {'decided', version, ARGV[3]}
