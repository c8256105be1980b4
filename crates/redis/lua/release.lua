-- Releases a claim, whether it holds or waits, and hands the lock to the next waiter.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner; on a quorum, whose queues decide nothing:  2 'stay' to keep its place, or 'leave'
-- Returns 1 if the owner held the lock, 0 if not.
-- Invariant: nothing is removed that the owner does not hold, and at most the waiters that there is room for
-- are admitted, in the order of their tickets.
--
-- To hand the lock from one holder to the next takes nine calls: GET K (does the owner hold?), TIME (the
-- next term), ZPOPMIN (the next waiter), HGET and HDEL (its record, and one that the owner may have
-- left), INCR (its token), SET K, PUBSUB (does its client listen?), PUBLISH.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]

local value = redis.call('GET', K)
local mine = value and string.sub(value, 1, 32) == owner
-- The owner holds, and no claim waits.
if mine and string.sub(value, 33, 33) == ' ' then
  redis.call('DEL', K)
  return 1
end

--@mint

-- The owner holds, and the next waiter wants the lock exclusively.
if mine and not ARGV[2] then
  local call = redis.call
  local time = call('TIME')
  local since = time[1] .. string.sub(string.sub('00000' .. time[2], -6), 1, 3)
  local now = tonumber(since)
  local first, ticket = unpack(call('ZPOPMIN', Q))
  if not first then
    -- No claim reads records without a queue.
    call('UNLINK', K, W)
    return 1
  end
  local record = first ~= owner and call('HGET', W, first)
  local ends, ttl, inbox, origin
  if record then
    ends, ttl, inbox, origin = string.match(record, '^(%d+) %d+ x %d+ %d+ (%d+) (%S+) (.*)$')
  end
  if ends and tonumber(ends) > now then
    -- A holder must not be in the queue as well.
    if call('HDEL', W, owner, first) == 2 then call('ZREM', Q, owner) end
    local token = mint(now)
    local granted = first .. '!' .. token .. ' ' .. since .. ' ' .. origin
    local count = PUBLISH == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB'
    if inbox ~= '-' and call('PUBSUB', count, inbox)[2] > 0 then
      call('SET', K, granted, 'PX', ttl)
      call(PUBLISH, inbox, first .. ' ' .. token .. ' ' .. since)
    else
      -- See let_in of line.lua.
      local term = math.min(tonumber(ends) - now, tonumber(ttl))
      call('SET', K, granted, 'PX', string.format('%.0f', term))
    end
    return 1
  end
  -- Not the simple case: the waiter goes back, and the engine decides.
  call('ZADD', Q, ticket, first)
end

--@engine

local released = 0
if mine then
  call('UNLINK', K)
  value, released = false, 1
else
  if held(owner) then released = 1 end
  leave({owner})
end
local stay = ARGV[2] == 'stay'
if not stay then drop({owner}) end
if admit(stay and owner or nil) then hand_on() end
return released
