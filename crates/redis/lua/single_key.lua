-- What can be done for one who holds alone with nothing but the holder's key. While a Cluster moves
-- the lock's slot, a call with more keys is refused, for hours if need be; one with a single key is
-- served, wherever the key is.
-- KEYS  K
-- ARGV  1 owner  2 ttl ms: renew; without it: release
-- Returns 1 if done; 0 if the owner does not hold; -1 if that is not for this to say.
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 32) == ARGV[1] then
  if ARGV[2] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  -- Waiters find out when they poll.
  return redis.call('DEL', KEYS[1])
end
if not ARGV[2] or (value and string.sub(value, 1, 5) == 'pool ') then return -1 end
return 0
