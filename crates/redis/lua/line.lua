-- The line of one server: who is first gets the lock.

-- Whether the waiter's client listens here. To publish tells less: a message also goes to whoever
-- listens at a replica, and is not counted.
local function listens(w)
  if w[7] == '-' then return false end
  local count = PUBLISH == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB'
  return redis.call('PUBSUB', count, w[7])[2] > 0
end

-- Nobody hears of the grant: its client is dead, or on its way back and will ask before its place
-- would have ended. Until it does, the grant lasts no longer than the place would have.
local function curb(owner, w)
  local left = math.min(tonumber(w[1]) - now, tonumber(w[6]))
  if w[3] == 'x' then
    redis.call('PEXPIRE', K, number(left))
  else
    redis.call('ZADD', E, number(now + left), owner)
  end
end

-- Admits from the head of the line as long as there is room, and tells each one's client, but for
-- `me`, which hears it from the reply.
local function admit(me)
  drop_ended()
  while true do
    local owner, w = head()
    if not owner then return end
    local kind, taken = room()
    if not admits(kind, taken, w) then return end
    redis.call('LPOP', Q)
    redis.call('HDEL', W, owner)
    local token = grant(owner, w)
    if owner ~= me then
      if listens(w) then
        redis.call(PUBLISH, w[7], owner .. ' ' .. token .. ' ' .. number(now))
      else
        -- And it is not published: whoever hears of a grant may count on its whole term.
        curb(owner, w)
      end
    end
  end
end
