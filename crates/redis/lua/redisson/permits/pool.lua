-- What the scripts of Redisson's semaphores share. Composed into them as --@pool.
-- Expects KEYS[1] to KEYS[3]: the counter of free permits, the terms of those that are held (zset, a member for
-- each permit), and the channel. Terms end by the server's clock, in milliseconds since the epoch; Java programs
-- compare them with theirs.
local call = redis.call
local COUNTER, TERMS, CHANNEL = KEYS[1], KEYS[2], KEYS[3]

local function text(number) return string.format('%.0f', number) end

local function server_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Whether the name is that of a semaphore, and its free permits, or nil if it has no size yet.
local function pool()
  local free = redis.pcall('GET', COUNTER)
  local kind = call('TYPE', TERMS).ok
  if type(free) == 'table' or kind ~= 'none' and kind ~= 'zset' then return false end
  if not free then return true, nil end
  local number = string.find(free, '^-?%d+$') and tonumber(free)
  return number and true or false, number
end

-- The members of a claim, a permit each. Java programs remove what has ended from the least member on, a few at
-- a time, so the first permit has the greatest: it is gone only if all are.
local function permit(owner, number) return owner .. string.format(' %04d', 1000 - number) end

-- Gives permits back that are no longer in TERMS, and wakes so many waiters of each client.
local function give_back(count)
  if count == 0 then return end
  local free = call('INCRBY', COUNTER, text(count))
  if free > 0 then call(PUBLISH, CHANNEL, text(free)) end
end

-- Takes what is left of a claim out of TERMS. Returns how many permits it was.
local function take_out(owner)
  local count = 0
  while count < 1000 and call('ZREM', TERMS, permit(owner, count + 1)) == 1 do count = count + 1 end
  return count
end

-- Gives back the permits whose terms have ended, up to 500. Returns whether there were as many.
local function collect(now)
  local ended = call('ZRANGEBYSCORE', TERMS, '0', text(now), 'LIMIT', '0', '500')
  if #ended > 0 then give_back(call('ZREM', TERMS, unpack(ended))) end
  return #ended == 500
end

-- Whether all permits of a claim are there, with terms that have not ended.
local function holds(owner, count, now)
  for number = 1, count do
    local ends = call('ZSCORE', TERMS, permit(owner, number))
    if not ends or tonumber(ends) <= now then return false end
  end
  return true
end

-- Starts a claim's terms. A semaphore that Java programs let expire goes as a whole, but not before a term of ours.
local function set_terms(owner, count, now, ttl)
  for number = 1, count do call('ZADD', TERMS, text(now + ttl), permit(owner, number)) end
  local left = call('PTTL', COUNTER)
  if left >= 0 and left < ttl then
    left = ttl
    call('PEXPIRE', COUNTER, text(left))
  end
  if left > 0 then call('PEXPIRE', TERMS, text(left)) end
end
