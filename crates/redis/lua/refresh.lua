-- Looks after waiters of one client, many at once: their places last anew, and claims that may be let
-- in are. Without owners, it only does the latter.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 lease ms  2.. owners
-- Returns {ms until the obstacle ends, -1, or 0: there is more to do, call again; server time us;
-- owner, ...}: those that wait no longer and should ask.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local value = redis.call('GET', K)

--@mint
--@engine

local lease = tonumber(ARGV[1])
local ends = number(now + lease)
local fresh, gone = {}, {}
if ARGV[2] then
  -- Should a part of the line have been lost, by an eviction or by hand, those in it join anew.
  local whole = call('ZCARD', Q) == call('HLEN', W)
  for i, record in ipairs(call('HMGET', W, unpack(ARGV, 2))) do
    local owner = ARGV[i + 1]
    local at = record and string.find(record, ' ', 1, true)
    if at and tonumber(string.sub(record, 1, at - 1)) > now and (whole or call('ZSCORE', Q, owner)) then
      fresh[#fresh + 1] = owner
      fresh[#fresh + 1] = ends .. string.sub(record, at)
    else
      gone[#gone + 1] = owner
    end
  end
end
if #fresh > 0 then
  call('HSET', W, unpack(fresh))
  mark()
  keep_line(lease)
end
local more = admit(nil)
return {more and '0' or number(obstacle()), us, unpack(gone)}
