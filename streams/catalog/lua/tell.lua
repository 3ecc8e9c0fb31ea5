-- Write a change of the catalog down, in the act that changes the fact. Whatever changes such a fact includes this file.
-- KEYS none  ARGV none
-- Replies: none; `tell` takes the log of the home, its channel, the collection, the key, and the row before and
-- after as JSON, each empty where there is none. Call it behind a first write: it needs memory, but little.
-- All that one act tells of a collection is published once: who hears of it sees all of it.

local CHANGES_KEPT = 10000
local published = {}

local function tell(changes, told, collection, key, former, row)
  if former == row then
    return
  end
  local newest = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
  local number = 1
  if newest then
    for place = 1, #newest[2], 2 do
      if newest[2][place] == 'i' then
        number = (tonumber(newest[2][place + 1]) or 0) + 1
      end
    end
  end
  redis.call('XADD', changes, 'MAXLEN', '~', CHANGES_KEPT, '*', 'c', collection, 'k', key, 'o', former, 'n', row,
    'i', string.format('%.0f', number))
  if not published[collection] then
    published[collection] = true
    redis.call('PUBLISH', told, collection)
  end
end
