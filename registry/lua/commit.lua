-- Commit streams for those who have them: all below an offset is done.
-- KEYS[1] leases (hash: stream -> the lease epoch under which it may be committed, with "-" behind it if that
-- lease is over, and "/" with the lease epoch of its newest reset if there was one; @durable: see ARGV[7] of
-- leader/lua/journal_append.lua, which alone writes it)
-- KEYS[2] progress (hash: stream -> committed, and @fields)
-- ARGV[1...] for each stream its name, a lease epoch, an offset; at most 1,000 of them
-- Replies: {how durable it must be, 1 or 0 for each}; 0: that lease does not stand, nothing was changed for it
local names = {}
for i = 1, #ARGV, 3 do
  names[#names + 1] = ARGV[i]
end
local leases = redis.call('HMGET', KEYS[1], '@durable', unpack(names))
local progress = redis.call('HMGET', KEYS[2], unpack(names))
local reply, fields = {leases[1] or ''}, {}
for n, name in ipairs(names) do
  local lease_epoch, over = string.match(leases[n + 1] or '', '^(%d+)(-?)')
  local stands = over == '' and lease_epoch == ARGV[3 * n - 1]
  reply[n + 1] = stands and 1 or 0
  if stands then
    -- In any case a write, so that WAIT or WAITAOF behind a repetition covers the attempt before.
    local committed, offset = progress[n], ARGV[3 * n]
    local further = committed and tonumber(committed) and tonumber(committed) > tonumber(offset)
    fields[#fields + 1] = name
    fields[#fields + 1] = further and committed or offset
  end
end
if #fields > 0 then
  redis.call('HDEL', KEYS[2], '')  -- needs no memory, see streams/redis/scripts.py
  redis.call('HSET', KEYS[2], unpack(fields))
end
return reply
