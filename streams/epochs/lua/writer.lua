-- The record of a publisher in the writers of a space: what enter.lua, line.lua, touch.lua and lose.lua read
-- and write alike. They include this file.
--
-- KEYS  none: they are handed in
-- ARGV  none
--
-- Replies: none
--
-- A record is 'INCARNATION TOKEN SEQUENCE LINE SEEN STATE': the newest incarnation and its random token, the
-- sequence and the number of its newest line, its last sign of life (ms), and whether it is 'here', 'left' or
-- 'lost'.

local function read_writer(writers, name)
  local record = redis.call('HGET', writers, name)
  if not record then
    return nil
  end
  local inc, token, seq, line, seen, state = string.match(record, '^(%d+) (%S+) (%d+) (%d+) (%d+) (%l+)$')
  return {inc = tonumber(inc), token = token, seq = tonumber(seq), line = tonumber(line), seen = seen, state = state}
end

local function write_writer(writers, name, it)
  redis.call('HSET', writers, name,
    string.format('%.0f %s %.0f %.0f %s %s', it.inc, it.token, it.seq, it.line, it.seen, it.state))
end

-- The names of the publishers that are there.
local function who_is_here(writers)
  local here = {}
  local all = redis.call('HGETALL', writers)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) ~= '!' and string.match(all[i + 1], ' here$') then
      here[#here + 1] = all[i]
    end
  end
  return here
end

local function now_ms()
  local time = redis.call('TIME')
  return string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
end

-- Put a line behind the others, and announce it; its number. XADD first: where Redis refuses that for want of
-- memory, as to a name that is new (enter.lua), nothing was written. Its field 'h' says when that was, 'p' when the
-- line before it was written: so no line follows one that a failover has put in the place of another.
local function write_line(writers, lines, text, news)
  local number = tonumber(redis.call('HGET', writers, '!lines') or 0) + 1
  local shown = string.format('%.0f', number)
  local time = redis.call('TIME')
  local stamp = time[1] .. string.sub('00000' .. time[2], -6)
  redis.call('XADD', lines, shown .. '-0', 'l', text, 'h', stamp, 'p', redis.call('HGET', writers, '!last') or '')
  redis.call('HSET', writers, '!lines', shown, '!last', stamp)
  redis.call('PUBLISH', news, 'line ' .. shown)
  return number
end
