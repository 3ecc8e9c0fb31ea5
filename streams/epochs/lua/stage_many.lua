-- Append one entry to the staged log of each of several streams, of one server and of one publisher. What one of
-- them refuses, or an error with it, is its own.
--
-- KEYS  for each stream: its meta (hash), and of its staged log meta (hash), publishers (hash), log (stream),
--       messages by epoch (hash)
-- ARGV  1 publisher id
--       then for each stream, in the same order: how many arguments its fields and values are, and what
--       append.lua takes from the incarnation on. The last two fields of an entry are 'x', its epoch, and 'w',
--       name and incarnation of who stages it
--
-- Replies
--   of one stream: what append.lua would reply
--   of several: for each, in order, the same, or {'error', text}, the error that append.lua would have ended with
--
-- A staged log begins with its first entry, and takes what its stream takes: state and schema are looked up there
-- each time.

-- include: streamlease.streams.log/log_end
-- include: streamlease.streams.log/one_append
-- include: streamlease.streams.log/each_append
-- include: streamlease.streams.epochs/follow

local function is_staged(at, to)
  return to - at >= 11 and ARGV[to - 3] == 'x' and ARGV[to - 1] == 'w'
end

local function stage(key, at, to, clock)
  if not is_staged(at, to) then
    return redis.error_reply("ERR stage: the last two fields of an entry must be 'x' and 'w'")
  end
  if not follow(KEYS[key], KEYS[key + 1]) then
    return {'unknown'}
  end
  local reply = one_append(KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], ARGV[1], at, to, clock)
  if reply[1] == 'appended' then
    redis.call('HINCRBY', KEYS[key + 4], ARGV[to - 2] .. ' ' .. ARGV[to], tonumber(ARGV[at + 2]))
  end
  return reply
end

local replies = each_append(5, stage)
if #KEYS > 5 then
  return replies
end
local only = replies[1]
return only[1] == 'error' and {err = only[2]} or only
