-- A new term of a leader: what claim.lua and take_over.lua do alike. They include this file.
-- KEYS[1] leadership record (hash: term, host, mailbox, renewed_at, ttl, lineage, pulse)
-- ARGV[1] host  ARGV[2] mailbox  ARGV[3] ttl in ms  ARGV[4] the new term must be above this one
-- Replies: that of `lead` is {1, term, lineage}

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Lead with the term after `term`, or by `step` above all that was issued if some of it may be `lost`.
local function lead(term, lost, step, now, lineage)
  local floor = tonumber(ARGV[4])
  if lost or floor > term then
    term = math.max(term, floor) + tonumber(step)
  else
    term = term + 1
  end
  redis.call('HDEL', KEYS[1], '', 'heir', 'heir_until')  -- needs no memory, see streams/redis/scripts.py
  redis.call('HSET', KEYS[1], 'term', string.format('%.0f', term), 'host', ARGV[1], 'mailbox', ARGV[2],
    'renewed_at', string.format('%.0f', now), 'ttl', ARGV[3], 'lineage', lineage, 'pulse', '')
  redis.call('PUBLISH', (string.gsub(KEYS[1], ':leader$', ':news')), 'leader')
  return {1, term, lineage}
end
