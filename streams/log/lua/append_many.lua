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
-- include: streamlease.streams.log/each_append

return each_append(3, function(key, at, to, clock)
  return one_append(KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[1], at, to, clock)
end)
