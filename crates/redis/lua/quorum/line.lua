-- The line of a quorum's node: it decides nothing. A node alone cannot hand the lock over, and a
-- claim that waited here while it held elsewhere would block its rivals, and they it. The line says
-- who is told when there is room, so that one asks and not all. Who holds the node stays in line
-- until it is released: its round may be lost elsewhere.
local function admit(me)
  drop_ended()
  if not head() then return end
  local kind, taken = room()
  for _, owner in ipairs(redis.call('LRANGE', Q, '0', '63')) do
    local record = redis.call('HGET', W, owner)
    local w = record and words(record, 10)
    if w and tonumber(w[1]) > now then
      -- Who stays in line while it gives up what it has asks again by itself.
      if owner == me or not admits(kind, taken, w) then return end
      local heard = w[7] == '-' and 0 or redis.call(PUBLISH, w[7], owner)
      if heard > 0 and w[3] == 'x' then return end
      -- Its client is gone; should it come back, it asks and joins again.
      if heard == 0 then
        redis.call('HDEL', W, owner)
        head()
      end
    end
  end
end
