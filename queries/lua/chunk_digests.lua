-- What stands in pieces of a file: whoever has the file need not send those that are right.
-- KEYS[1] the file (hash: NUMBER -> bytes)
-- ARGV[1...] numbers of pieces
-- Replies: for each piece the SHA-1 of its bytes, in hexadecimal digits; empty: it is not there
local digests = {}
for place = 1, #ARGV do
  local piece = redis.call('HGET', KEYS[1], ARGV[place])
  digests[place] = piece and redis.sha1hex(piece) or ''
end
return digests
