-- Become the leader of a shared subscription that has none: nobody ever led it, or the last one resigned.
-- KEYS[1] leadership record (hash: term, host, mailbox, renewed_at, ttl, lineage, declared, pulse, heir, heir_until)
-- KEYS[2] declaration of the group (string); left out for what is no group, such as the claim on retention
-- ARGV[1] host  ARGV[2] mailbox  ARGV[3] ttl in ms  ARGV[4] the new term must be above this one
-- ARGV[5] by how much the term rises if Redis may have lost terms that were issued (see registry/leadership.py)
-- Replies: {1, term, lineage} claimed; {0, term} somebody leads, or led and did not resign: see take_over; or
--          another host is to follow, and has some moments for it: see heir;
--          {2, term} it is not declared, and nothing was changed: what is forgotten gets no record again
-- include: streamlease.streams.redis/lineage
-- include: streamlease.registry/term
local held = redis.call('HMGET', KEYS[1], 'term', 'host', 'lineage', 'declared', 'heir', 'heir_until')
local term = tonumber(held[1] or '0')
if not term then
  return {0, 0}  -- damaged: nobody knows which terms were issued
end
if held[2] and held[2] ~= '' then
  return {0, term}
end
local left = held[5] and held[5] ~= ARGV[1] and (tonumber(held[6]) or 0) - now_ms() or 0
if left > 0 and left <= 10000 then  -- one that is further away is from before the clock went back
  return {0, term}
end
if KEYS[2] and redis.call('EXISTS', KEYS[2]) == 0 then
  return {2, term}
end
local lineage, promoted = lineage_here()
local lost
if held[1] then
  lost = lineage ~= (held[3] or '')
else
  -- Nobody knows of a term: one may be lost that was issued since the declaration, or by the server before this one.
  lost = promoted or held[4] and lineage ~= held[4]
end
return lead(term, lost, ARGV[5], now_ms(), lineage)
