-- The leader hosts that are alive, and what they say of themselves.
-- KEYS[1] zset of hosts  KEYS[2] hash of host descriptions
-- ARGV[1] limit in ms
-- Replies: {host, description, host, description, ...}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit = tonumber(ARGV[1])
-- Who is alive shows it by the clock as it is now: a time far in the future is from before it went back.
local alive = redis.call('ZRANGEBYSCORE', KEYS[1],
  string.format('%.0f', now - limit), string.format('%.0f', now + limit))
local reply = {}
for first = 1, #alive, 1000 do
  local last = math.min(first + 999, #alive)
  local said = redis.call('HMGET', KEYS[2], unpack(alive, first, last))
  for place = first, last do
    reply[#reply + 1] = alive[place]
    reply[#reply + 1] = said[place - first + 1] or '{}'
  end
end
return reply
