-- Begin as the one process that brings in messages of a source which sends again what was not acknowledged.
--
-- KEYS  1 state of the source (hash)
-- ARGV  1 the least incarnation
--
-- Replies
--   {incarnation, field, value, ...}   a higher one than any before; and what was noted by processes before
--
-- The clock keeps the incarnations rising should the hash be lost.

local noted = redis.call('HGETALL', KEYS[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local before = tonumber(redis.call('HGET', KEYS[1], 'incarnation') or '0')
local incarnation = string.format('%.0f', math.max(now, before + 1, tonumber(ARGV[1])))
redis.call('HSET', KEYS[1], 'incarnation', incarnation)
table.insert(noted, 1, incarnation)
return noted
