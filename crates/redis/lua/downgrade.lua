-- Turns the hold of a writer into that of a reader, and admits the readers that wait next.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner  2 ttl ms
-- Returns the token of the hold, or 0 if the owner does not hold.
-- Invariant: K exists all the time, so no other writer holds in between. A repeated call restarts the term of
-- the reader, and changes nothing else.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner, value = ARGV[1], redis.call('GET', KEYS[1])
if not value then return 0 end

--@mint
--@engine

local ttl = tonumber(ARGV[2])
local token, as = held(owner)
-- Permits are not turned into a read hold.
if not token or room() == 'p' then return 0 end
if as == 'x' then
  pool_holder(ttl)
else
  extend(owner, as, ttl)
end
if admit(nil) then hand_on() end
return token
