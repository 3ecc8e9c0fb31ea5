-- Topics of a space that is removed. Whatever removes one includes this file, and that of `tell`.
-- KEYS none  ARGV none
-- Replies: none; `forget_topics` takes the keys of the topics and of their order, the changes, the channel, the space

local function forget_topics(topics, order, changes, told, space)
  while true do
    local names = redis.call('ZRANGEBYLEX', order, '[' .. space .. '/', '(' .. space .. '0', 'LIMIT', 0, 1000)
    if #names == 0 then
      return
    end
    for _, name in ipairs(names) do
      local former = redis.call('HGET', topics, name) or ''
      redis.call('HDEL', topics, name)
      redis.call('ZREM', order, name)
      tell(changes, told, 'topics', name, former, '')
    end
  end
end
