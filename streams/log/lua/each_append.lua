-- Several appends in one call: what append_many.lua and stage_many.lua do alike. They include this file.
--
-- KEYS  `width` for each append
-- ARGV  1 publisher id
--       then for each append: how many arguments its fields and values are, and what append.lua takes from the
--       incarnation on
--
-- Replies: for each append what `append` replies, or {'error', text}, the error that it ended with. `append` gets
-- the place of its first key, where in ARGV its incarnation stands, the place of its last argument, and the answer
-- of TIME.

local function each_append(width, append)
  local clock = redis.call('TIME')
  local replies = {}
  local at = 3
  for key = 1, #KEYS, width do
    local to = at + 5 + tonumber(ARGV[at - 1])
    local done, reply = pcall(append, key, at, to, clock)
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
end
