-- Which commands the user who calls this may run, without running any. Redis 7 or newer.
--
-- KEYS  none
-- ARGV  each: one command with its arguments, as a JSON array
--
-- Replies
--   {1 or 0, ...}   for each command whether it is permitted; -1: the server does not know it
--   {}              the server cannot tell
if redis.acl_check_cmd == nil then
    return {}
end
local found = {}
for place, text in ipairs(ARGV) do
    local known, permitted = pcall(redis.acl_check_cmd, unpack(cjson.decode(text)))
    found[place] = (not known and -1) or (permitted and 1) or 0
end
return found
