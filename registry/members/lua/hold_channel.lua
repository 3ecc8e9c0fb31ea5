-- Have a channel at a gateway, if nobody but who is known has it.
--
-- KEYS  1 the record of the channel (text: gateway, a space, the address where others reach it)
-- ARGV  1 what stood there when it was read; empty: nothing
--       2 what stands there from now on
--       3 for how many ms it is kept
--
-- Replies: 1; 0: another gateway has it

local now = redis.call('GET', KEYS[1])
if now and now ~= ARGV[1] and now ~= ARGV[2] then
  return 0
end
if now then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])  -- who has it keeps it: this needs no memory, and so does what follows it
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
