-- The queue of a quorum's node. It decides nothing: one node cannot hand the lock over, and claims that
-- waited at some nodes while they held others would deadlock. The queue says which claim is notified when
-- there is room, so that one claim asks and not all. A claim that holds the node stays in the queue until
-- it is released: its round may be lost elsewhere. Part of engine.lua.

-- The first claim in the queue that still waits, and its record. Expired places before it are dropped. The
-- third value is true if they are too many for one call.
local function head()
  local size = 1
  for _ = 1, 4 do
    local owners, ended = call('ZRANGE', Q, '0', number(size - 1)), {}
    if #owners == 0 then return nil, nil, false end
    for i, record in ipairs(call('HMGET', W, unpack(owners))) do
      local w = record and words(record, 10)
      if w and tonumber(w[1]) > now then
        drop(ended)
        return owners[i], w, false
      end
      ended[#ended + 1] = owners[i]
    end
    drop(ended)
    size = BATCH
  end
  return nil, nil, true
end

-- Notifies the first waiter that there is room, and readers together. True if none was notified and more
-- are in the queue.
local function admit(me)
  drop_ended()
  local first, _, more = head()
  if not first then return more end
  local kind, taken = room()
  local owners, gone = call('ZRANGE', Q, '0', '63'), {}
  for i, record in ipairs(call('HMGET', W, unpack(owners))) do
    local owner, w = owners[i], record and words(record, 10)
    if w and tonumber(w[1]) > now then
      -- A claim that stays in the queue while it releases the node asks again by itself.
      if owner == me or not admits(kind, taken, w) then break end
      local heard = w[7] == '-' and 0 or call(PUBLISH, w[7], owner)
      if heard > 0 and w[3] == 'x' then break end
      -- Its client is gone; if it comes back, it claims and joins again.
      if heard == 0 then gone[#gone + 1] = owner end
    end
  end
  drop(gone)
  return #gone == 64
end

-- The waiters that could be notified are too many, or gone. The last waiter claims, which looks at more.
local function hand_on()
  local owner = call('ZRANGE', Q, '-1', '-1')[1]
  local record = owner and call('HGET', W, owner)
  local w = record and words(record, 10)
  if w and w[7] ~= '-' then call(PUBLISH, w[7], owner) end
end
