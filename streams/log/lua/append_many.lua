-- Append one entry to each of several streams, of one server and of one publisher: the streams have nothing to do
-- with each other, and what one of them refuses, or an error with it, is its own.
--
-- KEYS  for each stream: meta (hash), publishers (hash), log (stream)
-- ARGV  1 publisher id
--       then for each stream, in the same order: how many arguments its fields and values are, and what
--       append.lua takes from the incarnation on
--
-- Replies
--   for each stream, in order, what append.lua would reply, or
--   {'error', text}   the error that append.lua would have ended with

-- include: streamlease.streams.log/log_end
-- include: streamlease.streams.log/one_append

local clock = redis.call('TIME')
local replies = {}
local at = 3
for key = 1, #KEYS, 3 do
  local to = at + 5 + tonumber(ARGV[at - 1])
  local done, reply = pcall(one_append, KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[1], at, to, clock)
  if not done then
    reply = type(reply) == 'table' and reply or {err = tostring(reply)}
  end
  if reply.err then
    reply = {'error', reply.err}
  end
  replies[#replies + 1] = reply
  at = to + 2
end
return replies
