-- Whether a keeper has folded the lines that are there: decide.lua, record.lua and snapshot.lua include this file.
--
-- KEYS  none: they are handed in
-- ARGV  none
--
-- Replies: none

-- A failover may have replaced lines by others of the same numbers, which were written at other times. When the last
-- line in the snapshot was written, which is trimmed, stands in the state.
local function same_lines(state, lines, number, stamp)
  local id = number .. '-0'
  local found = redis.call('XRANGE', lines, id, id)[1]
  if found then
    return (found[2][4] or '') == stamp
  end
  local it = redis.call('HMGET', state, 'folded', 'stamp')
  return (it[1] or '0') == number and (it[2] or '') == stamp
end
