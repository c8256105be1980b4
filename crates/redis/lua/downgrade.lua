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
  local record = words(string.sub(value, 34), 3)
  local since = record[2]
  -- The token begins as the server's time.
  if since == '-' and token ~= '-' then since = number(math.floor(tonumber(token) / 1024)) end
  -- Remains of an earlier pool are removed.
  call('UNLINK', P, E)
  call('HSET', P, owner, table.concat({token, since, 's 1 0', ARGV[2], record[3]}, ' '))
  call('ZADD', E, number(now + ttl), owner)
  value = 'pool s 1'
  call('SET', K, value, 'PX', ARGV[2])
  call('PEXPIRE', P, ARGV[2])
  call('PEXPIRE', E, ARGV[2])
else
  extend(owner, as, ttl)
end
if admit(nil) then hand_on() end
return token
