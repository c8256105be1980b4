-- Renews or releases an exclusive hold with the holder's key alone.
-- KEYS  K
-- ARGV  1 owner  2 ttl ms to renew; absent to release
-- Returns 1 if done; 0 if the owner does not hold; -1 if one key is not enough to decide.
-- Invariant: touches K only, and only while the owner holds it. While a Cluster moves the lock's slot, a call
-- with several keys is refused, for hours if need be; a call with a single key is served, wherever the key is.
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 32) == ARGV[1] then
  if ARGV[2] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  -- Waiters notice the release when they poll.
  return redis.call('DEL', KEYS[1])
end
if not ARGV[2] or (value and string.sub(value, 1, 5) == 'pool ') then return -1 end
return 0
