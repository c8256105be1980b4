-- Restarts a holder's term, and raises the node's counter to the holder's token.
-- KEYS  K, P, E, T
-- ARGV  1 owner  2 ttl ms  3 token
-- Returns 1 if the owner holds, 0 if not.
-- Invariant: the counter never decreases, and is raised only while the owner holds the node.
local K, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, ttl, token = ARGV[1], ARGV[2], ARGV[3]
local value = redis.call('GET', K)
if not value then return 0 end

-- Whether a counter is below the token. By its digits: above 2^53 not every integer is a Lua number.
-- A damaged counter of which nothing can be read is below; the next mint heals one that is not.
local function below(stored)
  if not string.find(stored, '^%d+$') then return (tonumber(stored) or 0) < tonumber(token) end
  return #stored < #token or (#stored == #token and stored < token)
end

-- The record with the token of the round, which inspections show; nil if it has that already.
local function raised(text, from)
  local stored = string.match(text, '^%d+', from)
  if not stored or not below(stored) then return nil end
  return string.sub(text, 1, from - 1) .. token .. string.sub(text, from + #stored)
end

-- First the command that a server out of memory still carries out; then it carries out the rest, too.
if string.sub(value, 1, 32) == owner then
  redis.call('PEXPIRE', K, ttl)
  local better = raised(value, 34)
  if better then redis.call('SET', K, better, 'PX', ttl) end
elseif string.sub(value, 1, 5) == 'pool ' then
  local ends = redis.call('ZSCORE', E, owner)
  if not ends or redis.call('HEXISTS', P, owner) == 0 then return 0 end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if tonumber(ends) <= now then return 0 end
  local ms = tonumber(ttl)
  local left = redis.call('PTTL', K)
  redis.call('PEXPIRE', K, string.format('%.0f', math.max(left, ms)))
  redis.call('ZADD', E, string.format('%.0f', now + ms), owner)
  if left < ms then
    redis.call('PEXPIRE', P, ttl)
    redis.call('PEXPIRE', E, ttl)
  end
  local better = raised(redis.call('HGET', P, owner), 1)
  if better then redis.call('HSET', P, owner, better) end
else
  return 0
end

if below(redis.call('GET', T) or '0') then redis.call('SET', T, token) end
return 1
