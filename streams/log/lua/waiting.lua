-- Where a stream ends, the lowest offset that exists, and when the message at an offset, or the first one that
-- exists after it, was appended. Only that field of the entry is sent: an entry may hold a thousand messages.
-- KEYS[1] stream meta  KEYS[2] stream log  KEYS[3] stream merged  KEYS[4] stream files
-- ARGV[1] offset  ARGV[2] entry id to begin with
-- Replies: {next, lowest offset, append time, file}, the time '' if nothing is at the offset or behind it, or the
--          message is not in memory, or its time is not told; the file of the archive that holds the message, as
--          streams/archive/files/index.py writes it, '' if it is in none; false if there is no such stream

-- The number at a place, of those that stand in `stored` with so many bytes each.
local function number_at(stored, width, place)
  local number = 0
  for byte = width, 1, -1 do
    number = number * 256 + string.byte(stored, place * width + byte)
  end
  return number
end

-- When the message at an offset of a merged entry was appended: see streams/entries/append_times.py.
local function appended(id, field, offset)
  local last, many = string.match(id, '^(%d+)-(%d+)$')
  local row = math.max(0, offset - (tonumber(last) - tonumber(many) + 1))
  local numbers, place = tonumber(many), row
  if field.R then
    numbers, place = math.floor(#field.R / 4), 0
    while place < numbers - 1 and row >= number_at(field.R, 4, place) do
      row = row - number_at(field.R, 4, place)
      place = place + 1
    end
  end
  local width = #field.A / numbers
  if not (tonumber(field.a) and (width == 4 or width == 8)) then
    return ''
  end
  return string.format('%.0f', tonumber(field.a) - number_at(field.A, width, place))
end

local meta = redis.call('HMGET', KEYS[1], 'next', 'floor', 'exists', 'merged')
if not meta[1] then
  return false
end
local offset, memory, exists = tonumber(ARGV[1]), meta[2] or '0', meta[3] or meta[2] or '0'
local since, file = '', ''
local begin = math.max(offset, tonumber(exists))
if meta[3] and begin < tonumber(memory) then
  file = redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. string.format('%.0f', begin), '+inf', 'LIMIT', 0, 1)[1] or ''
elseif offset < tonumber(meta[1]) then
  local border = tonumber(meta[4] or '0')
  local key = offset < border and KEYS[3] or KEYS[2]
  local entries = redis.call('XRANGE', key, ARGV[2], '+', 'COUNT', 1)
  if not entries[1] and offset < border then
    entries = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)  -- it is lost, and those behind it as well
  end
  local fields, field = entries[1] and entries[1][2] or {}, {}
  for place = 1, #fields, 2 do
    field[fields[place]] = fields[place + 1]
  end
  since = field.A and appended(entries[1][1], field, offset) or field.a or ''
end
return {meta[1], exists, since, file}
