-- Move what is complete from the staged log of a stream to the end of the stream, for one boundary.
--
-- KEYS  1 meta (hash)  2 publishers (hash)  3 log (stream)  4 staged log (stream)  5 staged epochs (hash)
--       6 state of the space (hash): only if it is on the same server; the decision must stand there
-- ARGV  1 id under which the stream remembers boundaries
--       2 number of the boundary
--       3 upto      of the decision: another decision about that boundary has another one
--       4 budget    entries that one call moves at most
--       5 news channel
--       6... for each piece, in the order in which it is to stand: '<epoch> <name> <incarnation>', first, to:
--            offsets of the staged log; an entry belongs to the piece that has its last offset
--
-- Replies
--   {'moved', pieces, rows of each piece ...}   all of the first so many pieces are in the stream; fewer than
--                                          are named: call again. With the last one, the offset behind them
--                                          follows, and then first and to of each range of offsets before
--                                          and between them that has nothing: raise.lua took it out of use
--   {'past', newest boundary, upto}        a later one was moved into this stream, or this one as it was
--                                          decided otherwise: Redis lost what was decided
--   {'undecided'}                          Redis lost the decision since, or has another one
--   {'foreign', entry id}                  somebody else put that entry behind the end of the log
--   {'sealed'}                             the stream takes no more
--   {'pending'}                            it takes nothing before its predecessors are sealed
--   {'unknown'}                            there is no such stream
--
-- What is there of a piece is moved; what Redis lost of it is not, and shows in its rows. The publisher record
-- is that of one_append.lua, with the boundary as incarnation and the pieces that are done as sequence; behind
-- it stand `upto`, the rows of each of them, and '<first>-<to>' for each range that has nothing. So a call
-- that is repeated, by this keeper or by the next one, goes on.

-- include: streamlease.streams.log/log_end

local meta = redis.call('HMGET', KEYS[1], 'next', 'state', 'last_append', 'bytes', 'schema')
if not meta[1] then
  return {'unknown'}
end
local number = tonumber(ARGV[2])
local pieces = (#ARGV - 5) / 3
local done = 0
local rows = {}
local gaps = {}
local behind -- the end of what was moved last, for this boundary or the one before
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record then
  local was, seq, first, count, upto, moved = string.match(record, '^(%d+) (%d+) (%d+) (%d+) %d+ (%d+)(.*)$')
  was = tonumber(was)
  behind = tonumber(first) + tonumber(count)
  if was > number or was == number and upto ~= ARGV[3] then
    return {'past', was, tonumber(upto)}
  end
  if was == number then
    done = tonumber(seq)
    for one in string.gmatch(moved, '%S+') do
      local from, to = string.match(one, '^(%d+)%-(%d+)$')
      if from then
        gaps[#gaps + 1] = {tonumber(from), tonumber(to)}
      else
        rows[#rows + 1] = tonumber(one)
      end
    end
  end
elseif redis.call('XLEN', KEYS[3]) == 0 then
  behind = 0
end
local function reply()
  local out = {'moved', done}
  for i = 1, #rows do
    out[#out + 1] = rows[i]
  end
  if done == pieces then
    out[#out + 1] = behind
    for i = 1, #gaps do
      out[#out + 1] = gaps[i][1]
      out[#out + 1] = gaps[i][2]
    end
  end
  return out
end
redis.call('HDEL', KEYS[1], '')  -- needs no memory, see streams/redis/scripts.py
if done >= pieces then
  -- A write, so that WAIT or WAITAOF behind a repetition covers the first call.
  redis.call('HSET', KEYS[2], ARGV[1], record)
  return reply()
end
if KEYS[6] and redis.call('HGET', KEYS[6], 'pending') ~= ARGV[2] .. ' ' .. ARGV[3] then
  return {'undecided'}
end
local refused = meta[2] ~= 'epochs' and takes_nothing(meta) or foreign(meta, KEYS[3])
if refused then
  return refused
end

local size = tonumber(meta[4]) or 0
local first = tonumber(meta[1])
local next = first
if behind and behind < first then
  gaps[#gaps + 1] = {behind, first}
end
local stamp = meta[3]
local now = append_time(meta, redis.call('TIME'))
local budget = tonumber(ARGV[4])
local ids = {}
while done < pieces and budget > 0 do
  local at = 6 + 3 * done
  local who = ARGV[at]
  local epoch, writer = string.match(who, '^(%S+) (.+)$')
  local moved = 0
  local entries = redis.call('XRANGE', KEYS[4], ARGV[at + 1] .. '-0', string.format('%.0f-18446744073709551615', tonumber(ARGV[at + 2]) - 1))
  for i = 1, #entries do
    local count = tonumber(string.match(entries[i][1], '%-(%d+)$'))
    local fields = entries[i][2]
    local kept = {}
    local of, by
    for j = 1, #fields, 2 do
      if fields[j] == 'w' then
        by = fields[j + 1]
      elseif fields[j] ~= 'a' then
        if fields[j] == 'x' then
          of = fields[j + 1]
        end
        kept[#kept + 1] = fields[j]
        kept[#kept + 1] = fields[j + 1]
      end
    end
    if of == epoch and by == writer then
      -- Each entry is strictly later than the one before: a time names one point of the stream.
      stamp = string.format('%.0f', now)
      now = now + 1
      redis.call('XADD', KEYS[3], string.format('%.0f-%.0f', next + count - 1, count), 'a', stamp, unpack(kept))
      next = next + count
      size = size + 1 + #stamp
      for j = 1, #kept do
        size = size + #kept[j]
      end
      moved = moved + count
      ids[#ids + 1] = entries[i][1]
      budget = budget - 1
    end
  end
  done = done + 1
  rows[done] = moved
  if moved > 0 and redis.call('HINCRBY', KEYS[5], who, -moved) <= 0 then
    redis.call('HDEL', KEYS[5], who)
  end
end
local after = string.format('%.0f', next)
if next > first then
  redis.call('HSET', KEYS[1], 'next', after, 'last_append', stamp, 'bytes', string.format('%.0f', size))
end
behind = next
local what = string.format('%.0f %.0f %.0f %.0f %s', number, done, first, next - first, (stamp or '0') .. ' ' .. ARGV[3])
for i = 1, #rows do
  what = what .. string.format(' %.0f', rows[i])
end
for i = 1, #gaps do
  what = what .. string.format(' %.0f-%.0f', gaps[i][1], gaps[i][2])
end
redis.call('HSET', KEYS[2], ARGV[1], what)
-- Not all at once: `unpack` knows some 8,000 values at most.
for from = 1, #ids, 1000 do
  redis.call('XDEL', KEYS[4], unpack(ids, from, math.min(from + 999, #ids)))
end
if next > first then
  redis.call('PUBLISH', ARGV[5], after)
end
return reply()
