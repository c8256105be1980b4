-- Looks after waiters of one client, many at once: their places last anew, and whoever may be let
-- in is.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 lease ms  2.. owners
-- Returns {ms until the obstacle ends or -1, server time us, owner, ...}: those who wait no longer and should ask.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

--@engine

local lease = tonumber(ARGV[1])
local ends = number(now + lease)
-- Should the line have been lost, everybody joins anew.
if redis.call('EXISTS', Q) == 0 and redis.call('HLEN', W) > 0 then redis.call('DEL', W) end
local fresh, gone = {}, {}
for i, record in ipairs(redis.call('HMGET', W, unpack(ARGV, 2))) do
  local owner = ARGV[i + 1]
  local at = record and string.find(record, ' ', 1, true)
  if at and tonumber(string.sub(record, 1, at - 1)) > now then
    fresh[#fresh + 1] = owner
    fresh[#fresh + 1] = ends .. string.sub(record, at)
  else
    gone[#gone + 1] = owner
  end
end
if #fresh > 0 then
  redis.call('HSET', W, unpack(fresh))
  mark()
  keep(W, lease) keep(Q, lease)
end
admit(nil)
return {number(obstacle()), number(tonumber(time[1]) * 1000000 + tonumber(time[2])), unpack(gone)}
