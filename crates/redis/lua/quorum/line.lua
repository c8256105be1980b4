-- The line of a quorum's node: it decides nothing. A node alone cannot hand the lock over, and a
-- claim that waited here while it held elsewhere would block its rivals, and they it. The line says
-- which claim is told when there is room, so that one asks and not all. A claim that holds the node
-- stays in line until it is released: its round may be lost elsewhere.

-- The first in line that still waits, and its record. Those before it whose places have ended are
-- dropped. The third value is true if they are too many for one call.
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

-- Tells the first in line of the room there is, and readers together. True if none was told and there
-- are more in line.
local function admit(me)
  drop_ended()
  local first, _, more = head()
  if not first then return more end
  local kind, taken = room()
  local owners, gone = call('ZRANGE', Q, '0', '63'), {}
  for i, record in ipairs(call('HMGET', W, unpack(owners))) do
    local owner, w = owners[i], record and words(record, 10)
    if w and tonumber(w[1]) > now then
      -- One that stays in line while it gives up what it has asks again by itself.
      if owner == me or not admits(kind, taken, w) then break end
      local heard = w[7] == '-' and 0 or call(PUBLISH, w[7], owner)
      if heard > 0 and w[3] == 'x' then break end
      -- Its client is gone; should it come back, it asks and joins again.
      if heard == 0 then gone[#gone + 1] = owner end
    end
  end
  drop(gone)
  return #gone == 64
end

-- Those that could be told are too many, or gone. The last in line asks, and in doing so looks at more.
local function hand_on()
  local owner = call('ZRANGE', Q, '-1', '-1')[1]
  local record = owner and call('HGET', W, owner)
  local w = record and words(record, 10)
  if w and w[7] ~= '-' then call(PUBLISH, w[7], owner) end
end
