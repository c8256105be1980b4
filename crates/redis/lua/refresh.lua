-- Refreshes the places of many waiters of one client, and admits the claims that there is room for. Without
-- owners, it only admits.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 lease ms  2.. owners
-- Returns {ms until the obstacle ends, -1, or 0: there is more to do, call again; server time us;
-- owner, ...}: the owners that wait no longer and should claim again.
-- Invariant: the order of the queue does not change.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local value = redis.call('GET', K)

--@mint
--@engine

local lease = tonumber(ARGV[1])
local ends = number(now + lease)
local fresh, gone = {}, {}
if ARGV[2] then
  -- If a part of the queue was lost, by an eviction or by hand, the claims in it join again.
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
