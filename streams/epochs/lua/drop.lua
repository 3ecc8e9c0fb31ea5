-- Drop what an incarnation staged in a stream and did not give up; nothing more of it is taken.
--
-- KEYS  1 publishers of the staged log (hash)  2 staged log (stream)  3 staged epochs (hash)
-- ARGV  1 name
--       2 fence    incarnation of the staged log: appends of lower ones, and of this one, are refused; -1: none
--       3 after    the entry behind which to go on, '-' at first
--       4 budget   entries that one call looks at, at most
--       5... '<epoch> <name> <incarnation>'   what is dropped
--
-- Replies
--   {'dropped', entries, next}   so many are gone; call again with `next` unless it is empty

redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
local record = redis.call('HGET', KEYS[1], ARGV[1])
local was = record and tonumber(string.match(record, '^%d+')) or -1
if tonumber(ARGV[2]) > was then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' 9007199254740991 0 0 ' .. redis.call('TIME')[1] .. '000000')
end
local wanted = {}
local some = false
for i = 5, #ARGV do
  if redis.call('HGET', KEYS[3], ARGV[i]) then
    wanted[ARGV[i]] = true
    some = true
  end
end
if not some then
  return {'dropped', 0, ''}
end
local from = ARGV[3] == '-' and '-' or '(' .. ARGV[3]
local entries = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', ARGV[4])
local ids = {}
for i = 1, #entries do
  local fields = entries[i][2]
  local of, by
  for j = 1, #fields, 2 do
    if fields[j] == 'x' then
      of = fields[j + 1]
    elseif fields[j] == 'w' then
      by = fields[j + 1]
    end
  end
  local whose = (of or '') .. ' ' .. (by or '')
  if wanted[whose] then
    ids[#ids + 1] = entries[i][1]
    local count = tonumber(string.match(entries[i][1], '%-(%d+)$'))
    if redis.call('HINCRBY', KEYS[3], whose, -count) <= 0 then
      redis.call('HDEL', KEYS[3], whose)
    end
  end
end
if #ids > 0 then
  redis.call('XDEL', KEYS[2], unpack(ids))
end
local next = #entries == tonumber(ARGV[4]) and entries[#entries][1] or ''
if next == '' then
  -- Nothing of them is left, whatever was counted.
  for whose in pairs(wanted) do
    redis.call('HDEL', KEYS[3], whose)
  end
end
return {'dropped', #ids, next}
