-- One append: what append.lua does for one stream, and append_many.lua for each of several. Both include this
-- file behind log_end.lua.
--
-- KEYS  none: they are handed in
-- ARGV  from `begin` on, up to `to`, as append.lua lists them from the incarnation on
--
-- Replies: those of append.lua.

local function one_append(meta_key, publishers_key, log_key, publisher, begin, to, clock)
  local meta = redis.call('HMGET', meta_key, 'next', 'state', 'last_append', 'bytes', 'schema')
  if not meta[1] then
    return {'unknown'}
  end

  -- Texts that become part of a record as they are: to format numbers is most of what Lua itself would cost.
  local position = ARGV[begin] .. ' ' .. ARGV[begin + 1]
  local many = ARGV[begin + 2]
  local count = tonumber(many)
  if not string.find(position .. ' ' .. many, '^%d+ %d+ %d+$') or count < 1 then
    return redis.error_reply('ERR append: incarnation, sequence and count must be numbers, count at least 1')
  end

  local sequence = tonumber(ARGV[begin + 1])
  local last = -1
  local record = redis.call('HGET', publishers_key, publisher)
  if record then
    local incarnation = tonumber(ARGV[begin])
    local was, seq = string.match(record, '^(%d+) (%d+)')
    was = tonumber(was)
    if incarnation < was then
      return {'fenced', was}
    end
    if incarnation == was then
      last = tonumber(seq)
      if sequence == last then
        local first, had, at = string.match(record, '^%d+ %d+ (%d+) (%d+) (%d+)')
        if tonumber(had) ~= count then
          return {'mismatch', tonumber(had)}
        end
        -- A write, so that WAIT or WAITAOF behind a repetition covers the append of the former connection.
        redis.call('HSET', publishers_key, publisher, record)
        return {'duplicate', tonumber(first), tonumber(at)}
      end
      if sequence < last then
        return {'old', last}
      end
    end
  end
  local gaps = ARGV[begin + 3]
  if gaps == '0' then
    if sequence ~= last + 1 then
      return {'gap', last}
    end
  elseif gaps ~= '1' then
    local there = record and string.match(record, '^%d+ %d+') or '-'
    if there ~= gaps then
      return {'moved', there}
    end
  end
  local refused = takes_nothing(meta) or other_schema(meta, ARGV[begin + 6], ARGV[begin + 7]) or foreign(meta, log_key)
  if refused then
    return refused
  end

  local now, stamp = append_time(meta, clock)
  local next = tonumber(meta[1])
  local first = math.max(next, tonumber(ARGV[begin + 5]) or 0)
  local after = string.format('%.0f', first + count)
  local first_text = first == next and meta[1] or string.format('%.0f', first)
  local last_text = count == 1 and first_text or string.format('%.0f', first + count - 1)

  -- Publishers that nobody closed: looked for at every 256th newcomer, once there are many.
  local silent
  if not record then
    local known = redis.call('HLEN', publishers_key)
    if known >= 1024 and known % 256 == 0 then
      silent = {}
      local all = redis.call('HGETALL', publishers_key)
      for i = 1, #all, 2 do
        if string.sub(all[i], 1, 1) == '~' then
          local at = tonumber(string.match(all[i + 1], '^%d+ %d+ %d+ %d+ (%d+)'))
          if now - at > 86400000000 then
            silent[#silent + 1] = all[i]
          end
        end
      end
    end
  end

  -- What the entry adds to the bytes of the stream: all its fields and values, with 'a' and its time.
  local size = (tonumber(meta[4]) or 0) + 1 + #stamp
  for i = begin + 6, to do
    size = size + #ARGV[i]
  end

  -- XADD first: it is what Redis refuses when memory is short, and then nothing was written.
  redis.call('XADD', log_key, last_text .. '-' .. many, 'a', stamp, unpack(ARGV, begin + 6, to))
  redis.call('HSET', meta_key, 'next', after, 'last_append', stamp, 'bytes', string.format('%.0f', size))
  redis.call('HSET', publishers_key, publisher, position .. ' ' .. first_text .. ' ' .. many .. ' ' .. stamp)
  if silent then
    for i = 1, #silent do
      redis.call('HDEL', publishers_key, silent[i])
    end
  end
  redis.call('PUBLISH', ARGV[begin + 4], after)
  return {'appended', first, now}
end
